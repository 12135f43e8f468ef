"""What sources of labelled images have in common; parts of them; the embedded digits."""

import dataclasses
import gzip
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import distribution
from typing import Any

import numpy as np

from widenet_jax.data.splits import check_split, slice_of
from widenet_jax.errors import BadExampleError

# Every run has the same test set of digits, whatever its seed.
DIGITS_SPLIT_SEED = 0
DIGITS_TEST_SHARE = 0.2
ORDER_PROBES = 256  # records that are read to see the order of a set


class LabelledImages:
    """Base class of sources of labelled images.

    `source[i]` is {"image": uint8 [H, W, 1 or 3] or the bytes of an image file, "label": int}.

    Attributes:
      class_names: the name of each label: label k is class_names[k].
      record_labels: the label of each record, int32 [n]; None where only reading would tell.
      left_out: how many files of the split are not read, by suffix.
      split_advice: how the split gets images of the `missing` classes; "" where it cannot be told.
    """

    class_names: tuple[str, ...]
    record_labels: np.ndarray | None = None
    left_out: Mapping[str, int] = Counter()
    split_advice: str = ""

    @property
    def info(self) -> dict[str, Any]:
        return {"class_names": list(self.class_names)}

    @property
    def missing(self) -> tuple[str, ...]:
        """The classes of which the split has no image, where `record_labels` tells."""
        if self.record_labels is None:
            return ()
        present = set(self.record_labels.tolist())
        return tuple(name for label, name in enumerate(self.class_names) if label not in present)

    def part(self, bounds: tuple[str, str]) -> np.ndarray:
        """Returns the records between bounds such as ("90%", ""): int64 [n]."""
        return np.arange(len(self))[slice_of(bounds, len(self))]


def by_class(source: LabelledImages) -> bool:
    """Returns whether images lie class by class, as a packed folder does; reads at most 256.

    Classes may come in any order. Where most of the images read are the only one of their class,
    their labels must rise, because in an order without repeats each class has one place.
    """
    known, labels = source.record_labels, []
    probes = np.linspace(0, len(source) - 1, min(ORDER_PROBES, len(source))).astype(int)
    for record in probes.tolist():
        try:
            label = source[record]["label"] if known is None else int(known[record])
        except BadExampleError:
            continue
        if label in labels and label != labels[-1]:
            return False
        labels.append(label)
    classes = len(set(labels))
    return classes > 1 and (2 * classes <= len(labels) or labels == sorted(labels))


@dataclasses.dataclass(frozen=True)
class Subset(LabelledImages):
    """Some records of another source, with that source's classes.

    Attributes:
      source: the images.
      records: int64 [n], those taken.
    """

    source: LabelledImages
    records: np.ndarray

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.source.class_names

    @property
    def record_labels(self) -> np.ndarray | None:
        labels = self.source.record_labels
        return None if labels is None else labels[self.records]

    @property
    def left_out(self) -> Mapping[str, int]:
        return self.source.left_out

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.source[int(self.records[index])]

    def describe(self, index: int) -> str:
        return self.source.describe(int(self.records[index]))


@dataclasses.dataclass(frozen=True)
class Relabelled(LabelledImages):
    """A source with its labels replaced.

    Attributes:
      source: the images.
      class_names: of the new labels.
      labels: int32, the new label for each of the source's.
    """

    source: LabelledImages
    class_names: tuple[str, ...]
    labels: np.ndarray

    @property
    def record_labels(self) -> np.ndarray | None:
        theirs = self.source.record_labels
        return None if theirs is None else self.labels[theirs]

    @property
    def left_out(self) -> Mapping[str, int]:
        return self.source.left_out

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = self.source[index]
        return {**example, "label": int(self.labels[example["label"]])}

    def describe(self, index: int) -> str:
        return self.source.describe(index)


class Digits(LabelledImages):
    """scikit-learn's 1,797 handwritten digits: real 8x8 scans that need no download.

    A fifth (360 images) is the test split, stratified by class and the same for every run.
    Images are uint8 [8, 8, 1], the original's 17 grey levels spread over 0..255.
    """

    class_names = tuple(str(digit) for digit in range(10))

    def __init__(self, split: str):
        check_split(split, ("train", "test"), "the digits")
        pixels, labels = _read_digits()
        chosen = np.flatnonzero(_test_digits(labels) == (split == "test"))
        self._images = np.round(pixels[chosen] * (255 / 16)).astype(np.uint8)[..., None]
        self.record_labels = labels[chosen].astype(np.int32)
        self._split = split

    def __len__(self) -> int:
        return len(self.record_labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self._images[index], "label": int(self.record_labels[index])}

    def describe(self, index: int) -> str:
        return f"digits {self._split} image {index}"


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns pixels of 0..16 [1797, 8, 8] and labels [1797], from scikit-learn's own file.

    `sklearn.datasets.load_digits` returns the same, but takes a second or two to import.
    """
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    with gzip.open(path) as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)


def _test_digits(labels: np.ndarray) -> np.ndarray:
    """Returns bool [1797]: the test digits, a fifth of each kind, drawn at random.

    The same as `sklearn.model_selection.train_test_split(..., stratify=labels)` draws, with
    DIGITS_TEST_SHARE and DIGITS_SPLIT_SEED.
    """
    rng = np.random.RandomState(DIGITS_SPLIT_SEED)
    counts = np.bincount(labels)
    num_train = len(labels) - int(np.ceil(DIGITS_TEST_SHARE * len(labels)))
    # The largest remainders are rounded up; random ones among equals.
    shares = counts / len(labels) * num_train
    remainders = shares % 1
    train_counts = np.floor(shares).astype(int)
    for remainder in np.unique(remainders)[::-1]:
        if missing := num_train - train_counts.sum():
            equals = np.flatnonzero(remainders == remainder)
            train_counts[rng.choice(equals, min(len(equals), missing), replace=False)] += 1
    is_test = np.zeros(len(labels), bool)
    for digit, count in enumerate(train_counts):
        is_test[rng.permutation(np.flatnonzero(labels == digit))[count:]] = True
    return is_test
