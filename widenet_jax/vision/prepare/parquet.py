"""Converter of Hugging Face's parquet files of images."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from widenet_jax.data.input_files import MAX_IMAGE_BYTES, open_input, open_parquet
from widenet_jax.data.input_files import class_names as class_names_of
from widenet_jax.errors import BadInputError
from widenet_jax.vision.prepare.convert import Converted, check_labels, same_classes

MAX_CLASSES = 1_000_000  # a label that a damaged file holds must not size the table of class names
IMAGE_ROWS, LABEL_ROWS = 256, 1 << 16  # read at once


def read_parquet(
    files: Mapping[str, Sequence[str]], *, image_column: str = "image", label_column: str = "label"
) -> Converted:
    """Reads parquet files of images, each bytes or a struct {bytes, path}, with an integer label.

    Class names come from the description that the `datasets` library stores in the file. Without
    one, the labels that the files hold are numbered: "0", "1", ...

    Raises:
      BadInputError: a file is damaged, or has other columns, or a label is no class.
    """
    names: dict[str, tuple[str, ...]] = {}
    counts: dict[str, int | None] = {}
    highest = 0
    for split, paths in files.items():
        counts[split] = 0
        for path in paths:
            with open_parquet(_checked(path), path) as file:
                _check_columns(file, path, image_column, label_column)
                names[path] = class_names_of(file.schema_arrow.metadata, label_column)
                num_classes = len(names[path]) or MAX_CLASSES
                highest = max(highest, _highest_label(file, path, label_column, num_classes))
                counts[split] += file.metadata.num_rows
    class_names = same_classes(names) or tuple(str(label) for label in range(highest + 1))

    def examples(paths: Sequence[str]) -> Iterator[tuple[int, bytes]]:
        for path in paths:
            with open_parquet(_checked(path), path) as file:
                row = 0
                for batch in file.iter_batches(IMAGE_ROWS, columns=[image_column, label_column]):
                    images, labels = batch.column(image_column), batch.column(label_column)
                    for image, label in zip(images.to_pylist(), labels.to_pylist(), strict=True):
                        yield label, _image_bytes(image, path, row)
                        row += 1

    splits = {split: examples(paths) for split, paths in files.items()}
    return Converted(class_names, splits, counts)


def _checked(path: str) -> str:
    """Returns the path of a regular file; Arrow reads by the path, without Python's file object."""
    open_input(path).close()
    return path


def _check_columns(file: Any, path: str, image_column: str, label_column: str) -> None:
    schema = file.schema_arrow
    for column, option in ((image_column, "--image-column"), (label_column, "--label-column")):
        if schema.names.count(column) != 1:
            known = f"there are {', '.join(schema.names)} (choose with {option})"
            raise BadInputError(f"{path}: no column {column!r}; {known}")
    label, image = schema.field(label_column).type, schema.field(image_column).type
    if not pa.types.is_integer(label):
        raise BadInputError(f"{path}: column {label_column!r} holds {label}; needs integers")
    if pa.types.is_struct(image) and image.get_field_index("bytes") >= 0:
        image = image.field("bytes").type
    if not (pa.types.is_binary(image) or pa.types.is_large_binary(image)):
        raise BadInputError(f"{path}: column {image_column!r} holds {image}; needs images as bytes")


def _highest_label(file: Any, path: str, column: str, num_classes: int) -> int:
    """Checks all labels of a file and returns the highest; 0 for an empty file."""
    highest = row = 0
    for batch in file.iter_batches(LABEL_ROWS, columns=[column]):
        labels = batch.column(0)
        if labels.null_count:
            row += int(np.flatnonzero(labels.is_null().to_numpy(zero_copy_only=False))[0])
            raise BadInputError(f"{path} record {row}: column {column!r} is null; needs a label")
        values = labels.to_numpy()
        check_labels(values, path, num_classes, first=row)
        highest = max(highest, int(values.max(initial=0)))
        row += len(values)
    return highest


def _image_bytes(value: Any, path: str, row: int) -> bytes:
    image = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(image, bytes):
        raise BadInputError(f"{path} record {row}: the image is not stored in the file (no bytes)")
    if len(image) > MAX_IMAGE_BYTES:
        raise BadInputError(f"{path} record {row}: an image of {len(image):,} bytes: too big")
    return image
