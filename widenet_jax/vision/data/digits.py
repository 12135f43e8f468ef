"""The embedded digits of scikit-learn."""

import gzip
from collections.abc import Mapping
from importlib.metadata import distribution
from typing import Any

import numpy as np

from widenet_jax.data.labelled import LabelledImages
from widenet_jax.data.splits import check_split

# Every run has the same test set of digits, whatever its seed.
DIGITS_SPLIT_SEED = 0
DIGITS_TEST_SHARE = 0.2


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


def open_digits(data: Mapping[str, Any], split: str, info: Mapping[str, Any]) -> Digits:
    """Opens a split of the digits; see `specs.SourceSpec`."""
    return Digits(split)
