"""Packing of image sets in other layouts into ArrayRecord files, and readers of two layouts: image
folders and TFDS sets.

A reader turns the options of its subcommand into a `Converted`, whose labels and encoded images
`records.write_set` packs. `archives` and `arrays` hold the other readers. A new layout is one new
reader, and a subcommand in `command`. JPEG and PNG files are kept byte for byte. Nothing is
unpickled.
"""

import dataclasses
import glob
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import tqdm

from widenet_jax.config.parser import Options, show
from widenet_jax.data import records
from widenet_jax.data.labelled import check_class_names, left_out_text, names_text
from widenet_jax.data.records import problem_of
from widenet_jax.data.sources import missing_classes
from widenet_jax.errors import BadExampleError, BadInputError, RunFailedError, first_line, require
from widenet_jax.specs import resolve
from widenet_jax.vision.data import files, folders

AHEAD = 16  # images that are decoded while earlier ones are written


@dataclasses.dataclass
class Converted:
    """An image set in another layout.

    Attributes:
      class_names: label k is class_names[k].
      splits: for each split an iterable, to be read once, of (label, encoded image), perhaps with
        the image's name; the error in place of the image where a file cannot be read.
      counts: images of each split, for the progress bar; None where unknown before the end.
      notes: lines for the user.
      left_out: how many files are not read, by suffix.
    """

    class_names: tuple[str, ...]
    splits: Mapping[str, Iterable[tuple]]
    counts: Mapping[str, int | None]
    notes: Sequence[str] = ()
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)


def pack(options: Options) -> None:
    """Converts the set that `options` name, by their reader, into ArrayRecord files."""
    found = resolve(options.reader)(options)
    if not found:  # a TFDS set that is read where it is
        return
    place = options.input if isinstance(options.input, str) else " ".join(options.input)
    check_class_names(found.class_names, place)
    damaged: list[str] = []
    manifest = records.write_set(
        options.out,
        {split: examined(split, found, damaged, options.skip_bad) for split in found.splits},
        class_names=found.class_names,
        provenance={"converter": options.command, "input": options.input},
        overwrite=options.overwrite,
    )
    counts = {name: entry["count"] for name, entry in manifest["splits"].items()}
    lines = [f"{counts_text(options.out, counts)}, {len(found.class_names)} classes", *found.notes]
    lines += [left_out_text(found.left_out)] if found.left_out else []
    info = {"path": options.out, "images": counts, "classes": len(found.class_names)}
    info |= {"damaged": damaged, "left_out": found.left_out, "notes": found.notes}
    show(options, info, "\n".join(lines))
    if damaged:
        text = f"left out {len(damaged):,} images that cannot be read: {names_text(damaged, '; ')}"
        if not options.skip_bad:
            text = (
                f"packed as they are, but cannot be read: {names_text(damaged, '; ')}. Training "
                "stops at such an image, or replaces it with --config.data.on_bad_example=skip; "
                "--skip_bad leaves them out here"
            )
        print(f"warning: {text}", file=sys.stderr)


def counts_text(place: str, counts: Mapping[str, int]) -> str:
    images = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"{place}: {images} images"


def examined(
    split: str, found: Converted, damaged: list[str], skip_bad: bool
) -> Iterator[tuple[int, bytes]]:
    """Yields the examples of a split under a progress bar; names unreadable ones in `damaged`.

    Each image is decoded, as `check` and training do. With `skip_bad` unreadable ones are left out;
    without it a file that cannot be read raises its error.
    """
    examples = tqdm.tqdm(found.splits[split], desc=split, total=found.counts[split], unit="image")
    for label, image, problem in in_threads(partial(decoded, split), enumerate(examples)):
        if isinstance(image, BadExampleError) and not skip_bad:
            raise image
        if problem:
            damaged.append(problem)
        if not (problem and skip_bad):
            yield label, image


def decoded(split: str, numbered: tuple[int, tuple]) -> tuple:
    """Returns the label, the image and its problem (or None) of a numbered example."""
    number, (label, image, *name) = numbered
    if isinstance(image, BadExampleError):
        return label, image, str(image)
    where = name[0] if name else f"image {number:,} of {split}"
    return label, image, problem_of(partial(files.decode, image, where))


