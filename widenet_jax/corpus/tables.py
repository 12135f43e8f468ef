"""Tables with a header: tab-separated and comma-separated values, read as columns."""

import codecs
import csv
import io
from collections.abc import Sequence
from typing import Any

from etils import epath

from widenet_jax.corpus.files import decoded, guarded, opened
from widenet_jax.errors import BadInputError, BadRowsError

Columns = dict[str, list[Any]]  # of equal length, by name
_MAX_CELL = 1 << 30


def read_bytes(file: epath.Path) -> bytes:
    """Returns a file's content, decompressed; raises BadInputError if it cannot be read."""
    with opened(str(file)) as content:
        return guarded(str(file), content.read)


def read_text(file: epath.Path) -> str:
    """Returns a file's text, without a byte order mark; raises BadInputError as `decoded`."""
    return decoded(read_bytes(file).removeprefix(codecs.BOM_UTF8), str(file), first_line=1)


def from_tsv(file: epath.Path) -> Columns:
    """Reads tab-separated values under a header. Quotes are ordinary characters, as in GLUE."""
    lines = read_text(file).rstrip("\r\n").split("\n")
    return _by_header([line.rstrip("\r").split("\t") for line in lines], file)


def from_csv(file: epath.Path) -> Columns:
    """Reads comma-separated values under a header, quoted where needed."""
    csv.field_size_limit(_MAX_CELL)  # by default 128 KiB, and documents may be longer
    text = read_text(file)
    header = text.partition("\n")[0]
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if separator in header and "," not in header:
            raise BadInputError(
                f"{file}: its header has {name} and no commas; save the table with commas between "
                "the columns as .csv, or with tabs as .tsv"
            )
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise BadInputError(f"{file}: not a CSV file ({error})") from None
    return _by_header([line for line in lines if line], file)


def _by_header(lines: Sequence[Sequence[str]], file: epath.Path) -> Columns:
    header, *rows = lines or [[]]
    if not any(header):
        raise BadInputError(f"{file}: empty")
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


def shown(names: Sequence[str]) -> str:
    """Lists names for a message, the first of them."""
    return ", ".join(map(repr, list(names)[:12])) + (", ..." if len(names) > 12 else "")
