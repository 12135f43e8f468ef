"""Texts of a corpus as they are: documents in passages of whole lines."""

import codecs
from collections.abc import Iterator
from typing import NamedTuple

from widenet_jax.corpus.inputs import TFDS, Input, read_tfds
from widenet_jax.corpus.readers import RAW_READERS, decoded, guarded, opened
from widenet_jax.errors import BadInputError

PASSAGE_BYTES = 1 << 12  # read at once, about


class Passage(NamedTuple):
    """A part of a document.

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


def passages(source: Input, column: str) -> Iterator[Passage]:
    """Yields the documents of an input in passages; a plain text file is one document.

    Raises:
      BadInputError: the input is damaged, or not of its format.
    """
    documents = None
    if source.format == TFDS:
        documents = read_tfds(source, column)
    elif source.format in RAW_READERS:
        documents = RAW_READERS[source.format](source.path, column)
    if documents is not None:
        for text, where in documents:
            yield Passage(text, where, None, True)
        return
    with opened(source.path) as file:
        number, found = 1, guarded(source.path, lambda: file.readlines(PASSAGE_BYTES))
        while found:
            further = guarded(source.path, lambda: file.readlines(PASSAGE_BYTES))
            yield Passage(b"".join(found), source.path, number, not further)
            number += len(found)
            found = further


def lines_of(passage: Passage) -> list[str]:
    """Returns the lines of a passage; raises BadInputError, naming the line, unless it is UTF-8."""
    text = passage.text.removeprefix(codecs.BOM_UTF8)
    try:
        return decoded(text, passage.where).split("\n")
    except BadInputError:
        if passage.line is not None:
            for number, line in enumerate(text.split(b"\n"), passage.line):
                decoded(line, f"{passage.where} line {number}")
        raise
