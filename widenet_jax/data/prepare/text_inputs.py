"""Readers of text corpora: files in six formats to documents.

`plan` finds the files and divides them into units of work; `documents` reads one unit. Files may be
compressed by gzip, whatever they are called.
"""

import contextlib
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from etils import epath

from widenet_jax.data.prepare.convert import open_input
from widenet_jax.data.text.chunking import Document
from widenet_jax.data.text.sentences import paragraphs_of
from widenet_jax.errors import BadInputError, first_line
from widenet_jax.files import is_remote

# A set has at most one shard a unit, and training keeps every shard open.
MOST_UNITS = 256
COLUMN = "text"
TFDS_INFO = "dataset_info.json"
PARQUET_ROWS = 1024  # read at once
_GZIP = b"\x1f\x8b"
_TITLE = re.compile(r"\s*= [^=]*[^=\s] =\s*")
_HEADING = re.compile(r"\s*(= ){2,}.*( =){2,}\s*")

Texts = Iterator[tuple[Sequence[str], bool]]  # (paragraphs, or sentences; whether to split them)


@dataclass(frozen=True)
class Input:
    """One file of a corpus, or one shard of a TFDS set.

    Attributes:
      path: of the file, local or remote; of the directory of a TFDS set.
      name: the file's path below what all inputs have in common: the same wherever a corpus lies.
      format: a key of READERS.
      first, last: the records of a TFDS set, last excluded.
      split: of a TFDS set.
    """

    path: str
    name: str
    format: str
    first: int = 0
    last: int = 0
    split: str = ""


@dataclass(frozen=True)
class Reading:
    """How to read inputs.

    Attributes:
      format: a key of READERS, or "auto": by each file's name and beginning.
      column: of parquet files and JSON lines.
      tfds_split: of TFDS sets.
    """

    format: str = "auto"
    column: str = COLUMN
    tfds_split: str = "train"


