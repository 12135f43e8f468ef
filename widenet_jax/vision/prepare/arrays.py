"""Readers of files that hold many images: .npz packs, and Hugging Face's parquet files."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import cv2
import numpy as np
from numpy.lib import format as npy

from widenet_jax.config.parser import Options
from widenet_jax.data.input_files import MAX_IMAGE_BYTES, open_input, open_parquet
from widenet_jax.data.input_files import class_names as class_names_of
from widenet_jax.data.labelled import names_text
from widenet_jax.errors import BadInputError, first_line
from widenet_jax.vision.prepare.packing import (
    Converted,
    check_labels,
    composed,
    same_classes,
    split_files,
)

MAX_TABLE_BYTES = 256 << 20  # of the offsets, labels and class names of a pack
MAX_CLASSES = 1_000_000  # a label that a damaged file holds must not size the table of class names
IMAGE_ROWS, LABEL_ROWS = 256, 1 << 16  # read at once


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
    files = split_files(options.input)
    names, labels, sizes = {}, {}, {}
    for path in dict.fromkeys(itertools.chain.from_iterable(files.values())):
        with _open_pack(path) as pack:
            read = _pixel_tables if "images" in pack.files else _tables
            names[path], labels[path], sizes[path] = read(pack, path)
            if bad := pack.zip.testzip():
                raise ValueError(f"Bad CRC-32 for file {bad}")

    def examples(paths: Sequence[str]) -> Iterator[tuple[int, bytes]]:
        for path in paths:
            with _open_pack(path) as pack:
                if sizes[path] is None:
                    own = (number_of.get(composed(k), k) for k in labels[path].tolist())
                    yield from zip(own, map(png, pack["images"]), strict=True)
                    continue
                with _open_images(pack) as (content, _):
                    own = zip(labels[path].tolist(), sizes[path].tolist(), strict=True)
                    for label, size in own:
                        yield label, content.read(size)

    counts = {split: sum(len(labels[path]) for path in files[split]) for split in files}
    splits = {split: examples(paths) for split, paths in files.items()}
    found = set().union(*(of.tolist() for of in labels.values()))
    class_names = _names_of({*map(composed, found)}, names)
    number_of = {name: number for number, name in enumerate(class_names)}
    return Converted(class_names, splits, counts)


def _names_of(labels: set, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the class names of labels: texts, sorted, or of integers `names`, or "0", "1", ..."""
    if len({*map(type, labels)}) > 1:
        problem = "labels are text in some files and integers in others; give text in all"
        raise BadInputError(f"{names_text([*names])}: {problem}")
    if labels and isinstance(min(labels), str):
        return tuple(sorted(labels))
    return same_classes(names) or tuple(map(str, range(max(labels, default=0) + 1)))


def png(pixels: np.ndarray) -> bytes:
    """Encodes uint8 [H, W] or [H, W, 1 or 3], red first."""
    image = pixels if pixels.ndim == 2 else pixels[..., ::-1]  # OpenCV takes blue first
    return cv2.imencode(".png", np.ascontiguousarray(image))[1].tobytes()


@contextlib.contextmanager
def _open_pack(path: str) -> Iterator[Any]:
    try:
        with open_input(path) as file, np.load(file, allow_pickle=False) as pack:
            yield pack
    except BadInputError:
        raise
    except Exception as error:  # zipfile and NumPy's parser raise many kinds
        reason = first_line(error)
        raise BadInputError(f"{path}: damaged, or not an .npz pack ({reason})") from None


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
    """Returns the class names, () without, and the labels [n] of a file of `images`, checked."""
    wanted = ("class_names", "labels") if "class_names" in pack.files else ("labels",)
    tables, images = _read_tables(pack, path, *wanted), pack["images"]
    names, labels = tuple(map(str, tables.get("class_names", ()))), tables["labels"]
    shapes = images.ndim in (3, 4) and images.shape[3:] in ((), (1,), (3,))
    if images.dtype != np.uint8 or not shapes:
        raise BadInputError(
            f"{path}: images is {images.dtype} {list(images.shape)}; give uint8 [n, H, W], "
            "[n, H, W, 1] or [n, H, W, 3]"
        )
    if len(labels) != len(images):
        raise BadInputError(f"{path}: {len(images)} images and {len(labels)} labels")
    if labels.dtype.kind != "U":
        check_labels(labels, path, len(names) or MAX_CLASSES)
    return names, labels, None


def _read_tables(pack: Any, path: str, *keys: str) -> dict[str, np.ndarray]:
    """Returns one-dimensional arrays of a file by name, checked."""
    if missing := [key for key in keys if key not in pack.files]:
        raise BadInputError(
            f"{path}: holds {', '.join(pack.files)}, no {missing[0]}; give images and labels, or "
            "jpeg, offsets, labels and class_names"
        )
    tables = {}
    for key in keys:
        kinds = "Uiu" if key == "class_names" or keys == ("labels",) else "iu"
        if pack.zip.getinfo(f"{key}.npy").file_size > MAX_TABLE_BYTES:
            raise ValueError(f"{key} is larger than any image set's")
        table = tables[key] = pack[key]
        if table.dtype.kind not in kinds or table.ndim != 1:
            allowed = "text or integers" if "U" in kinds else "integers"
            found = f"{table.dtype} of shape {table.shape}"
            raise BadInputError(f"{path}: {key} must be {allowed} [n], not {found}")
    return tables


