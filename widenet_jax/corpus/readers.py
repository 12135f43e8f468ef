"""Readers of text files: a function for each format.

A reader yields the texts of a file in order. Files may be compressed by gzip, bzip2 or xz, whatever
they are called. A damaged file is a BadInputError that names the file and the line or record.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from etils import epath

from widenet_jax.corpus.sentences import paragraphs_of
from widenet_jax.data.input_files import BZIP2, GZIP, XZ, ZIP, open_input
from widenet_jax.errors import BadInputError, first_line
from widenet_jax.files import is_remote

PARQUET_ROWS = 1024  # read at once
_BEGINNING = 4096  # bytes from which a format is recognised
# The beginning of a compressed file, and what opens it.
_COMPRESSED: dict[bytes, Callable[[BinaryIO], BinaryIO]] = {
    GZIP: lambda file: gzip.GzipFile(fileobj=file),
    BZIP2: bz2.BZ2File,
    XZ: lzma.LZMAFile,
}
_SUFFIXES = (".gz", ".bz2", ".xz")
_TITLE = re.compile(r"\s*= [^=]*[^=\s] =\s*")
_HEADING = re.compile(r"\s*(= ){2,}.*( =){2,}\s*")

Texts = Iterator[tuple[Sequence[str], bool]]  # (paragraphs, or sentences; whether to split them)
RawTexts = Iterator[tuple[bytes, str]]  # (a document as it is, where it is)


def detect(path: str) -> str:
    """Returns the format of a file, by its name and beginning: a key of READERS."""
    beginning = first_bytes(path)
    name = path.lower()
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    if name.endswith(".parquet") or beginning.startswith(b"PAR1"):
        return "parquet"
    first = beginning.decode("utf-8-sig", errors="replace").strip().split("\n")[0]
    # WikiExtractor's files of JSON lines have names such as wiki_00.
    if name.endswith((".jsonl", ".json", ".ndjson")) or first.startswith('{"'):
        return "jsonl"
    return "titles" if _TITLE.fullmatch(first) else "text"


def first_bytes(path: str) -> bytes:
    """Returns the beginning of a file; raises BadInputError unless it can be read."""
    with opened(path) as file:
        return guarded(path, lambda: file.read(_BEGINNING))


def _open(path: str) -> BinaryIO:
    if not is_remote(path):
        return open_input(path)
    try:
        return epath.Path(path).open("rb")
    except OSError as error:
        raise BadInputError(f"{path}: cannot be opened ({first_line(error)})") from None


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Opens a file, decompressed if it is compressed."""
    with _open(path) as file:
        beginning = guarded(path, lambda: file.read(max(map(len, _COMPRESSED))))
        file.seek(0)
        if beginning.startswith(ZIP):
            raise BadInputError(f"{path}: a zip archive; unpack it first")
        found = [opens for mark, opens in _COMPRESSED.items() if beginning.startswith(mark)]
        yield io.BufferedReader(found[0](file)) if found else file


def guarded(path: str, read: Callable[[], Any]) -> Any:
    """Returns what `read` returns; raises BadInputError where the file is damaged."""
    try:
        return read()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BadInputError(f"{path}: damaged or cut short ({first_line(error)})") from None


def raw_lines(path: str) -> RawTexts:
    """Yields the lines of a text file with their ends, without a byte order mark."""
    with opened(path) as file:
        number = 0
        while line := guarded(path, file.readline):
            number += 1
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield line, f"{path} line {number}"


def _lines(path: str) -> Iterator[str]:
    """Yields the lines of a text file without their ends and a byte order mark."""
    for line, where in raw_lines(path):
        yield decoded(line, where).rstrip("\r\n")


def decoded(line: bytes, where: str) -> str:
    """Returns a text; raises BadInputError, naming `where`, unless it is UTF-8 without NUL."""
    if b"\0" in line:
        raise BadInputError(f"{where}: holds a NUL character, so is not text; remove it")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise BadInputError(f"{where}: not UTF-8 text; save the file as UTF-8") from None