def plan(paths: Sequence[str], reading: Reading) -> list[list[Input]]:
    """Returns the units of work: lists of inputs, in the order given.

    Args:
      paths: files; or directories, whose files are taken in sorted order.
      reading: how to read them.

    Raises:
      BadInputError: a path that is not there, or a directory without files.
    """
    found: list[Input] = []
    files: list[tuple[str, str]] = []  # (path, format)
    for path in paths:
        place = epath.Path(path)
        if place.is_dir() and (place / TFDS_INFO).exists():
            found += _tfds_inputs(path, reading.tfds_split)
        elif place.is_dir():
            visible = sorted(_files_below(place))
            if not visible:
                raise BadInputError(f"{path}: holds no files")
            files += [(entry, _format_of(entry, reading)) for entry in visible]
        else:
            files.append((path, _format_of(path, reading)))
    places = [path if is_remote(path) else os.path.abspath(path) for path, _ in files]
    # commonpath would take gs://bucket for a relative path; this is cut at a separator below.
    above = os.path.commonprefix([os.path.dirname(place) + "/" for place in places])  # noqa: RUF071
    above = above[: above.rfind("/") + 1]
    for place, (path, format) in zip(places, files, strict=True):
        found.append(Input(path, place.removeprefix(above), format))
    size = -(-len(found) // MOST_UNITS)
    return [found[first : first + size] for first in range(0, len(found), size)]


def _files_below(place: epath.Path) -> Iterator[str]:
    """Yields the files in a directory and those below it, except hidden ones."""
    for entry in place.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files_below(entry)
        else:
            yield str(entry)


def documents(unit: Iterable[Input], column: str = COLUMN) -> Iterator[Document]:
    """Yields the documents of a unit of work, in order.

    Raises:
      BadInputError: a file is damaged, not UTF-8, or not of its format; the message names the
        line or record.
    """
    for source in unit:
        if source.format == "tfds":
            texts = _read_tfds(source, column)
        else:
            texts = READERS[source.format](source.path, column)
        for index, (paragraphs, split) in enumerate(texts):
            if paragraphs:
                yield Document(source.name, index, paragraphs, split)


def _format_of(path: str, reading: Reading) -> str:
    with _opened(path) as file:
        beginning = _guarded(path, lambda: file.read(4096))
    if reading.format != "auto":
        return reading.format
    name = path.lower().removesuffix(".gz")
    if name.endswith(".parquet") or beginning.startswith(b"PAR1"):
        return "parquet"
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return "jsonl"
    first = beginning.decode(errors="replace").strip().split("\n")[0]
    return "titles" if _TITLE.fullmatch(first) else "text"


# --- Text files -----------------------------------------------------------------------------------


def _open(path: str) -> BinaryIO:
    if not is_remote(path):
        return open_input(path)
    try:
        return epath.Path(path).open("rb")
    except OSError as error:
        raise BadInputError(f"{path}: cannot be opened ({first_line(error)})") from None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """Opens a file, through gzip if it is compressed so."""
    with _open(path) as file:
        compressed = file.read(2) == _GZIP
        file.seek(0)
        yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if compressed else file


def _guarded(path: str, read: Callable[[], Any]) -> Any:
    """Returns what `read` returns; raises BadInputError where the file is damaged."""
    try:
        return read()
    except (OSError, EOFError, zlib.error) as error:
        raise BadInputError(f"{path}: damaged or cut short ({first_line(error)})") from None


def _lines(path: str) -> Iterator[str]:
    """Yields the lines of a text file without their ends."""
    with _opened(path) as file:
        number = 0
        while line := _guarded(path, file.readline):
            number += 1
            yield _decoded(line, f"{path} line {number}").rstrip("\r\n")


def _decoded(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise BadInputError(f"{where}: holds a NUL character, so is not text; remove it")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise BadInputError(f"{where}: not UTF-8 text; save the file as UTF-8") from None


def _read_text(path: str, column: str) -> Texts:
    """Reads a file that is one document."""
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


def _read_json_lines(path: str, column: str) -> Texts:
    """Reads a JSON object a line, with the text in a field."""
    for number, line in enumerate(_lines(path), 1):
        where = f"{path} line {number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise BadInputError(f"{where}: not valid JSON ({error})") from None
        if not isinstance(value, dict) or not isinstance(value.get(column), str):
            known = f"it has {', '.join(value)}" if isinstance(value, dict) else "it is no object"
            raise BadInputError(f"{where}: no text {column!r}; {known} (choose with --text_column)")
        yield paragraphs_of(value[column]), True


# --- Parquet, and TensorFlow Datasets -------------------------------------------------------------


def _read_parquet(path: str, column: str) -> Texts:
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
                for value in batch.column(0).to_pylist():
                    if not isinstance(value, str):
                        raise BadInputError(f"{path} record {row}: {column!r} holds no text")
                    yield paragraphs_of(value), True
                    row += 1
    except (OSError, pa.ArrowException) as error:
        reason = first_line(error)
        raise BadInputError(f"{path}: damaged, or not a parquet file ({reason})") from None


def _tfds_builder(path: str) -> Any:
    import tensorflow_datasets as tfds

    try:
        return tfds.builder_from_directory(path)
    except Exception as error:  # TFDS raises many kinds
        raise BadInputError(f"{path}: not a readable TFDS set ({first_line(error)})") from None


def _tfds_inputs(path: str, split: str) -> list[Input]:
    """Returns an input for each shard of a TFDS set that is stored as array_record."""
    builder = _tfds_builder(path)
    stored = builder.info.file_format.value
    if stored != "array_record":
        raise BadInputError(
            f"{path}: prepared as {stored}; prepare it with file_format=array_record"
        )
    if split not in builder.info.splits:
        known = ", ".join(builder.info.splits)
        raise BadInputError(f"{path}: no split {split!r}; there are {known} (--tfds_split)")
    found, first = [], 0
    for shard, size in enumerate(builder.info.splits[split].shard_lengths):
        name = f"{builder.name}-{split}-{shard:05d}"
        found.append(Input(path, name, "tfds", first, first + size, split))
        first += size
    return found


def _read_tfds(source: Input, column: str) -> Texts:
    builder = _tfds_builder(source.path)
    try:
        records = builder.as_data_source(f"{source.split}[{source.first}:{source.last}]")
    except Exception as error:  # TFDS raises many kinds
        raise BadInputError(f"{source.path}: cannot be read ({first_line(error)})") from None
    for index in range(len(records)):
        where = f"{source.path} record {source.first + index}"
        value = records[index].get(column)
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            raise BadInputError(f"{where}: no text {column!r} (choose with --text_column)")
        yield paragraphs_of(_decoded(value, where)), True


READERS: dict[str, Callable[[str, str], Texts]] = {
    "text": _read_text,
    "titles": _read_titles,
    "sentences": _read_sentences,
    "jsonl": _read_json_lines,
    "parquet": _read_parquet,
}
