"""Readers of files that hold many images: .npz packs, and Hugging Face's parquet files."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

import cv2
import numpy as np
from numpy.lib import format as npy

from widenet_jax.config.parser import Options
from widenet_jax.data.input_files import MAX_IMAGE_BYTES, class_names, open_input, open_parquet
from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.vision.prepare.packing import Converted, Images, check_labels, composed, joined

MAX_TABLE_BYTES = 256 << 20  # of the offsets, labels and class names of a pack
MAX_CLASSES = 1_000_000  # a label that a damaged file holds must not size the table of class names
IMAGE_ROWS, LABEL_ROWS = 256, 1 << 16  # read at once
IMAGE_COLUMNS = ("image", "img")  # of a parquet file
# The tables of an .npz file and their kinds of dtypes, where it names the classes, or does not.
NAMED, UNNAMED = {"class_names": "Uiu", "labels": "iu"}, {"labels": "Uiu"}


# --- .npz packs -----------------------------------------------------------------------------------


def read_npz(options: Options) -> Converted:
    """Reads .npz files of images and their labels.

    A file holds `images` (uint8 [n, H, W], [n, H, W, 1] or [n, H, W, 3]), which become PNG files,
    and `labels` (integers [n], perhaps with `class_names`, [classes], or text [n]). Or it is a pack
    of encoded images: `jpeg` (uint8, all files end to end), `offsets` (integers [n + 1]), `labels`
    and `class_names`, where image i is jpeg[offsets[i]:offsets[i + 1]]; these are streamed, never
    held together.

    Raises:
      BadInputError: a file is damaged, or holds other arrays.
    """
    return joined(options.input, _read_pack)


def _read_pack(path: str) -> Images:
    with _open_pack(path) as pack:
        read = _pixel_tables if "images" in pack.files else _tables
        names, labels, sizes = read(pack, path)
        if bad := pack.zip.testzip():
            raise ValueError(f"Bad CRC-32 for file {bad}")

    def rows() -> Iterator[tuple[Any, bytes]]:
        with _open_pack(path) as pack:
            if sizes is None:
                yield from zip(labels.tolist(), map(png, pack["images"]), strict=True)
                return
            with _open_images(pack) as (content, _):
                yield from zip(labels.tolist(), map(content.read, sizes.tolist()), strict=True)

    return Images(names, {*map(composed, labels.tolist())}, len(labels), rows)


def png(pixels: np.ndarray) -> bytes:
    """Encodes uint8 [H, W] or [H, W, 1 or 3], red first."""
    image = pixels if pixels.ndim == 2 else pixels[..., ::-1]  # OpenCV takes blue first
    return cv2.imencode(".png", np.ascontiguousarray(image))[1].tobytes()


@contextlib.contextmanager
def _open_pack(path: str) -> Iterator[Any]:
    damaged = refusing(f"{path}: damaged, or not an .npz pack", Exception)
    with damaged, open_input(path) as file, np.load(file, allow_pickle=False) as pack:
        yield pack


@contextlib.contextmanager
def _open_images(pack: Any) -> Iterator[tuple[IO[bytes], int]]:
    """Opens the images at the first one, with the number of bytes."""
    with pack.zip.open("jpeg.npy") as content:
        if npy.read_magic(content) != (1, 0):
            raise ValueError("jpeg has another version of NumPy's format")
        shape, _, dtype = npy.read_array_header_1_0(content)
        size = pack.zip.getinfo("jpeg.npy").file_size - content.tell()
        if dtype != np.uint8 or shape != (size,):
            raise ValueError(f"jpeg must be uint8 [{size}], not {dtype} of shape {shape}")
        yield content, size


def _pixel_tables(pack: Any, path: str) -> tuple[tuple[str, ...], np.ndarray, None]:
    """Returns the class names, () without, and the labels [n] of a file of `images`."""
    names, labels, _ = _read_tables(pack, path, NAMED if "class_names" in pack.files else UNNAMED)
    images = pack["images"]
    fit = images.ndim in (3, 4) and images.shape[3:] in ((), (1,), (3,))
    given = f"images is {images.dtype} {list(images.shape)}; give uint8 [n, H, W], "
    refuse(
        path,
        (images.dtype != np.uint8 or not fit, given + "[n, H, W, 1] or [n, H, W, 3]"),
        (len(labels) != len(images), f"{len(images)} images and {len(labels)} labels"),
    )
    if labels.dtype.kind != "U":
        check_labels(labels, path, len(names) or MAX_CLASSES)
    return names, labels, None


def _tables(pack: Any, path: str) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Returns the class names, the labels [n] and the images' sizes [n] of a pack."""
    names, labels, tables = _read_tables(pack, path, NAMED | {"offsets": "iu"})
    with _open_images(pack) as (_, num_bytes):
        pass
    check_labels(labels, path, len(names))
    offsets = tables["offsets"].astype(np.int64)
    sizes = np.diff(offsets)
    fit = len(sizes) == len(labels) and (offsets[0], offsets[-1]) == (0, num_bytes)
    lost = "offsets do not fit the labels and the image bytes"
    refuse(path, (not fit or (sizes < 0).any(), lost))
    for record in np.flatnonzero(sizes > MAX_IMAGE_BYTES)[:1]:
        refuse(f"{path} record {record}", too_big(sizes[record]))
    return names, labels, sizes


