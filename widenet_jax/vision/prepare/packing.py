"""Packing of image sets in other layouts into ArrayRecord files, and readers of two layouts: image
folders and TFDS sets.

A reader turns the options of its subcommand into a `Converted`, whose labels and encoded images
`records.write_set` packs; a layout of files that each hold many images is one function from a file
to `Images`, which `joined` puts together. `archives`, `arrays` and `cifar` hold the others. A new
layout is one new reader, and a subcommand in `command`. JPEG and PNG files are kept byte for byte.
Only `cifar` unpickles, and runs no code.
"""

import dataclasses
import glob
import itertools
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tqdm

from widenet_jax.config.parser import Options, show
from widenet_jax.data import labelled, records
from widenet_jax.data.blocks import in_threads, tried
from widenet_jax.data.checks import Check
from widenet_jax.data.input_files import check_apart, once, shards_text
from widenet_jax.errors import (
    BadExampleError,
    BadInputError,
    RunFailedError,
    first_line,
    raise_first,
    refuse,
    refusing,
    require,
)
from widenet_jax.specs import resolve
from widenet_jax.vision.data import files, folders
from widenet_jax.vision.data.packed import ArrayRecord, label_names


@dataclasses.dataclass
class Converted:
    """An image set in another layout.

    Attributes:
      class_names: label k is class_names[k].
      splits: for each split an iterable, to be read once, of (label, encoded image), perhaps with
        the image's name; a text in place of the image says why its file cannot be read.
      counts: images of each split, for the progress bar; None where unknown before the end.
      notes: lines for the user.
      left_out: how many files are not read, by suffix.
      present: the labels of each split: those that are known, and once it has been read, those of
        the images that were read, or packed.
      damaged: a line for each image that cannot be read, of those that have been read.
    """

    class_names: tuple[str, ...]
    splits: Mapping[str, Iterable[tuple]]
    counts: Mapping[str, int | None]
    notes: Sequence[str] = ()
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)
    present: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    damaged: list[str] = dataclasses.field(default_factory=list)

    def named(self, split: str) -> Iterator[tuple[int, bytes | str, str]]:
        """Yields the examples of a split, each with its name, and notes their labels."""
        present = self.present[split] = set()
        for number, (label, image, *name) in enumerate(self.splits[split]):
            if not isinstance(image, str):
                present.add(label)
            yield label, image, name[0] if name else f"image {number:,} of {split}"

    def checks(self, split: str) -> Iterator[Check]:
        """Yields a check of each image of a split."""
        return (partial(decoded, image, where) for _, image, where in self.named(split))

    def check_classes(self) -> None:
        """Raises BadInputError where a split has images of a class, and training has none."""
        train = [split for split, of in self.present.items() if of and split.startswith("train")]
        seen = set().union(*(self.present[split] for split in train))
        every = set().union(*self.present.values())
        if train:
            names = ([self.class_names[k] for k in sorted(x)] for x in (seen, every))
            raise_first(labelled.unseen(train[0], *names))

    def lines(self) -> list[str]:
        """Returns the notes, and lines on classes without images and on files left out."""
        lines = [*self.notes, *filter(None, [labelled.alike_text(self.class_names)])]
        every = range(len(self.class_names))
        for split, present in self.present.items():
            if lacking := [self.class_names[k] for k in every if k not in present]:
                lines.append(f"{split} has no image of {labelled.names_text(lacking)}")
        return lines + ([labelled.left_out_text(self.left_out)] if self.left_out else [])


class Images(NamedTuple):
    """The images of one file.

    Attributes:
      names: of integer labels; () without any.
      labels: those that occur: integers, or `composed` names of classes.
      count: of the images; None where unknown before the end.
      rows: reads the file from its beginning and yields (label, encoded image), perhaps with the
        image's name; see `Converted.splits`.
    """

    names: tuple[str, ...]
    labels: set
    count: int | None
    rows: Callable[[], Iterable[tuple]]