def _read_text(path: str, column: str) -> Texts:
    """Reads a file that is one document; refuses a dump of Wikipedia, which holds millions."""
    if first_bytes(path).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"<mediawiki"):
        raise BadInputError(
            f"{path}: a dump of Wikipedia in XML; extract its text first, with WikiExtractor "
            "--json, or give Hugging Face's parquet files of wikimedia/wikipedia"
        )
    yield paragraphs_of("\n".join(_lines(path))), True


def _read_titles(path: str, column: str) -> Texts:
    """Reads documents that begin with a line `= Title =`; a line is a paragraph.

    Titles and `= = Headings = =` are left out.
    """
    paragraphs: list[str] = []
    for line in _lines(path):
        if _TITLE.fullmatch(line):
            if paragraphs:
                yield paragraphs, True
            paragraphs = []
        elif line.strip() and not _HEADING.fullmatch(line):
            paragraphs.append(line.strip())
    yield paragraphs, True


def _read_sentences(path: str, column: str) -> Texts:
    """Reads a sentence a line, with a blank line between documents."""
    sentences: list[str] = []
    for line in _lines(path):
        if line.strip():
            sentences.append(line.strip())
        elif sentences:
            yield sentences, False
            sentences = []
    yield sentences, False


def json_lines(path: str, column: str) -> RawTexts:
    """Reads a JSON object a line, with the text in a field."""
    for line, where in raw_lines(path):
        text = decoded(line, where)
        if text.strip():
            yield text_of_json(text, where, column), where


def text_of_json(line: str, where: str, column: str) -> bytes:
    """Returns the text of a JSON object; raises BadInputError, naming `where`, if it has none."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BadInputError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get(column), str):
        known = f"it has {', '.join(value)}" if isinstance(value, dict) else "it is no object"
        raise BadInputError(f"{where}: no text {column!r}; {known} (choose with --text_column)")
    # JSON can escape half of a surrogate pair, which is no character: `decoded` refuses it.
    return value[column].encode(errors="surrogatepass")


def parquet(path: str, column: str) -> RawTexts:
    """Reads a column of a parquet file."""
    for value, where in parquet_values(path, column):
        yield text_of_value(value, where, column), where


def text_of_value(value: object, where: str, column: str) -> bytes:
    """Returns the text of a parquet record; raises BadInputError unless it is one."""
    if not isinstance(value, str):
        raise BadInputError(f"{where}: {column!r} holds no text")
    return value.encode(errors="surrogatepass")


def parquet_values(path: str, column: str) -> Iterator[tuple[object, str]]:
    """Yields the values of a column of a parquet file, each with its place."""
    import pyarrow as pa  # slow to import
    import pyarrow.parquet as pq

    try:
        with _open(path) as opened, pq.ParquetFile(opened) as file:
            names = file.schema_arrow.names
            if column not in names:
                known = f"there are {', '.join(names)} (choose with --text_column)"
                raise BadInputError(f"{path}: no column {column!r}; {known}")
            row = 0
            for batch in file.iter_batches(PARQUET_ROWS, columns=[column]):
                for cell in batch.column(0):
                    where = f"{path} record {row}"
                    yield _value_of(cell, where), where
                    row += 1
    except (OSError, pa.ArrowException) as error:
        reason = first_line(error)
        raise BadInputError(f"{path}: damaged, or not a parquet file ({reason})") from None


def _value_of(cell: Any, where: str) -> object:
    """Returns the value of a cell of pyarrow, which does not look at a string before."""
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        raise BadInputError(f"{where}: not UTF-8 text ({error}); write it again as UTF-8") from None


def _paragraphs(read: Callable[[str, str], RawTexts]) -> Callable[[str, str], Texts]:
    """Returns a reader of the paragraphs of the texts that `read` reads."""

    def texts(path: str, column: str) -> Texts:
        for text, where in read(path, column):
            yield paragraphs_of(decoded(text, where)), True

    return texts


READERS: dict[str, Callable[[str, str], Texts]] = {
    "text": _read_text,
    "titles": _read_titles,
    "sentences": _read_sentences,
    "jsonl": _paragraphs(json_lines),
    "parquet": _paragraphs(parquet),
}
# Of the formats whose files hold several documents: each document's own bytes.
RAW_READERS: dict[str, Callable[[str, str], RawTexts]] = {"jsonl": json_lines, "parquet": parquet}