def _tables(pack: Any, path: str) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Returns the class names, the labels [n] and the images' sizes [n] of a pack, checked."""
    tables = _read_tables(pack, path, "class_names", "labels", "offsets")
    with _open_images(pack) as (_, num_bytes):
        pass
    names, labels = tuple(map(str, tables["class_names"].tolist())), tables["labels"]
    check_labels(labels, path, len(names))
    offsets = tables["offsets"].astype(np.int64)
    sizes = np.diff(offsets)
    fit = len(sizes) == len(labels) and (offsets[0], offsets[-1]) == (0, num_bytes)
    if not fit or (sizes < 0).any():
        raise BadInputError(f"{path}: offsets do not fit the labels and the image bytes")
    for record in np.flatnonzero(sizes > MAX_IMAGE_BYTES)[:1]:
        check_size(sizes[record], f"{path} record {record}")
    return names, labels, sizes


# --- Parquet --------------------------------------------------------------------------------------


def read_parquet(options: Options) -> Converted:
    """Reads parquet files of images, each bytes or a struct {bytes, path}, with a label.

    A label is a text, the class's name, or an integer. The names of integers come from the
    description that the `datasets` library stores in the file; without one they are "0", "1", ...

    Raises:
      BadInputError: a file is damaged, or has other columns, or a label is no class.
    """
    files, names, found = split_files(options.input), {}, set()
    columns = [options.image_column, options.label_column]
    counts: dict[str, int | None] = dict.fromkeys(files, 0)
    for split, paths in files.items():
        for path in paths:
            with _open_table(path) as file:
                _check_columns(file.schema_arrow, path, *columns)
                names[path] = class_names_of(file.schema_arrow.metadata, columns[1])
                num_classes = len(names[path]) or MAX_CLASSES
                found.update(map(composed, _labels_of(file, path, columns[1], num_classes)))
                counts[split] += file.metadata.num_rows
    class_names = _names_of(found, names)
    number_of = {name: number for number, name in enumerate(class_names)}

    def examples(paths: Sequence[str]) -> Iterator[tuple[int, bytes, str]]:
        for path in paths:
            with _open_table(path) as file:
                batches = file.iter_batches(IMAGE_ROWS, columns=columns)
                rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
                for number, row in enumerate(rows):
                    image, label = row[columns[0]], composed(row[columns[1]])
                    where = f"{path} record {number}"
                    yield number_of.get(label, label), _image_bytes(image, where), where

    splits = {split: examples(paths) for split, paths in files.items()}
    return Converted(class_names, splits, counts)


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


def _open_table(path: str) -> contextlib.AbstractContextManager:
    """Opens a regular file; Arrow reads by the path, without Python's file object."""
    open_input(path).close()
    return open_parquet(path, path)


def _check_columns(schema: Any, path: str, image_column: str, label_column: str) -> None:
    import pyarrow as pa  # slow to import

    for column, option in ((image_column, "--image-column"), (label_column, "--label-column")):
        if schema.names.count(column) != 1:
            known = f"there are {', '.join(schema.names)} (choose with {option})"
            raise BadInputError(f"{path}: no column {column!r}; {known}")
    label, image = schema.field(label_column).type, schema.field(image_column).type
    label = label.value_type if pa.types.is_dictionary(label) else label
    if not (pa.types.is_integer(label) or label in (pa.string(), pa.large_string())):
        raise BadInputError(
            f"{path}: column {label_column!r} holds {label}; needs integers or text"
        )
    if not _holds_images(image):
        raise BadInputError(f"{path}: column {image_column!r} holds {image}; needs images as bytes")


def _labels_of(file: Any, path: str, column: str, num_classes: int) -> set:
    """Checks all labels of a file and returns those that occur."""
    found, row = set(), 0
    for batch in file.iter_batches(LABEL_ROWS, columns=[column]):
        labels = batch.column(0)
        if labels.null_count:
            row += labels.is_null().index(True).as_py()
            raise BadInputError(f"{path} record {row}: column {column!r} is null; needs a label")
        values = labels.to_numpy(zero_copy_only=False)
        if values.dtype.kind in "iu":
            check_labels(values, path, num_classes, first=row)
        found.update(values.tolist())
        row += len(values)
    return found


def check_size(num_bytes: int, where: str) -> None:
    """Raises BadInputError where an image is too large to be one."""
    if num_bytes > MAX_IMAGE_BYTES:
        raise BadInputError(f"{where}: an image of {num_bytes:,} bytes: too big; remove it")


def _image_bytes(value: Any, where: str) -> bytes:
    image = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(image, bytes):
        raise BadInputError(f"{where}: the image is not stored in the file (no bytes)")
    check_size(len(image), where)
    return image
