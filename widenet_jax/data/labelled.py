"""Sources of labelled images, parts of them, other labels for them; and the classes of splits."""

import contextlib
import functools
import itertools
import operator
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from widenet_jax.data.blocks import begin, in_threads, read_example, read_row
from widenet_jax.data.contract import Example, Source
from widenet_jax.data.splits import parse_slice, parts_of, slice_of
from widenet_jax.errors import BadExampleError, BadInputError, refuse
from widenet_jax.files import is_text

ORDER_PROBES = 256  # records that are read to see the order of a set
LABELS_READ = 512  # of a packed set, at the start of a run
CHANCE = 16  # so many of these images may be of classes that another sample lacks by chance


class LabelledImages:
    """Base class of sources of labelled images.

    `source[i]` is {"image": uint8 [H, W, 1 or 3] or the bytes of an image file, "label": int}.

    Attributes:
      class_names: the name of each label: label k is class_names[k].
      record_labels: the label of each record, int32 [n]; None where only reading would tell.
      left_out: how many files of the split are not read, by suffix.
      split_advice: how the split gets images of classes without any; "" where it is unknown.
      part_of: which part of a larger set these images are, and the field that gives all of them;
        "" for a whole set.
      part_of_each_class: whether a slice has the same share of each class.
      note: a line for the user, see `contract.Source`.
      labels_to_read: whether labels are unknown, and can be read without much work.
    """

    class_names: tuple[str, ...]
    record_labels: np.ndarray | None = None
    left_out: Mapping[str, int] = Counter()
    split_advice: str = ""
    part_of: str = ""
    part_of_each_class: bool = False
    labels_to_read: bool = False
    note: str = ""

    @property
    def info(self) -> dict[str, Any]:
        return {"class_names": list(self.class_names)}

    def checked(self, label: int) -> int:
        """Returns a record's label; raises ValueError where no class has it."""
        if not 0 <= label < len(self.class_names):
            raise ValueError(f"label {label} of {len(self.class_names)} classes")
        return label

    @functools.cached_property
    def labels_read(self) -> list[int]:
        """The labels of `LABELS_READ` random records, of a smaller source of all."""
        return labels_of(self, np.random.default_rng(0).permutation(len(self))[:LABELS_READ])

    def part(self, bounds: tuple[str, str]) -> np.ndarray:
        """Returns the records between bounds such as ("90%", ""): int64 [n]."""
        return np.arange(len(self))[slice_of(bounds, len(self))]


def label_of(example: Example, num_classes: int) -> int:
    """Returns an example's label; raises BadExampleError where it is the number of no class."""
    label = example.get("label")
    with contextlib.suppress(TypeError):
        if 0 <= (number := operator.index(label)) < num_classes:
            return number
    raise BadExampleError(
        f"{example['where']}: its label is {reprlib.repr(label)}; give its class's place in "
        f"info['class_names'], a whole number from 0 to {num_classes - 1}"
    )


def known_labels(source: Source) -> np.ndarray | None:
    """Returns the labels that a source knows, int [n], -1 of no class; None where it reads them."""
    labels = getattr(source, "record_labels", None)
    return getattr(source, "named_labels", None) if labels is None else labels


def labels_of(source: Source, records: np.ndarray) -> list[int]:
    """Returns the labels of records, read where they are unknown, if they can be read."""
    return [label for label in labels_at(source, records) if label >= 0]


def labels_at(source: Source, records: np.ndarray) -> list[int]:
    """Returns the label of each record, read where it is unknown; -1 where it cannot be read."""
    places = records.astype(int)
    if (known := getattr(source, "record_labels", None)) is not None:
        return known[places].tolist()
    find = partial(label_of, num_classes=len(source.info["class_names"]))
    read = partial(read_row, source, transform=find, skip=True)
    return [-1 if problem else label for label, problem in in_threads(read, places.tolist())]


def checked_pixels(image: Any, others: str = "a path, an image of Pillow") -> np.ndarray:
    """Returns an array of pixels as uint8 [H, W, 1 or 3].

    Raises:
      BadInputError: it is any other; `others` may be given instead of an array.
    """
    pixels = np.asarray(image)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    fits = pixels.ndim == 3 and pixels.shape[2] in (1, 3)
    if pixels.dtype != np.uint8 or not fits or not pixels.size:
        raise BadInputError(
            f"an image is an array {pixels.dtype} {list(pixels.shape)}; give {others}, or uint8 "
            "[height, width, 3] or [height, width]"
        )
    return pixels