def in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yields `work(item)` of each item in their order; threads work on at most AHEAD of them."""
    with ThreadPoolExecutor() as pool:
        waiting: deque[Future] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) == AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# --- Checks that readers share --------------------------------------------------------------------


def split_files(splits: Sequence[str]) -> dict[str, list[str]]:
    """Maps --split=NAME=FILE[,FILE...] options to {name: [file]}, wildcards expanded.

    Raises:
      BadInputError: an option of another form, or without a file.
    """
    found: dict[str, list[str]] = {}
    for option in splits:
        name, separator, patterns = option.partition("=")
        if not separator or not name.isidentifier():
            raise BadInputError(f"--split {option}: expected NAME=FILE[,FILE...]")
        for pattern in patterns.split(","):
            there = os.path.exists(pattern)
            matching = [pattern] if there else sorted(glob.glob(pattern))
            if not matching:
                raise BadInputError(f"--split {option}: no file {pattern}")
            found.setdefault(name, []).extend(matching)
    return found


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
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        raise BadInputError(
            f"{where} record {first + bad[0]}: label {labels[bad[0]]} has no class name; labels "
            f"run from 0 to {num_classes - 1}"
        )


def same_classes(names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the class names that all files have.

    Raises:
      BadInputError: two of them differ.
    """
    (first, expected), *rest = names.items()
    for other, classes in rest:
        if classes != expected:
            odd = sorted(set(classes) ^ set(expected))
            how = f"e.g. {odd[0]}" if odd else "in another order"
            raise BadInputError(f"{first} and {other} have different classes ({how})")
    return expected


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
    if not names:
        raise BadInputError(f"{root}: no split folders; images belong in {root}/SPLIT/CLASS/")
    found = {split: folders.ImageFolder(root, split, holdout) for split in names}
    class_names = tuple(sorted({name for source in found.values() for name in source.class_names}))
    notes = []
    for split, source in found.items():
        present = {*source.class_names} - {*missing_classes(source)}
        if missing := tuple(name for name in class_names if name not in present):
            lacks = f"{split} has no image of {names_text(missing)}"
            if split == holdout.train_split:
                advice = "copy the images again, or remove these classes from every split"
                raise BadInputError(f"{root}: split {lacks}; {source.split_advice or advice}")
            notes.append(lacks + (source.split_advice and f"; {source.split_advice}"))

    def examples(source: folders.ImageFolder) -> Iterator[tuple]:
        labels = [class_names.index(name) for name in source.class_names]
        for index, label in enumerate(source.record_labels):
            try:
                yield labels[label], source[index]["image"], source.describe(index)
            except BadExampleError as error:
                yield labels[label], error

    return Converted(
        class_names,
        {split: examples(source) for split, source in found.items()},
        {split: len(source) for split, source in found.items()},
        notes=notes,
        left_out=sum((Counter(source.left_out) for source in found.values()), Counter()),
    )


# --- TensorFlow Datasets --------------------------------------------------------------------------


def read_tfds(options: Options) -> Converted | None:
    """Downloads and prepares a TFDS image classification set, and reads it where --out is set.

    Needs TensorFlow. The set becomes array_record, unless it has been prepared in another format.

    Raises:
      BadInputError: no TensorFlow, no such set, not a classification set, or a set that training
        cannot read where it is.
      RunFailedError: TFDS cannot download or prepare it.
    """
    name = options.input
    require("tensorflow", extra="prepare", what=f"preparing the TFDS set {name}")
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=options.data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        raise BadInputError(f"tfds {name}: {first_line(error)}") from None
    if not {"image", "label"} <= set(builder.info.features):
        raise BadInputError(f"tfds {name}: has no image and label features")
    try:
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # of many kinds, as where its server is out of reach
        raise RunFailedError(f"tfds {name}: cannot be prepared: {first_line(error)}") from error
    stored, place = builder.info.file_format.value, str(builder.data_dir)
    counts = {split: info.num_examples for split, info in builder.info.splits.items()}
    if not options.out:
        if stored != "array_record":
            raise BadInputError(
                f"tfds {name}: already prepared as {stored} in {place}, which training cannot "
                "read; pass --out DIR to pack it"
            )
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

    names = tuple(builder.info.features["label"].names)
    return Converted(names, {split: examples(split) for split in counts}, counts)
