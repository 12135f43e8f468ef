"""Decoding of every image under a folder, to name all that training could not read."""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import NamedTuple

import tqdm

from widenet_jax.data.input_files import read_regular
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.vision.data.files import decode
from widenet_jax.vision.data.folders import kind_left_out


class CheckedImages(NamedTuple):
    """What `check_images` found.

    Attributes:
      images: how many files have the suffix of an image.
      unreadable: a line for each image that cannot be read, in the order of their paths.
      left_out: path and kind of each file that training does not take for an image.
      empty: folders without any file or folder in them.
    """

    images: int
    unreadable: list[str]
    left_out: list[tuple[str, str]]
    empty: list[str]

    @property
    def counts(self) -> Counter[str]:
        """How many files are left out, by kind."""
        return Counter(kind for _, kind in self.left_out)


def check_images(root: str) -> CheckedImages:
    """Reads and decodes every image file under a folder, whatever its layout.

    Raises:
      BadInputError: there is no such folder.
    """
    if not os.path.isdir(root):
        raise BadInputError(f"{root}: no such directory")
    images, left_out, empty = [], [], []
    for path in walk(root):
        if os.path.isdir(path):
            empty.append(path)
        elif kind := kind_left_out(os.path.basename(path)):
            left_out.append((path, kind))
        else:
            images.append(path)
    with futures.ThreadPoolExecutor() as pool:
        problems = pool.map(problem_of, images)
        found = list(tqdm.tqdm(problems, desc="check", total=len(images), unit="image"))
    return CheckedImages(len(images), [problem for problem in found if problem], left_out, empty)


def walk(root: str) -> Iterator[str]:
    """Yields the files under a folder, and the folders that are empty, in sorted order."""
    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        real = os.path.realpath(folder)
        if real in seen:  # a link back to a folder above
            folders.clear()
            continue
        seen.add(real)
        if not folders and not names:
            yield folder
        for name in sorted(names):
            yield os.path.join(folder, name)


def problem_of(path: str) -> str | None:
    """Returns a line that says why an image file cannot be read; None if it can."""
    try:
        decode(read_regular(path), path)
    except OSError as error:
        return f"{path}: {error.strerror}; replace or remove it"
    except BadExampleError as error:
        return str(error)
    return None