def by_class(source: LabelledImages) -> bool:
    """Returns whether images lie class by class, as a packed folder does; reads at most 256.

    Classes may come in any order. Where most of the images read are the only one of their class,
    their labels must rise, because in an order without repeats each class has one place.
    """
    labels = labels_of(source, np.linspace(0, len(source) - 1, min(ORDER_PROBES, len(source))))
    classes = len(set(labels))
    if sum(a != b for a, b in itertools.pairwise(labels)) >= classes:
        return False  # a class lies in two places
    return classes > 1 and (2 * classes <= len(labels) or labels == sorted(labels))


class Subset(LabelledImages):
    """Some records of another source, perhaps with other labels.

    Attributes:
      source: the images.
      records: int64 [n], the source's records in their order here.
      class_names: of the labels here.
      labels: int32, the label here for each of the source's labels.
      matched: how classes are matched, where `with_classes` does not match names; "" otherwise.
      files, contents: those of the source, of these records; see `sources.common`.
    """

    def __init__(
        self,
        source: LabelledImages,
        records: np.ndarray,
        class_names: Sequence[str],
        labels: Sequence[int],
    ):
        self.source, self.records, self.class_names = source, records, tuple(class_names)
        self.labels, self.matched = np.asarray(labels, np.int32), ""
        self.left_out, self.labels_to_read = source.left_out, source.labels_to_read
        self.note = source.note
        self.files: Callable[[], Sequence[str]] = getattr(source, "files", tuple)
        if source.record_labels is not None:
            self.record_labels = self.labels[source.record_labels[records]]
        if hasattr(source, "contents"):
            self.contents = source.contents[records]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = read_example(self.source, int(self.records[index]))
        return {**example, "label": int(self.labels[label_of(example, len(self.labels))])}

    def describe(self, index: int) -> str:
        return self.source.describe(int(self.records[index]))

    def ahead(self, indices: np.ndarray) -> None:
        begin(self.source, self.records[indices])


def relabelled(source: LabelledImages, names: Sequence[str], labels: Sequence[int]) -> Subset:
    """Returns a source with other classes; `labels` has the new label for each of the source's."""
    return Subset(source, np.arange(len(source)), names, labels)


def with_classes(source: LabelledImages, names: Sequence[str], *, place: str) -> Subset:
    """Returns a source with a model's labels; classes are matched by name.

    A source may have fewer classes than the model, in another order. The V classes 0 to V - 1 of
    either, as ImageNet-V2's folders and public weights call them, are the other's V by number.

    Args:
      source: the images.
      names: the model's classes.
      place: the model, for messages.

    Raises:
      BadInputError: the source has a class that the model does not know.
    """
    index, matched = {name: label for label, name in enumerate(names)}, ""
    numbers = {str(label): label for label in range(len(names))}
    theirs, last = source.class_names, len(names) - 1
    if len(theirs) == len(names) and {*theirs}.isdisjoint(names):
        if {*theirs} == {*numbers}:
            index, matched = numbers, f"matched by number: 0 is {names[0]}, {last} is {names[-1]}"
        elif {*names} == {*numbers}:
            index = {name: names.index(str(number)) for number, name in enumerate(theirs)}
            matched = f"matched by number: {theirs[0]} is 0, {theirs[-1]} is {last}"
    if unknown := [name for name in source.class_names if name not in index]:
        raise BadInputError(
            f"class {unknown[0]!r} of the data ({len(unknown)} such of {len(source.class_names)}) "
            f"is none of the {len(names)} that {place} knows ({names_text(names)}); classes are "
            f"matched by name, or by number if they are 0 to {len(names) - 1}: rename them, or "
            "finetune on this data"
        )
    found = relabelled(source, names, [index[name] for name in source.class_names])
    found.matched, found.part_of = matched, source.part_of
    return found


