"""Parquet files, opened with one-line errors, and the class names that they may hold."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from widenet_jax.errors import BadInputError, first_line


@contextlib.contextmanager
def open_parquet(source: Any, path: object) -> Iterator[Any]:
    """Opens a parquet file as a `pyarrow.parquet.ParquetFile`.

    Args:
      source: a file object or a local path.
      path: the file, for messages.

    Raises:
      BadInputError: the file is damaged, also where that shows as it is read.
    """
    import pyarrow as pa  # slow to import
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        reason = first_line(error)
        raise BadInputError(f"{path}: damaged, or not a parquet file ({reason})") from None


def class_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Returns the names that the `datasets` library stores for a column of labels; () of others."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()
