"""Readers of the files of a corpus: a function for each format.

Files may be compressed by gzip, bzip2 or xz, whatever they are called. A mistake in a line or
record is a BadInputError that names its place; a reader that is passed a list `bad` puts the
message there and goes on. Damage after which nothing can be read always raises.
"""

import codecs
import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from etils import epath

from widenet_jax.corpus.files import COMPRESSED_SUFFIXES, NEWLINE, decoded, first_bytes, opened
from widenet_jax.corpus.sentences import paragraphs_of
from widenet_jax.corpus.tables import Columns, from_csv, from_tsv, shown
from widenet_jax.data.input_files import PARQUET, open_input, open_parquet
from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.files import parse_json

PARQUET_ROWS = 1024  # read at once
LINE_BYTES = 1 << 20  # of a line of text; a longer one is read in parts
DOCUMENT_BYTES = 1 << 26  # of a line of JSON
DOCUMENT_CHARACTERS = 1 << 24  # of a document of plain text; a longer one is several
CHOOSE = "choose with --text_column"  # a column, in messages
# The beginnings, in lower case, of files with marks that would be learned as text.
MARKED = {
    b"<mediawiki": "a dump of Wikipedia in XML; extract its text first, with WikiExtractor --json, "
    "or give Hugging Face's parquet files of wikimedia/wikipedia",
    b"<doc ": "articles between marks, as of WikiExtractor; extract them with its flag --json",
    **dict.fromkeys(
        (b"<!doctype html", b"<html", b"<?xml", b"warc/"), "pages with marks; extract their text"
    ),
}
_TITLE = re.compile(r"\s*= [^=]*[^=\s] =\s*")
_NO_TEXT = re.compile(r"\s*|\s*(= ){2,}.*( =){2,}\s*")  # a blank line, or a heading

Bad = list[str] | None  # receives a line for each mistake; None: the first one raises
Lines = Iterator[tuple[bytes, str]]  # (a line or a document as it is, its place)
Texts = Iterator[tuple[Sequence[str], bool]]  # (paragraphs, or sentences; whether to split them)


@dataclass(frozen=True)
class Input:
    """One file of a corpus, or one shard of a TFDS set.

    Attributes:
      path: of the file, local or remote; of the directory of a TFDS set.
      name: the file's path below what all inputs have in common: the same wherever a corpus lies.
      format: a key of READERS or RAW_READERS.
      first, last: the records of a TFDS set, last excluded.
      split: of a TFDS set.
    """

    path: str
    name: str
    format: str
    first: int = 0
    last: int = 0
    split: str = ""


def texts(source: Input, column: str, bad: Bad = None) -> Texts:
    """Yields the texts of an input, in order.

    Args:
      source: the input.
      column: of JSON lines, parquet files, tables and TFDS sets.
      bad: see the module's docstring.

    Raises:
      BadInputError: the file is damaged, not UTF-8, or not of its format.
    """
    if source.format in RAW_READERS:
        for text, where in RAW_READERS[source.format](source, column, bad):
            with _noting(bad):
                large = len(text) >= DOCUMENT_CHARACTERS
                lines = _line_parts(io.BytesIO(text)) if large else [text]
                yield from _read_text(decoded(line, where).rstrip("\r\n") for line in lines)
        return
    beginning = first_bytes(source.path).removeprefix(codecs.BOM_UTF8).lstrip().lower()
    refuse(source.path, *((beginning.startswith(mark), kind) for mark, kind in MARKED.items()))
    yield from READERS[source.format](_decoded_lines(source.path, bad))


def detect(path: str) -> str:
    """Returns the format of a file, by its name and beginning."""
    beginning = first_bytes(path)
    name = path.lower()
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    if name.endswith(".parquet") or beginning.startswith(PARQUET):
        return "parquet"
    first = beginning.decode("utf-8-sig", errors="replace").strip().split("\n")[0]
    # WikiExtractor's files of JSON lines have names such as wiki_00.
    if name.endswith((".jsonl", ".json", ".ndjson")) or first.startswith('{"'):
        return "jsonl"
    if name.endswith((".csv", ".tsv")):
        return name[-3:]
    return "titles" if _TITLE.fullmatch(first) else "text"


# --- Files ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _noting(bad: Bad) -> Iterator[None]:
    try:
        yield
    except BadInputError as error:
        if bad is None:
            raise
        bad.append(str(error))


def _decoded_lines(path: str, bad: Bad) -> Iterator[str]:
    """Yields the lines of a text file without their ends, and of a long line its parts."""
    number = 1
    with opened(path) as file:
        for text in _line_parts(file):
            with _noting(bad):
                line = text.removeprefix(codecs.BOM_UTF8) if number == 1 else text
                yield decoded(line, f"{path} line {number}").rstrip("\r\n")
            number += text.endswith(NEWLINE)


def _line_parts(file: BinaryIO) -> Iterator[bytes]:
    held = b""
    while text := held + file.readline(LINE_BYTES):
        text, held = cut_long_line(text)
        yield text


def cut_long_line(text: bytes) -> tuple[bytes, bytes]:
    """Returns `text`, and what is left for later where its last line is long and goes on.

    A line is cut before a space, or else before a character: its words stay whole, and memory
    bounded.
    """
    if len(text) < LINE_BYTES or text.endswith(NEWLINE):
        return text, b""
    place = text.rfind(b" ", 1)
    if place < 0:  # before the last byte that begins a character of UTF-8
        place = next((-n for n in range(1, 5) if text[-n] & 0xC0 != 0x80), -1)
    return text[:place], text[place:]