class Joined(LabelledImages):
    """Parts of sources one after another, as a sum of splits has them, all of the same classes."""

    def __init__(self, parts: Sequence[Subset]):
        self.parts, self.class_names = parts, parts[0].class_names
        self._ends = np.cumsum([len(part) for part in parts])
        if all(part.record_labels is not None for part in self.parts):
            self.record_labels = np.concatenate([part.record_labels for part in self.parts])
        self._whole = [*dict.fromkeys(part.source for part in parts)]
        self.left_out = sum((Counter(source.left_out) for source in self._whole), Counter())
        self.labels_to_read = all(source.labels_to_read for source in self._whole)
        self.note = "\n".join(dict.fromkeys(filter(None, (one.note for one in self._whole))))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        part, record = self._locate(index)
        return part[record]

    def describe(self, index: int) -> str:
        part, record = self._locate(index)
        return part.describe(record)

    def ahead(self, indices: np.ndarray) -> None:
        whose = np.searchsorted(self._ends, indices, side="right")
        for place, part in enumerate(self.parts):
            begin(part, indices[whose == place] - self._ends[place] + len(part))

    def files(self) -> list[str]:
        """Returns the lines of all sources; see `contract.Source`."""
        return [line for source in self._whole for line in getattr(source, "files", list)()]

    def _locate(self, index: int) -> tuple[LabelledImages, int]:
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[part], index - int(self._ends[part]) + len(self.parts[part])


def check_class_names(names: Sequence[str], where: object) -> None:
    """Raises BadInputError where a class has an empty name, another's, or one that is no text."""
    labels: dict[str, int] = {}
    for label, name in enumerate(names):
        first, what = -1, "needs a name, in whole characters (UTF-8)"
        if is_text(name) and name.strip():
            first = labels.setdefault(name, label)
            what = f"has the name of class {first}"
        refuse(where, (first != label, f"class {label} ({name!r}) {what}; rename it"))


def unseen(
    train: str, seen: Collection[str], wanted: Iterable[str], advice: str = ""
) -> Iterator[str]:
    """Yields a line where a training split has no example of a class.

    Args:
      train: its name.
      seen: the classes that it has examples of.
      wanted: the classes of all splits.
      advice: how to mend it; by default for any split.
    """
    known = dict.fromkeys(seen)
    if lacking := [name for name in dict.fromkeys(wanted) if name not in known]:
        advice = advice or "name classes alike in all splits, or remove these from every split"
        yield (
            f"split {train} has no example of {len(lacking)} of {len({*known, *lacking})} classes "
            f"({names_text(lacking)}); {advice} (it has {names_text([*known]) or 'none'})"
        )


def class_counts(source: Source) -> tuple[int, ...]:
    """Counts the examples of each class; reads all of a source that does not know its labels.

    An example that cannot be read counts for no class.
    """
    classes = len(source.info["class_names"])
    return tuple(np.bincount(labels_of(source, np.arange(len(source))), minlength=classes).tolist())


def missing_classes(source: Source) -> tuple[str, ...]:
    """Returns the classes without an example; () where only reading would tell.

    A source with `named_labels` knows its labels, but may lack classes.
    """
    if (labels := known_labels(source)) is None:
        return ()
    present, names = set(labels.tolist()), source.info.get("class_names", ())
    return tuple(name for label, name in enumerate(names) if label not in present)


def largest_share(source: Source) -> float | None:
    """Returns the share of the most frequent class; None of a source that does not know labels."""
    labels = getattr(source, "record_labels", None)
    return None if labels is None else float(np.bincount(labels).max() / len(labels))


def class_problems(train: Source, evaluation: Source, data: Mapping[str, Any]) -> Iterator[str]:
    """Yields why two splits, each with its own classes, cannot be trained and evaluated on."""
    splits = ((data["train_split"], train), (data["eval_split"], evaluation))
    names, theirs = (source.info.get("class_names", ()) for _, source in splits)
    if len({*names, *theirs}) == 1:  # as at a wrong level of folders
        path, [name] = data.get("path"), {*names, *theirs}
        advice = " (config.data.path names a folder that has one for each class)" if path else ""
        yield (
            f"{path}: " * bool(path) + f"split {data['train_split']} has one class only ({name}); "
            f"a classifier needs two{advice}"
        )
    # TFDS shuffles its sets as it prepares them, and a slice of a folder takes its share of each
    # class.
    for part, source in itertools.chain.from_iterable(itertools.starmap(_parts, splits)):
        sliced = isinstance(source, Subset) and not source.source.part_of_each_class
        if sliced and len(source) < len(source.source) and by_class(source.source):
            yield (
                f"split {part!r}: the images of {parse_slice(part)[0]} lie class by class, and a "
                "slice of them lacks classes; name whole splits (config.data.train_split, "
                "config.data.eval_split), or pack the folders again: scripts/prepare_data.py "
                "image_folder --eval_fraction=0.1"
            )
    known = getattr(train, "record_labels", None)
    if not isinstance(train, LabelledImages):
        rows = known is not None and "[" in data["eval_split"] and by_class(train)
        if rows and (lacking := {*known.tolist()} - {*evaluation.record_labels.tolist()}):
            yield (
                f"{data['path']}: split {data['eval_split']!r} has no row of {len(lacking)} of the "
                f"{len(names)} classes, as the rows are sorted by class; shuffle them before they "
                "are sliced, or give evaluation a file of its own"
            )
    else:
        for split, source in splits:
            if not len(source):
                advice = source.split_advice and f"; {source.split_advice}"
                yield f"split {split} has no image{advice}"
        lacking = {*missing_classes(train)} if known is not None else ()
        seen = [name for name in names if name not in lacking]
        yield from unseen(data["train_split"], seen, [*names, *theirs], train.split_advice)
    if names and theirs:
        yield from _not_trained(train, evaluation, data["train_split"])


