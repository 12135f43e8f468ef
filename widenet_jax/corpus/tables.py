"""Tables with a header: tab-separated and comma-separated values, read as columns."""

import codecs
import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

from widenet_jax.corpus.files import UTF16, decoded, opened
from widenet_jax.errors import BadInputError, BadRowsError, refuse, refusing

Columns = dict[str, list[Any]]  # of equal length, by name
_MAX_CELL = 1 << 30
# Spaces, controls and marks without a width. Tags, above them, tell some flags apart.
_INVISIBLE = {"Zs", "Zl", "Zp", "Cc", "Cf"}
_TAGS = "\U000e0000"


def read_bytes(file: epath.Path) -> bytes:
    """Returns a file's content, decompressed; raises BadInputError if it cannot be read."""
    with opened(str(file)) as content:
        return content.read()


def read_text(file: epath.Path) -> str:
    """Returns a file's text, without a byte order mark, by which UTF-16 is known.

    Raises:
      BadInputError: as `decoded`.
    """
    content = read_bytes(file)
    if content.startswith(UTF16):  # Excel's "Unicode Text"
        advice = "; save it again"
        with refusing(f"{file}: damaged UTF-16 text", UnicodeDecodeError, advice=advice):
            content = content.decode("utf-16").encode()
    return decoded(content.removeprefix(codecs.BOM_UTF8), str(file), first_line=1)


def read_lines(file: epath.Path) -> list[str]:
    """Reads lines as `read_text`: all end as on Linux or Windows, or all as on an old Mac (CR)."""
    text = read_text(file).rstrip("\r\n")
    return [line.rstrip("\r") for line in text.split("\n" if "\n" in text else "\r")]


def from_tsv(file: epath.Path) -> Columns:
    """Reads tab-separated values under a header. Quotes are ordinary characters, as in GLUE."""
    return _by_header(enumerate((line.split("\t") for line in read_lines(file)), 1), file)


def from_csv(file: epath.Path) -> Columns:
    """Reads comma-separated values under a header, quoted where needed."""
    csv.field_size_limit(_MAX_CELL)  # by default 128 KiB, and documents may be longer
    text = read_text(file)
    header = text.partition("\n")[0]
    advice = "save the table with commas between the columns as .csv, or with tabs as .tsv"
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        other = separator in header and "," not in header
        refuse(file, (other, f"its header has {name} and no commas; {advice}"))
    reader, first, lines = csv.reader(io.StringIO(text, newline=""), strict=True), 1, []
    try:
        for row in reader:
            lines += [(first, row)] if row else []
            first = reader.line_num + 1
    except csv.Error as error:
        raise BadInputError(f"{file} line {first}: not a CSV file ({error})") from None
    return _by_header(lines or [(1, [])], file)


def _by_header(lines: Iterable[tuple[int, Sequence[str]]], file: epath.Path) -> Columns:
    """Returns columns from rows, each with the number of its first line."""
    (_, header), *rows = lines
    twice = f"two columns have the same name; there are {shown(header)}"
    refuse(file, (not any(header), "empty"), (len(set(header)) < len(header), twice))
    if odd := [
        f"{file} line {number}: {len(row)} columns, and the header names {len(header)} "
        f"({shown(header)})"
        for number, row in rows
        if len(row) != len(header)
    ]:
        raise BadRowsError(odd)
    return {name: [row[k] for _, row in rows] for k, name in enumerate(header)}


def trimmed(text: str) -> str:
    """Returns a text without the spaces and invisible characters at its ends."""
    ends = [next((k for k, c in enumerate(t) if _shows(c)), len(t)) for t in (text, text[::-1])]
    return text[ends[0] : len(text) - ends[1]]


def _shows(character: str) -> bool:
    return unicodedata.category(character) not in _INVISIBLE or character > _TAGS


def shown(names: Sequence[str]) -> str:
    """Lists names for a message, the first of them."""
    return ", ".join(map(repr, list(names)[:12])) + (", ..." if len(names) > 12 else "")