# --- Formats whose lines make the documents -------------------------------------------------------


def _read_text(lines: Iterator[str]) -> Texts:
    """Reads a file that is one document, or several if it is large."""
    held, size = [], 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= DOCUMENT_CHARACTERS:
            yield paragraphs_of("\n".join(held)), True
            held, size = [], 0
    yield paragraphs_of("\n".join(held)), True


def _read_between(
    lines: Iterator[str], *, ends: re.Pattern, left_out: re.Pattern, split: bool
) -> Texts:
    """Reads documents that lie between certain lines; a line is a paragraph or a sentence.

    Args:
      lines: of the file.
      ends: a line between two documents.
      left_out: a line that is no part of a document.
      split: whether a line may hold several sentences.
    """
    held: list[str] = []
    for line in lines:
        if ends.fullmatch(line):
            if held:
                yield held, split
            held = []
        elif not left_out.fullmatch(line):
            held.append(line.strip())
    yield held, split


_BLANK = re.compile(r"\s*")
READERS = {
    "text": _read_text,
    "titles": functools.partial(_read_between, ends=_TITLE, left_out=_NO_TEXT, split=True),
    "sentences": functools.partial(_read_between, ends=_BLANK, left_out=_BLANK, split=False),
}

# --- Formats that hold whole documents ------------------------------------------------------------


def _json_lines(source: Input, column: str, bad: Bad) -> Lines:
    """Reads a JSON object a line, with the text in a field."""
    with opened(source.path) as file:
        for number, line in enumerate(iter(lambda: file.readline(DOCUMENT_BYTES), b""), 1):
            where = f"{source.path} line {number}"
            if len(line) == DOCUMENT_BYTES:
                most = f"{DOCUMENT_BYTES >> 20} MiB, the most that one document may have"
                raise BadInputError(f"{where}: longer than {most}; cut it in parts")
            with _noting(bad):
                text = decoded(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, where)
                if text.strip():
                    yield _text_of_json(text, where, column), where


def _text_of_json(line: str, where: str, column: str) -> bytes:
    with refusing(f"{where}: not valid JSON", ValueError):
        value = parse_json(line)
    if not isinstance(value, dict) or not isinstance(value.get(column), str):
        known = f"it has {', '.join(value)}" if isinstance(value, dict) else "it is no object"
        raise BadInputError(f"{where}: no text {column!r}; {known} ({CHOOSE})")
    # JSON can escape half of a surrogate pair, which is no character: `decoded` refuses it.
    return value[column].encode(errors="surrogatepass")


def _parquet(source: Input, column: str, bad: Bad) -> Lines:
    """Reads a column of a parquet file."""
    path, row = source.path, 0
    with open_input(path) as content, open_parquet(content, path) as file:
        names = file.schema_arrow.names
        known = f"there are {', '.join(names)} ({CHOOSE})"
        refuse(path, (column not in names, f"no column {column!r}; {known}"))
        for batch in file.iter_batches(PARQUET_ROWS, columns=[column]):
            for cell in batch.column(0):
                where = f"{path} record {row}"
                with _noting(bad):
                    yield _text_of_cell(cell, where, column), where
                row += 1


def _text_of_cell(cell: Any, where: str, column: str) -> bytes:
    """Returns the text of a cell of pyarrow, which verifies a string when it is asked for it."""
    advice = "; write it again as UTF-8"
    with refusing(f"{where}: not UTF-8 text", UnicodeDecodeError, advice=advice):
        value = cell.as_py()
    if not isinstance(value, str):
        raise BadInputError(f"{where}: {column!r} holds no text")
    return value.encode(errors="surrogatepass")


def _table(source: Input, column: str, _: Bad) -> Lines:
    """Reads a column of a table, whole, as training and `check` do."""
    columns = TABLES[source.format](epath.Path(source.path))
    known = f"there are {shown(list(columns))} ({CHOOSE})"
    refuse(source.path, (column not in columns, f"no column {column!r}; {known}"))
    for number, text in enumerate(columns[column], 1):
        yield text.encode(), f"{source.path} row {number}"


def tfds_builder(path: str) -> Any:
    """Returns the builder of a prepared TFDS set; raises BadInputError if it cannot be read."""
    import tensorflow_datasets as tfds

    with refusing(f"{path}: not a readable TFDS set", Exception):  # TFDS raises many kinds
        return tfds.builder_from_directory(path)


def _tfds(source: Input, column: str, _: Bad) -> Lines:
    """Reads a shard of a TFDS set, which a run checks as it opens it."""
    builder = tfds_builder(source.path)
    with refusing(f"{source.path}: cannot be read", Exception):  # TFDS raises many kinds
        records = builder.as_data_source(f"{source.split}[{source.first}:{source.last}]")
    for index in range(len(records)):
        where = f"{source.path} record {source.first + index}"
        value = records[index].get(column)
        if not isinstance(value, str | bytes):
            raise BadInputError(f"{where}: no text {column!r} ({CHOOSE})")
        yield value.encode() if isinstance(value, str) else value, where


TABLES: dict[str, Callable[[epath.Path], Columns]] = {"csv": from_csv, "tsv": from_tsv}
RAW_READERS: dict[str, Callable[[Input, str, Bad], Lines]] = {
    "jsonl": _json_lines,
    "parquet": _parquet,
    **dict.fromkeys(TABLES, _table),
    "tfds": _tfds,
}
FORMATS = (*READERS, "jsonl", "parquet", *TABLES)  # of files
