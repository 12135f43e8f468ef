"""Text corpora: `plan` divides the inputs into units of work, `documents` reads one unit."""

import codecs
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from etils import epath

from widenet_jax.corpus import readers
from widenet_jax.corpus.chunking import Document
from widenet_jax.corpus.files import NEWLINE, decoded, first_bytes, opened
from widenet_jax.corpus.readers import Input, cut_long_line
from widenet_jax.data.input_files import once
from widenet_jax.errors import refuse
from widenet_jax.files import is_remote, readable

# A set has at most one shard a unit, and training keeps every shard open.
MOST_UNITS = 256
COLUMN = "text"
TFDS_INFO = "dataset_info.json"
PASSAGE_BYTES = (1 << 12) + 1  # read at once, with the rest of the last line


def plan(
    paths: Sequence[str], format: str = "auto", tfds_split: str = "train"
) -> list[list[Input]]:
    """Returns the units of work: lists of inputs, in the order given.

    Args:
      paths: files; or directories, whose files are taken in sorted order. A file that is there
        twice, perhaps by a link, is read once.
      format: one of `readers.FORMATS`, or "auto": by each file's name and beginning.
      tfds_split: of TFDS sets.

    Raises:
      BadInputError: a path that is not there, or a directory without files.
    """
    found: list[Input] = []
    files: list[str] = []
    for path in once(paths):
        place = readable(path)
        if place.is_dir() and (place / TFDS_INFO).exists():
            found += _tfds_inputs(path, tfds_split)
        elif place.is_dir():
            visible = sorted(files_below(place))
            refuse(path, (not visible, "holds no files"))
            files += visible
        else:
            files.append(path)
    files = once(files)
    places = [path if is_remote(path) else os.path.abspath(path) for path in files]
    # commonpath would take gs://bucket for a relative path; this is cut at a separator below.
    above = os.path.commonprefix([os.path.dirname(place) + "/" for place in places])  # noqa: RUF071
    above = above[: above.rfind("/") + 1]
    for place, path in zip(places, files, strict=True):
        first_bytes(path)  # a file that cannot be opened is refused before the work begins
        found_format = readers.detect(path) if format == "auto" else format
        found.append(Input(path, place.removeprefix(above), found_format))
    size = -(-len(found) // MOST_UNITS)
    return [found[first : first + size] for first in range(0, len(found), size)]


def files_below(place: epath.Path) -> Iterator[str]:
    """Yields the files in a directory and those below it, except hidden ones."""
    for entry in (entry for entry in place.iterdir() if not entry.name.startswith(".")):
        yield from files_below(entry) if entry.is_dir() else [str(entry)]


def _tfds_inputs(path: str, split: str) -> list[Input]:
    """Returns an input for each shard of a TFDS set that is stored as array_record."""
    builder = readers.tfds_builder(path)
    stored, splits = builder.info.file_format.value, builder.info.splits
    advice, known = "prepare it with file_format=array_record", ", ".join(splits)
    refuse(
        path,
        (stored != "array_record", f"prepared as {stored}; {advice}"),
        (split not in splits, f"no split {split!r}; there are {known} (--tfds_split)"),
    )
    places = itertools.accumulate(splits[split].shard_lengths, initial=0)
    return [
        Input(path, f"{builder.name}-{split}-{shard:05d}", "tfds", *ends, split)
        for shard, ends in enumerate(itertools.pairwise(places))
    ]


def documents(unit: Iterable[Input], column: str = COLUMN) -> Iterator[Document]:
    """Yields the documents of a unit of work, in order; raises as `readers.texts`."""
    for source in unit:
        for index, (paragraphs, split) in enumerate(readers.texts(source, column)):
            if paragraphs:
                yield Document(source.name, index, paragraphs, split)


class Passage(NamedTuple):
    """A part of a document as it is.

    Attributes:
      text: its bytes; ends at the end of a line or of the document.
      where: file and record, for messages.
      line: number of the first line in a plain file, else None.
      last: whether the document ends here.
    """

    text: bytes
    where: str
    line: int | None
    last: bool

    def lines(self) -> list[str]:
        """Returns the lines; raises BadInputError, naming the line, unless they are UTF-8."""
        text = self.text.removeprefix(codecs.BOM_UTF8)
        return decoded(text, self.where, self.line).split("\n")


def passages(unit: Iterable[Input], column: str) -> Iterator[Passage]:
    """Yields the documents of a unit of work in passages; a plain text file is one document.

    Raises:
      BadInputError: an input is damaged, or not of its format.
    """
    for source in unit:
        if source.format in readers.RAW_READERS:
            for text, where in readers.RAW_READERS[source.format](source, column, None):
                if len(text) <= readers.LINE_BYTES:
                    yield Passage(text, where, None, True)
                else:
                    yield from _passages_of(io.BytesIO(text), where, None)
        else:
            with opened(source.path) as file:
                yield from _passages_of(file, source.path, 1)


def _passages_of(file: BinaryIO, where: str, line: int | None) -> Iterator[Passage]:
    """Yields a text in passages; `line` is the number of its first line, for messages."""

    def read() -> bytes:
        text = file.read(PASSAGE_BYTES)
        return text if text.endswith(NEWLINE) else text + file.readline(readers.LINE_BYTES)

    found, held = cut_long_line(read())
    while found:
        further, held = cut_long_line(held + read())
        yield Passage(found, where, line, not further)
        line, found = line and line + found.count(NEWLINE), further
