"""Readers of tables of texts: TSV, CSV, JSON, JSON lines and parquet, as columns."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from widenet_jax.data.input_files import class_names, open_parquet
from widenet_jax.errors import BadInputError, BadRowsError, first_line
from widenet_jax.text.data.split_files import read_bytes, read_text, suffix_of

MAX_CELL = 1 << 30

Columns = dict[str, list[Any]]  # of equal length, by name


def read_columns(file: epath.Path) -> Columns:
    """Reads a table.

    Raises:
      BadInputError: it is damaged, of another format than its suffix says, or of none of `READERS`.
    """
    if (suffix := suffix_of(file)) not in READERS:
        known = ", ".join(READERS)
        raise BadInputError(f"{file}: no table by its suffix; there are {known}, also with .gz")
    return READERS[suffix](file)


def _from_tsv(file: epath.Path) -> Columns:
    """Reads tab-separated values under a header. Quotes are ordinary characters, as in GLUE."""
    lines = [line.rstrip("\r").split("\t") for line in read_text(file).split("\n")]
    while lines and lines[-1] == [""]:
        lines.pop()
    return _by_header(lines, file)


def _from_csv(file: epath.Path) -> Columns:
    """Reads comma-separated values under a header, quoted where needed."""
    csv.field_size_limit(MAX_CELL)  # by default 128 KiB, and documents may be longer
    try:
        lines = list(csv.reader(io.StringIO(read_text(file), newline=""), strict=True))
    except csv.Error as error:
        raise BadInputError(f"{file}: not a CSV file ({error})") from None
    return _by_header([line for line in lines if line], file)


def _by_header(lines: Sequence[Sequence[str]], file: epath.Path) -> Columns:
    if not lines:
        raise BadInputError(f"{file}: empty")
    header, *rows = lines
    if len(set(header)) < len(header):
        raise BadInputError(f"{file}: two columns have the same name; there are {shown(header)}")
    if odd := [
        f"{file} line {number}: {len(row)} columns, and the header names {len(header)} "
        f"({shown(header)})"
        for number, row in enumerate(rows, 2)
        if len(row) != len(header)
    ]:
        raise BadRowsError(odd)
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def _from_json(file: epath.Path) -> Columns:
    """Reads a list of objects, or an object a line."""
    text = read_text(file).strip()
    try:
        if text.startswith("["):
            records = json.loads(text)
        else:
            records = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
        raise BadInputError(
            f"{file}: neither a JSON list of objects nor an object a line ({reason})"
        ) from None
    if not records or not all(isinstance(record, dict) for record in records):
        raise BadInputError(f"{file}: holds no list of objects, such as [{{'text': 'a'}}, ...]")
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def _from_parquet(file: epath.Path) -> Columns:
    """Reads parquet; integers that the `datasets` library has names for become these names."""
    try:
        with open_parquet(io.BytesIO(read_bytes(file)), file) as opened:
            table = opened.read()
            columns = table.to_pydict()
    except UnicodeDecodeError as error:
        raise BadInputError(f"{file}: holds a text that is not UTF-8 ({error})") from None
    for name, values in columns.items():
        if known := class_names(table.schema.metadata, name):
            inside = range(len(known))
            columns[name] = [known[v] if v in inside else None for v in values]
    return columns


def shown(names: Sequence[str]) -> str:
    """Lists names for a message, the first of them."""
    return ", ".join(map(repr, list(names)[:12])) + (", ..." if len(names) > 12 else "")


READERS: dict[str, Callable[[epath.Path], Columns]] = {
    ".tsv": _from_tsv,
    ".csv": _from_csv,
    ".json": _from_json,
    ".jsonl": _from_json,
    ".parquet": _from_parquet,
}