def _read_tables(
    pack: Any, path: str, kinds: dict[str, str]
) -> tuple[tuple[str, ...], np.ndarray, dict[str, np.ndarray]]:
    """Returns the class names, () without, the labels, and all arrays of `kinds`, each [n]."""
    missing = [key for key in kinds if key not in pack.files]
    known = f"holds {', '.join(pack.files)}, no {''.join(missing[:1])}; give images and labels, or "
    refuse(path, (missing, known + "jpeg, offsets, labels and class_names"))
    tables = {}
    for key, allowed in kinds.items():
        if pack.zip.getinfo(f"{key}.npy").file_size > MAX_TABLE_BYTES:
            raise ValueError(f"{key} is larger than any image set's")
        table = tables[key] = pack[key]
        what = "text or integers" if "U" in allowed else "integers"
        problem = f"{key} must be {what} [n], not {table.dtype} of shape {table.shape}"
        refuse(path, (table.dtype.kind not in allowed or table.ndim != 1, problem))
    names = tables.get("class_names", np.array([]))
    return tuple(map(str, names.tolist())), tables["labels"], tables


# --- Parquet --------------------------------------------------------------------------------------


def read_parquet(options: Options) -> Converted:
    """Reads parquet files of images, each bytes or a struct {bytes, path}, with a label.

    Without options the images are in the column `image` or `img`, the labels in `label`.

    A label is a text, the class's name, or an integer. The names of integers come from the
    description that the `datasets` library stores in the file; without one they are "0", "1", ...

    Raises:
      BadInputError: a file is damaged, or has other columns, or a label is no class.
    """
    images = [options.image_column] if options.image_column else IMAGE_COLUMNS
    choices = {"--image-column": images, "--label-column": [options.label_column or "label"]}
    return joined(options.input, partial(_read_table, choices=choices))


def _read_table(path: str, choices: Mapping[str, Sequence[str]]) -> Images:
    with _open_table(path) as file:
        schema, columns = file.schema_arrow, []
        for option, names in choices.items():
            columns += (found := [name for name in schema.names if name in names])
            known = f"there are {', '.join(schema.names)} (choose with {option})"
            needed = f"needs one column {' or '.join(map(repr, names))}; {known}"
            refuse(path, (len(found) != 1, needed))
        image, label = (schema.field(column).type for column in columns)
        no_labels = f"column {columns[1]!r} holds {label}; needs integers or text"
        no_images = f"column {columns[0]!r} holds {image}; needs images as bytes"
        refuse(path, (not _names_classes(label), no_labels), (not _holds_images(image), no_images))
        names = class_names(schema.metadata, columns[1])
        labels = _labels_of(file, path, columns[1], len(names) or MAX_CLASSES)
        count = file.metadata.num_rows

    def rows() -> Iterator[tuple[Any, bytes, str]]:
        with _open_table(path) as file:
            batches = file.iter_batches(IMAGE_ROWS, columns=columns)
            found = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, row in enumerate(found):
                image, where = row[columns[0]], f"{path} record {number}"
                image = image.get("bytes") if isinstance(image, dict) else image
                stored = isinstance(image, bytes)
                lost = "the image is not stored in the file (no bytes)"
                refuse(where, (not stored, lost), too_big(len(image) if stored else 0))
                yield row[columns[1]], image, where

    return Images(names, labels, count, rows)


def image_column(path: str, text: str) -> str:
    """Returns the name of a parquet file's first column of images, in bytes; "" without one.

    Beside a column `text` bytes may be anything, and only a struct {bytes, path} is an image.
    """
    with _open_table(path) as file:
        fields = [field for field in file.schema_arrow if _holds_images(field.type)]
        plain = text not in file.schema_arrow.names
        return next((field.name for field in fields if plain or field.type.num_fields), "")


def _holds_images(kind: Any) -> bool:
    import pyarrow as pa  # slow to import

    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _names_classes(kind: Any) -> bool:
    import pyarrow as pa  # slow to import

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_integer(kind) or kind in (pa.string(), pa.large_string())


def _open_table(path: str) -> contextlib.AbstractContextManager:
    """Opens a regular file; Arrow reads by the path, without Python's file object."""
    open_input(path).close()
    return open_parquet(path, path)


def _labels_of(file: Any, path: str, column: str, num_classes: int) -> set:
    """Returns the labels that occur in a file; all are checked."""
    found, row = set(), 0
    for batch in file.iter_batches(LABEL_ROWS, columns=[column]):
        labels = batch.column(0)
        if labels.null_count:
            row += labels.is_null().index(True).as_py()
            raise BadInputError(f"{path} record {row}: column {column!r} is null; needs a label")
        values = labels.to_numpy(zero_copy_only=False)
        if values.dtype.kind in "iu":
            check_labels(values, path, num_classes, first=row)
        found.update(map(composed, values.tolist()))
        row += len(values)
    return found


def too_big(num_bytes: int) -> tuple[bool, str]:
    """Returns the row of `refuse` for an image of so many bytes."""
    return num_bytes > MAX_IMAGE_BYTES, f"an image of {num_bytes:,} bytes: too big; remove it"
