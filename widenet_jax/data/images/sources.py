"""Sources of labelled images: the embedded digits, and folders of image files."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.data.input_files import read_regular
from widenet_jax.data.splits import check_split
from widenet_jax.errors import BadExampleError, BadInputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
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
        # scikit-learn is slow to import, and only this source needs it.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        check_split(split, ("train", "test"), "the digits")
        digits = load_digits()
        train, test = train_test_split(
            np.arange(len(digits.target)),
            test_size=DIGITS_TEST_SHARE,
            random_state=DIGITS_SPLIT_SEED,
            stratify=digits.target,
        )
        chosen = np.sort(train if split == "train" else test)
        pixels = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
        self._images = pixels[..., None]
        self._labels = digits.target[chosen].astype(np.int32)
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