def joined(
    splits: Sequence[str] | Mapping[str, Sequence[str]], read: Callable[[str], Images]
) -> Converted:
    """Returns the set of which `read` opens each file.

    The classes are the texts that are labels, sorted, or the names of integers, or "0", "1", ...

    Args:
      splits: --split options, or the files of each split.
      read: called once for each file.

    Raises:
      BadInputError: an option names no file, or the files have different classes.
    """
    files = splits if isinstance(splits, Mapping) else split_files(splits)
    paths = dict.fromkeys(itertools.chain.from_iterable(files.values()))
    opened = {path: read(path) for path in paths}
    class_names = _names_of(opened)
    number_of = {name: number for number, name in enumerate(class_names)}

    def examples(paths: Sequence[str]) -> Iterator[tuple]:
        for label, *image in itertools.chain.from_iterable(opened[path].rows() for path in paths):
            yield number_of.get(composed(label), label), *image

    counts = {split: [opened[path].count for path in paths] for split, paths in files.items()}
    return Converted(
        class_names,
        {split: examples(paths) for split, paths in files.items()},
        {split: None if None in some else sum(some) for split, some in counts.items()},
        present={
            split: {number_of.get(label, label) for path in paths for label in opened[path].labels}
            for split, paths in files.items()
        },
    )


def _names_of(opened: Mapping[str, Images]) -> tuple[str, ...]:
    """Returns the class names of files, by path."""
    found = set().union(*(images.labels for images in opened.values()))
    problem = "labels are text in some files and integers in others; give text in all"
    refuse(labelled.names_text([*opened]), (len({*map(type, found)}) > 1, problem))
    if any(isinstance(label, str) for label in found):
        return tuple(sorted(found))
    (first, (expected, *_)), *rest = opened.items()
    for other, (names, *_) in rest:
        if names != expected:
            odd = sorted({*names} ^ {*expected})
            how = f"e.g. {odd[0]}" if odd else "in another order"
            raise BadInputError(f"{first} and {other} have different classes ({how})")
    return expected or tuple(map(str, range(max(found, default=0) + 1)))


def read_set(options: Options) -> Converted | None:
    """Reads the set that `options` name by their reader; None for a set that stays as it is.

    Raises:
      BadInputError: as the reader; or the names of classes are wrong.
    """
    found = resolve(options.reader)(options)
    if found:
        place = options.input if isinstance(options.input, str) else " ".join(options.input)
        labelled.check_class_names(found.class_names, place)
    return found


def pack(options: Options) -> None:
    """Converts the set that `options` name into ArrayRecord files."""
    found = read_set(options)
    if not found:
        return
    found.check_classes()  # of the labels that are known; of all, once all images are read
    manifest = records.write_set(
        options.out,
        {split: examined(split, found, options.skip_bad) for split in found.splits},
        class_names=found.class_names,
        provenance={"converter": options.command, "input": options.input},
        overwrite=options.overwrite,
        check=found.check_classes,
    )
    counts, damaged = {s: entry["count"] for s, entry in manifest["splits"].items()}, found.damaged
    lines = [f"{counts_text(options.out, counts)}, {len(found.class_names)} classes"]
    notes = found.lines()
    info = {"path": options.out, "images": counts, "classes": len(found.class_names)}
    info |= {"damaged": damaged, "left_out": found.left_out, "notes": notes}
    show(options, info, "\n".join(lines + notes))
    if damaged:
        names = labelled.names_text(damaged, "; ")
        text = f"left out {len(damaged):,} images that cannot be read: {names}"
        if not options.skip_bad:
            text = (
                f"packed as they are, but cannot be read: {names}. Training stops at such an "
                "image, or replaces it with --config.data.on_bad_example=skip; --skip_bad leaves "
                "them out here"
            )
        print(f"warning: {text}", file=sys.stderr)


def counts_text(place: str, counts: Mapping[str, int]) -> str:
    images = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"{place}: {images} images"


