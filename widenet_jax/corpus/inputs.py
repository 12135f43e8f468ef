"""Text corpora: `plan` divides the inputs into units of work, `documents` reads one unit."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etils import epath

from widenet_jax.corpus.chunking import Document
from widenet_jax.corpus.readers import READERS, RawTexts, decoded, detect, first_bytes
from widenet_jax.corpus.sentences import paragraphs_of
from widenet_jax.errors import BadInputError, first_line
from widenet_jax.files import is_remote

# A set has at most one shard a unit, and training keeps every shard open.
MOST_UNITS = 256
COLUMN = "text"
TFDS = "tfds"  # format of the shards of a TFDS set
TFDS_INFO = "dataset_info.json"


@dataclass(frozen=True)
class Input:
    """One file of a corpus, or one shard of a TFDS set.

    Attributes:
      path: of the file, local or remote; of the directory of a TFDS set.
      name: the file's path below what all inputs have in common: the same wherever a corpus lies.
      format: a key of READERS, or TFDS.
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
            visible = sorted(files_below(place))
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


def files_below(place: epath.Path) -> Iterator[str]:
    """Yields the files in a directory and those below it, except hidden ones."""
    for entry in place.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from files_below(entry)
        else:
            yield str(entry)


def documents(unit: Iterable[Input], column: str = COLUMN) -> Iterator[Document]:
    """Yields the documents of a unit of work, in order.

    Raises:
      BadInputError: a file is damaged, not UTF-8, or not of its format; the message names the
        line or record.
    """
    for source in unit:
        if source.format == TFDS:
            raw = read_tfds(source, column)
            texts = ((paragraphs_of(decoded(text, where)), True) for text, where in raw)
        else:
            texts = READERS[source.format](source.path, column)
        for index, (paragraphs, split) in enumerate(texts):
            if paragraphs:
                yield Document(source.name, index, paragraphs, split)


def _format_of(path: str, reading: Reading) -> str:
    if reading.format == "auto":
        return detect(path)
    first_bytes(path)  # a file that cannot be opened is refused before the work begins
    return reading.format


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
        found.append(Input(path, name, TFDS, first, first + size, split))
        first += size
    return found


def read_tfds(source: Input, column: str) -> RawTexts:
    """Yields the texts of a shard of a TFDS set."""
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
        yield value, where
