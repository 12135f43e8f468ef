"""Sources of labelled images: the embedded digits, and folders of image files."""

import errno
import gzip
import os
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.data.input_files import read_regular
from widenet_jax.data.splits import check_split
from widenet_jax.errors import BadExampleError, BadInputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# Permanent errors of one file. Other errors (too many open files, a time-out) may be temporary, so
# skipping the file would not be reproducible.
FILE_ERRORS = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EIO, errno.EINVAL, errno.EFBIG,
}  # fmt: skip
# Every run has the same test set of digits, whatever its seed.
DIGITS_SPLIT_SEED = 0
DIGITS_TEST_SHARE = 0.2


class LabelledImages:
    """Base class of sources of labelled images.

    `source[i]` is {"image": uint8 [H, W, 1 or 3] or the bytes of an image file, "label": int}.

    Attributes:
      class_names: the name of each label: label k is class_names[k].
    """

    class_names: tuple[str, ...]

    @property
    def info(self) -> dict[str, Any]:
        return {"class_names": list(self.class_names)}


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
        self._labels = labels[chosen].astype(np.int32)
        self._split = split

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self._images[index], "label": int(self._labels[index])}

    def describe(self, index: int) -> str:
        return f"digits {self._split} image {index}"


class ImageFolder(LabelledImages):
    """Image files in `root/split/class/`, ImageNet's layout; classes in sorted order.

    Every class folder must hold an image: an empty folder usually means an interrupted copy.
    """

    def __init__(self, root: str, split: str):
        folder = Path(root)
        if not folder.is_dir():
            raise BadInputError(f"config.data.path={root}: no such directory")
        check_split(split, _subfolders(folder), f"config.data.path={root}")
        self.class_names = tuple(_subfolders(folder / split))
        if not self.class_names:
            raise BadInputError(
                f"{folder / split}: has no class folders; images belong in {root}/SPLIT/CLASS/"
            )
        self._folder = str(folder / split)
        self._files: list[str] = []
        counts = []
        for name in self.class_names:
            found = (entry.name for entry in _entries(folder / split / name))
            files = sorted(file for file in found if file.lower().endswith(IMAGE_SUFFIXES))
            self._files += [f"{name}/{file}" for file in files]
            counts.append(len(files))
        self._labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        empty = [name for name, count in zip(self.class_names, counts, strict=True) if not count]
        if empty:
            raise BadInputError(
                f"{folder / split / empty[0]}: no image in it ({', '.join(IMAGE_SUFFIXES)}), one "
                f"of {len(empty)} empty class folders among {len(counts)}; copy the images again, "
                "or remove the class from every split"
            )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            image = read_regular(self._path(index))
        except OSError as error:
            raise self._unreadable(index, error) from None
        return {"image": image, "label": int(self._labels[index])}

    def describe(self, index: int) -> str:
        return f"{self._path(index)} (image {index})"

    def _path(self, index: int) -> str:
        return f"{self._folder}/{self._files[index]}"

    def _unreadable(self, index: int, error: OSError) -> BadInputError:
        path = self._path(index)
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            return BadInputError(f"{folder}: class folder is gone; is its disk still there?")
        dangling = error.errno == errno.ENOENT and os.path.islink(path)
        reason = "link to a file that is not there" if dangling else error.strerror
        kind = BadExampleError if error.errno in FILE_ERRORS else BadInputError
        return kind(f"{self.describe(index)}: {reason}; replace or remove it")


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


def _entries(folder: Path) -> list[os.DirEntry]:
    """Lists the entries of a folder, except hidden ones.

    Raises:
      BadInputError: the folder cannot be listed.
    """
    try:
        return [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        raise BadInputError(f"{folder}: cannot be listed ({error.strerror})") from None


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(folder) if entry.is_dir())
