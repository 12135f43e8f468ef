"""Where images come from: random-access sources, one per storage layout.

`build_source` makes the one that `config.data` names. A source is small to pickle: worker processes
get a copy, and open files only when they first read one.
"""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from widenet_jax.data.shards import ArrayRecord, Tfds
from widenet_jax.data.splits import check_split
from widenet_jax.errors import BadExampleError, BadInputError, choose

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
# What can be wrong with one file for good. Other errors (too many open files, a time-out) say
# nothing of the file and may be over the next moment: skipping it would not be repeatable.
FILE_ERRORS = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EIO,
}  # fmt: skip
# The digits' test set: drawn once for everybody, whatever the run's seed.
DIGITS_SPLIT_SEED = 0
DIGITS_TEST_SHARE = 0.2


class Source(Protocol):
    """A labelled image set that can be read in any order.

    Attributes:
      class_names: label k is class_names[k].
    """

    class_names: tuple[str, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """{"image": uint8 [H, W, 1 or 3] or the bytes of a JPEG or PNG file, "label": int}.

        Raises:
          BadExampleError: this image cannot be read, and others of the set can.
        """
        ...

    def describe(self, index: int) -> str:
        """Which image this is, for an error message: its file or set, and its index."""
        ...


class Digits:
    """scikit-learn's 1,797 handwritten digits: real 8x8 scans that need no download.

    A fifth (360 images) is the test split, stratified by class and the same for every run.
    Images are uint8 [8, 8, 1], the original's 17 grey levels spread over 0..255.
    """

    class_names = tuple(str(digit) for digit in range(10))

    def __init__(self, split: str):
        # Slow to import, and needed by this source alone.
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


class ImageFolder:
    """Image files in `root/split/class/`, ImageNet's layout; classes in sorted order.

    Every class folder must hold an image: an empty one is mostly a copy that was broken off.
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
            files = sorted(
                entry.name
                for entry in _entries(folder / split / name)
                if entry.name.lower().endswith(IMAGE_SUFFIXES)
            )
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
            with open(self._path(index), "rb", buffering=0) as file:
                image = file.read()
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
    """What a folder holds, hidden files apart.

    Raises:
      BadInputError: it may not be read.
    """
    try:
        return [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        raise BadInputError(f"{folder}: cannot be listed ({error.strerror})") from None


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(folder) if entry.is_dir())


def _need_path(data: Mapping[str, Any]) -> str:
    if not data.get("path"):
        raise BadInputError(
            f"config.data.source={data['source']} needs a directory: add --config.data.path=DIR"
        )
    return os.path.expanduser(data["path"])


def _build_tfds(data: Mapping[str, Any], split: str) -> Source:
    if not data.get("name") and not data.get("path"):
        raise BadInputError(
            "config.data.source=tfds needs a set: add --config.data.name=cifar10, for instance"
        )
    return Tfds(data.get("name") or "", os.path.expanduser(data.get("path") or ""), split)


SOURCES: dict[str, Callable[[Mapping[str, Any], str], Source]] = {
    "digits": lambda data, split: Digits(split),
    "image_folder": lambda data, split: ImageFolder(_need_path(data), split),
    "array_record": lambda data, split: ArrayRecord(_need_path(data), split),
    "tfds": _build_tfds,
}


def build_source(data: Mapping[str, Any], split: str) -> Source:
    """The source that `config.data` names.

    Args:
      data: reads `source` (a key of SOURCES), `path` (all but digits) and `name` (tfds).
      split: the split to open, e.g. "train".

    Raises:
      BadInputError: unknown source or split, or nothing readable at the path; one line.
    """
    return choose(SOURCES, data["source"], field="config.data.source")(data, split)