def examined(split: str, found: Converted, skip_bad: bool) -> Iterator[tuple[int, bytes]]:
    """Yields the examples of a split under a progress bar; names those that cannot be read.

    Each image is decoded, as `check` and training do. With `skip_bad` unreadable ones are left out;
    without it a file that cannot be read raises its error.
    """
    examples = tqdm.tqdm(found.named(split), desc=split, total=found.counts[split], unit="image")
    packed = set()
    for label, image, problem in in_threads(
        lambda example: (*example[:2], tried(decoded, *example[1:])[1]), examples
    ):
        if isinstance(image, str) and not skip_bad:
            raise BadExampleError(image)
        if problem:
            found.damaged.append(problem)
        if not (problem and skip_bad):
            packed.add(label)
            yield label, image
    found.present[split] = packed


def decoded(image: bytes | str, where: str) -> Any:
    """Decodes an image of a `Converted`; raises BadExampleError where it cannot be read."""
    if isinstance(image, str):
        raise BadExampleError(image)
    return files.decode(image, where)


def examples_of(source: labelled.LabelledImages, labels: Sequence[int]) -> Iterator[tuple]:
    """Yields a source's examples as a `Converted` has them; `labels` has a new one for each."""
    for index in range(len(source)):
        example, problem = tried(source.__getitem__, index)
        label = None if problem else labels[example["label"]]
        yield label, problem or example["image"], source.describe(index)


# --- Checks that readers share --------------------------------------------------------------------


def split_files(splits: Sequence[str]) -> dict[str, list[str]]:
    """Maps --split=NAME=FILE[,FILE...] options to {name: [file]}, wildcards expanded.

    Raises:
      BadInputError: an option of another form, or without a file; or a file is in two splits.
    """
    found: dict[str, list[str]] = {}
    for option in splits:
        place, (name, separator, patterns) = f"--split {option}", option.partition("=")
        fits = separator and name.isidentifier()
        refuse(place, (not fits, "expected NAME=FILE[,FILE...]"))
        for pattern in itertools.chain.from_iterable(map(_numbered, patterns.split(","))):
            matching = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
            refuse(place, (not matching, f"no file {pattern}"))
            found.setdefault(name, []).extend(matching)
        found[name] = once(found[name])
        if odd := shards_text(found[name]):
            print(f"note: --split {name}: {odd}", file=sys.stderr)
    check_apart(found, "images")
    return found


def _numbered(pattern: str) -> Iterator[str]:
    """Returns a-00, a-01, ... of a-{00..12}, as a shell; any other pattern alone."""
    match = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", pattern)
    before, first, last, after = match.groups() if match else (pattern, "", "", "")
    a, b = int(first or 0), int(last or 0)
    numbers = (range(a, b + 1) or range(a, b - 1, -1)) if match else [""]
    return (before + str(number).zfill(len(first)) + after for number in numbers)


def composed(label: Any) -> Any:
    """Returns a label, a text in composed letters (NFC), as `folders` has classes."""
    return unicodedata.normalize("NFC", label) if isinstance(label, str) else label


def check_labels(labels: np.ndarray, where: str, num_classes: int, first: int = 0) -> None:
    """Checks the labels of some consecutive records of a file.

    Args:
      labels: integers [n].
      where: the file, for the message.
      num_classes: labels must be below it.
      first: index in the file of the first of these records.

    Raises:
      BadInputError: they are not all from 0 to num_classes - 1.
    """
    for bad in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
        raise BadInputError(
            f"{where} record {first + bad}: label {labels[bad]} has no class name; labels "
            f"run from 0 to {num_classes - 1}"
        )


# --- A folder of class folders --------------------------------------------------------------------


