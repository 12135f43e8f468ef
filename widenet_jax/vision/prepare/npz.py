"""Converter of packed .npz files: arrays of encoded images, end to end, and their labels.

A pack holds `jpeg` (uint8, all files end to end), `offsets` (integers [n + 1]), `labels` (integers
[n]) and `class_names` ([classes]); image i is jpeg[offsets[i]:offsets[i + 1]].
"""

import contextlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from widenet_jax.data.input_files import MAX_IMAGE_BYTES, open_input
from widenet_jax.errors import BadInputError, first_line
from widenet_jax.vision.prepare.convert import Converted, check_labels, same_classes

MAX_TABLE_BYTES = 256 << 20  # of offsets, labels and class names, which are read whole


class Tables(NamedTuple):
    """The small arrays of a pack, checked: class names, labels [n] and the images' sizes [n]."""

    class_names: tuple[str, ...]
    labels: np.ndarray
    sizes: np.ndarray


def read_npz(files: Mapping[str, Sequence[str]]) -> Converted:
    """Reads .npz packs; the images are streamed, never held together.

    Args:
      files: for each split its packs, in order.

    Raises:
      BadInputError: a pack is damaged, or its arrays are not as this module's docstring says.
    """
    tables = {path: _read_tables(path) for paths in files.values() for path in paths}
    counts = {split: sum(len(tables[path].labels) for path in files[split]) for split in files}
    names = same_classes({path: table.class_names for path, table in tables.items()})
    return Converted(names, {split: _examples(paths) for split, paths in files.items()}, counts)


def _examples(paths: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    for path in paths:
        tables = _read_tables(path)
        with _open_pack(path) as pack, _open_images(pack) as (content, _):
            for label, size in zip(tables.labels.tolist(), tables.sizes.tolist(), strict=True):
                yield label, content.read(size)
            content.read(1)  # at the end of the array, zipfile verifies its checksum


@contextlib.contextmanager
def _open_pack(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        with open_input(path) as file, zipfile.ZipFile(file) as pack:
            yield pack
    except BadInputError:
        raise
    except Exception as error:  # zipfile and NumPy's parser raise many kinds
        reason = first_line(error)
        raise BadInputError(f"{path}: damaged, or not an .npz pack ({reason})") from None


@contextlib.contextmanager
def _open_images(pack: zipfile.ZipFile) -> Iterator[tuple[IO[bytes], int]]:
    """Opens the images at the first one, with the number of bytes."""
    member = pack.getinfo("jpeg.npy")
    with pack.open(member) as content:
        if npy.read_magic(content) != (1, 0):
            raise ValueError("jpeg has another version of NumPy's format")
        shape, _, dtype = npy.read_array_header_1_0(content)
        size = member.file_size - content.tell()
        if dtype != np.uint8 or shape != (size,):
            raise ValueError(f"jpeg must be uint8 [{size}], not {dtype} of shape {shape}")
        yield content, size


def _read_tables(path: str) -> Tables:
    """Reads and checks all arrays of a pack but the images."""
    with _open_pack(path) as pack:
        class_names = _read_table(pack, "class_names", "Uiu")
        labels = _read_table(pack, "labels", "iu")
        offsets = _read_table(pack, "offsets", "iu").astype(np.int64)
        with _open_images(pack) as (_, num_bytes):
            pass
    check_labels(labels, path, len(class_names))
    sizes = np.diff(offsets)
    fit = len(sizes) == len(labels) and (offsets[0], offsets[-1]) == (0, num_bytes)
    if not fit or (sizes < 0).any():
        raise BadInputError(f"{path}: offsets do not fit the labels and the image bytes")
    if (sizes > MAX_IMAGE_BYTES).any():
        record = int(sizes.argmax())
        raise BadInputError(f"{path} record {record}: an image of {sizes[record]:,} bytes: too big")
    return Tables(tuple(str(name) for name in class_names.tolist()), labels, sizes)


def _read_table(pack: zipfile.ZipFile, key: str, kinds: str) -> np.ndarray:
    """Reads an array of one dimension; `kinds` are NumPy's letters of the dtypes it may have."""
    member = pack.getinfo(f"{key}.npy")
    if member.file_size > MAX_TABLE_BYTES:
        raise ValueError(f"{key} is larger than any image set's")
    with pack.open(member) as content:
        table = npy.read_array(content, allow_pickle=False)
    if table.dtype.kind not in kinds or table.ndim != 1:
        allowed = "text or integers" if "U" in kinds else "integers"
        raise ValueError(f"{key} must be {allowed} [n], not {table.dtype} of shape {table.shape}")
    return table