def _parts(split: str, source: Source) -> Iterator[tuple[str, Source]]:
    """Returns the parts of a split with their names."""
    parts = source.parts if isinstance(source, Joined) else [source]
    return zip(parts_of(split), parts, strict=False)


def _not_trained(train: Source, evaluation: Source, train_split: str) -> Iterator[str]:
    """Yields a line where evaluation has examples of a class, and training has none.

    Labels of packed sets are read: all of a small set, a sample of a larger one. Splits whose
    samples have a class in common pass; otherwise all of the training split is read. `check` reads
    all.
    """
    splits = (train, evaluation)
    if reads := all(getattr(source, "labels_to_read", False) for source in splits):
        labels = [source.labels_read for source in splits]
    else:
        labels = [known_labels(source) for source in splits]
    if any(known is None for known in labels):
        return
    seen, wanted = (_names_of(*pair) for pair in zip(splits, labels, strict=True))
    if reads and len(train) > LABELS_READ:
        if {*seen} & {*wanted}:
            return
        seen = _names_of(train, labels_of(train, np.arange(len(train))))
    yield from unseen(train_split, seen, wanted, getattr(train, "split_advice", ""))


def lacking(source: Source, other: Source) -> str:
    """Names the classes of the labels read of another packed split that this one lacks, or "".

    The sample of a large split lacks classes by chance: about as many images are of such classes as
    there are classes with one image in the sample (Good and Turing).
    """
    if source is other or not all(getattr(one, "labels_to_read", False) for one in (source, other)):
        return ""
    found, theirs = Counter(source.labels_read), Counter(other.labels_read)
    lost = {label: count for label, count in theirs.items() if label not in found}
    sampled, once = len(source) > LABELS_READ, [*found.values()].count(1)
    if not lost or (sampled and sum(lost.values()) <= CHANCE + 2 * once):
        return ""
    return names_text(_names_of(other, [*lost])) + f" among {LABELS_READ} looked at" * sampled


def _names_of(source: Source, labels: Any) -> list[str]:
    return [source.info["class_names"][k] for k in np.unique(labels) if k >= 0]


def alike_text(
    names: Iterable[str], plain: Callable[[str], Hashable] = str.casefold, where: str = ""
) -> str:
    """Returns a line on names of which `plain` makes the same, such as Cat and cat; "" for none."""
    alike: dict[Hashable, list[str]] = {}
    for name in names:
        alike.setdefault(plain(name), []).append(name)
    odd = next((same for same in alike.values() if len(same) > 1), ())
    advice = "differ only in spelling: if they mean the same, write them alike"
    return f"{' and '.join(map(repr, odd))} {advice}{where}" if odd else ""


def left_out_text(counts: Counter[str]) -> str:
    """Returns how many files are not read, and their kinds: "1 file left out (.heic 1)"."""
    files = "file" if counts.total() == 1 else "files"
    return f"{counts.total():,} {files} left out ({counts_text(counts)})"


def names_text(names: Sequence[str], between: str = ", ") -> str:
    """Returns the first five names, and how many more there are: "cat, dog and 3 more"."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return between.join(names[:5]) + more


def counts_text(counts: Counter[str]) -> str:
    """Returns counts by kind, the most frequent first: ".heic 60, .DS_Store 2"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind} {count:,}" for kind, count in ordered)