def read_image_folder(options: Options) -> Converted:
    """Reads INPUT/SPLIT/CLASS/image files, or INPUT/CLASS/image files, divided by eval_fraction.

    The folder has the classes of all splits; only "train" must have every one.

    Raises:
      BadInputError: no such directory, no splits, or the training split lacks a class.
    """
    root, holdout = options.input, folders.Holdout(options.eval_fraction, field="eval_fraction")
    folders.check_folder(root)
    names = folders.splits_of(root, holdout)
    refuse(root, (not names, f"no split folders; images belong in {root}/SPLIT/CLASS/"))
    found = {split: folders.ImageFolder(root, split, holdout) for split in names}
    class_names = tuple(sorted({name for source in found.values() for name in source.class_names}))
    labels = {s: [class_names.index(n) for n in source.class_names] for s, source in found.items()}
    present = {s: {labels[s][k] for k in source.record_labels} for s, source in found.items()}
    if (train := holdout.train_split) in found:
        seen = [class_names[k] for k in sorted(present[train])]
        raise_first(labelled.unseen(train, seen, class_names, found[train].split_advice))
    return Converted(
        class_names,
        {split: examples_of(source, labels[split]) for split, source in found.items()},
        {split: len(source) for split, source in found.items()},
        notes=[*filter(None, {source.split_advice: 0 for source in found.values()})],
        left_out=sum((Counter(source.left_out) for source in found.values()), Counter()),
        present=present,
    )


# --- A set that is packed already -----------------------------------------------------------------


def read_packed(options: Options) -> Converted:
    """Reads a packed set, to check it; raises BadInputError as `records.read_manifest`."""
    manifest = records.read_manifest(options.input)
    names = tuple(manifest["class_names"])

    def examples(split: str) -> Iterator[tuple]:
        yield from examples_of(ArrayRecord(options.input, split), range(len(names)))

    counts = {split: entry["count"] for split, entry in manifest["splits"].items()}
    return Converted(names, {split: examples(split) for split in counts}, counts)


# --- TensorFlow Datasets --------------------------------------------------------------------------


def read_tfds(options: Options) -> Converted | None:
    """Downloads and prepares a TFDS image classification set, and reads it where --out is set.

    Needs TensorFlow. The set becomes array_record, unless it has been prepared in another format.

    Raises:
      BadInputError: no TensorFlow, no such set, not a classification set, or a set that training
        cannot read where it is.
      RunFailedError: TFDS cannot download or prepare it.
    """
    name, where = options.input, f"tfds {options.input}"
    require("tensorflow", extra="prepare", what=f"preparing the TFDS set {name}")
    import tensorflow_datasets as tfds

    with refusing(f"{where}: cannot be opened", Exception):  # TFDS raises errors of many kinds
        builder = tfds.builder(name, data_dir=options.data_dir)
    names, notes = label_names(builder.info, where), []
    try:
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # of many kinds, as where its server is out of reach
        raise RunFailedError(f"{where}: cannot be prepared: {first_line(error)}") from error
    stored, place = builder.info.file_format.value, str(builder.data_dir)
    counts = {split: info.num_examples for split, info in builder.info.splits.items()}
    if not options.out:
        how = f"already prepared as {stored} in {place}, which training cannot read; pass --out "
        refuse(where, (stored != "array_record", how + "DIR to pack it"))
        show(options, {"path": place, "images": counts}, counts_text(place, counts))
        return None

    def examples(split: str) -> Iterator[tuple[int, bytes]]:
        encoded = {"image": tfds.decode.SkipDecoding()}
        if stored == "array_record":  # as_dataset refuses this one
            dataset = builder.as_data_source(split, decoders=encoded)
        else:
            dataset = builder.as_dataset(split=split, shuffle_files=False, decoders=encoded)
            dataset = tfds.as_numpy(dataset)
        for example in dataset:
            yield int(example["label"]), bytes(example["image"])

    for split in [split for split in counts if next(examples(split), (0,))[0] < 0]:
        del counts[split]
        notes.append(f"{split}: left out, as its examples have no labels")
    return Converted(names, {split: examples(split) for split in counts}, counts, notes=notes)
