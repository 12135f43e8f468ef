"""Converter of packed .npz files: arrays of encoded images, end to end, and their labels.

A pack holds `jpeg` (uint8, all files end to end), `offsets` (integers [n + 1]), `labels` (integers
[n]) and `class_names` ([classes]); image i is jpeg[offsets[i]:offsets[i + 1]].
"""

import contextlib
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from widenet_jax.data.input_files import MAX_IMAGE_BYTES, open_input
from widenet_jax.errors import BadInputError, first_line
from widenet_jax.vision.prepare.convert import Converted, check_labels, same_classes

MAX_TABLE_BYTES = 256 << 20  # of offsets, labels and class names, which are read whole
# RuntimeError: an encrypted file. NotImplementedError: a compression that Python does not know.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, RuntimeError,
    NotImplementedError,
)  # fmt: skip


class Tables(NamedTuple):
    """The small arrays of a pack, checked: class names, labels [n] and offsets [n + 1]."""

    class_names: tuple[str, ...]
    labels: np.ndarray
    offsets: np.ndarray


def read_npz(files: Mapping[str, Sequence[str]]) -> Converted:
    """Reads .npz packs; the images are streamed, never held together.

    Args:
      files: for each split its packs, in order.

    Raises:
      BadInputError: a pack is damaged, or its arrays are not as this module's docstring says.
    """
    names: dict[str, tuple[str, ...]] = {}
    counts: dict[str, int | None] = {}
    for split, paths in files.items():
        tables = {path: _read_tables(path) for path in paths}
        names |= {path: table.class_names for path, table in tables.items()}
        counts[split] = sum(len(table.labels) for table in tables.values())
    splits = {split: _examples(paths) for split, paths in files.items()}
    return Converted(same_classes(names), splits, counts)


def _examples(paths: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    for path in paths:
        tables = _read_tables(path)
        with _open_pack(path) as pack, _open_array(pack, path, "jpeg") as (jpeg, _, _):
            sizes = np.diff(tables.offsets).tolist()
            for label, size in zip(tables.labels.tolist(), sizes, strict=True):
                yield label, jpeg.read(size)
            jpeg.read(1)  # at the end of the array, zipfile verifies its checksum


@contextlib.contextmanager
def _open_pack(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        with open_input(path) as file, zipfile.ZipFile(file) as pack:
            yield pack
    except _ZIP_ERRORS as error:
        reason = first_line(error)
        raise BadInputError(f"{path}: damaged, or not an .npz pack ({reason})") from None


def _read_tables(path: str) -> Tables:
    """Reads and checks all arrays of a pack but the images."""
    with _open_pack(path) as pack:
        class_names = _read_table(pack, path, "class_names", "Uiu")
        labels = _read_table(pack, path, "labels", "iu")
        offsets = _read_table(pack, path, "offsets", "iu").astype(np.int64)
        with _open_array(pack, path, "jpeg") as (_, dtype, shape):
            if dtype != np.uint8 or len(shape) != 1:
                raise BadInputError(f"{path}: jpeg must be uint8 in one dimension, not {dtype}")
    check_labels(labels, path, len(class_names))
    sizes = np.diff(offsets)
    ends = (0, shape[0])
    if len(offsets) != len(labels) + 1 or (offsets[0], offsets[-1]) != ends or (sizes < 0).any():
        raise BadInputError(f"{path}: offsets do not fit the labels and the image bytes")
    if (sizes > MAX_IMAGE_BYTES).any():
        record = int(sizes.argmax())
        raise BadInputError(f"{path} record {record}: an image of {sizes[record]:,} bytes: too big")
    return Tables(tuple(str(name) for name in class_names.tolist()), labels, offsets)


def _read_table(pack: zipfile.ZipFile, path: str, key: str, kinds: str) -> np.ndarray:
    """Reads a small array whole.

    Args:
      pack: the open pack.
      path: its file, for messages.
      key: the array's name.
      kinds: the dtype kinds it may have, as NumPy's letters.
    """
    with _open_array(pack, path, key) as (content, dtype, shape):
        if dtype.kind not in kinds or len(shape) != 1 or not dtype.itemsize:
            allowed = "text or integers" if "U" in kinds else "integers"
            raise BadInputError(
                f"{path}: {key} must be {allowed} in one dimension, not {dtype} of shape {shape}"
            )
        if math.prod(shape) * dtype.itemsize > MAX_TABLE_BYTES:
            raise BadInputError(f"{path}: {key} of shape {shape} is larger than any image set's")
        return np.ndarray(shape, dtype, content.read())


@contextlib.contextmanager
def _open_array(
    pack: zipfile.ZipFile, path: str, key: str
) -> Iterator[tuple[IO[bytes], np.dtype, tuple[int, ...]]]:
    """Opens an array at its first element: (content, dtype, shape).

    Raises:
      BadInputError: the array is absent, or its header does not fit its size in the pack.
    """
    try:
        stored = pack.getinfo(f"{key}.npy")
    except KeyError:
        raise BadInputError(
            f"{path}: no array {key}; a pack has jpeg, offsets, labels and class_names"
        ) from None
    with pack.open(stored) as content:
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        try:
            shape, _, dtype = read_header[npy.read_magic(content)](content)
        except _ZIP_ERRORS:
            raise
        except Exception as error:  # NumPy's parser raises many kinds
            reason = first_line(error)
            raise BadInputError(f"{path}: {key} has an unreadable header ({reason})") from None
        if dtype.hasobject:
            raise BadInputError(f"{path}: {key} holds Python objects, which are never unpickled")
        expected = stored.file_size - content.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != expected:
            raise BadInputError(
                f"{path}: {key} declares {dtype} of shape {shape}, but holds {expected:,} bytes"
            )
        yield content, dtype, shape
