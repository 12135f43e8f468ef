"""Texts of a corpus as they are, for streams: blocks of bytes, and their tokens."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from widenet_jax.corpus.inputs import TFDS, Input, read_tfds
from widenet_jax.corpus.readers import RAW_READERS, decoded, guarded, opened
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.errors import BadInputError
from widenet_jax.language.data.token_files import BYTE_VALUES, id_type

BLOCK = 1 << 12  # bytes read at once, about
NEWLINE = ord("\n")
_SPACE = np.zeros(256, bool)
_SPACE[[ord(c) for c in " \t\n\r\v\f"]] = True


class Block(NamedTuple):
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


def blocks(source: Input, column: str) -> Iterator[Block]:
    """Yields the documents of an input in blocks; a plain text file is one document.

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
            yield Block(text, where, None, True)
        return
    with opened(source.path) as file:
        number, found = 1, guarded(source.path, lambda: file.readlines(BLOCK))
        while found:
            further = guarded(source.path, lambda: file.readlines(BLOCK))
            yield Block(b"".join(found), source.path, number, not further)
            number += len(found)
            found = further


def lines(block: Block) -> list[str]:
    """Returns the lines of a block; raises BadInputError, naming the line, unless it is UTF-8."""
    text = block.text.removeprefix(codecs.BOM_UTF8)
    try:
        return decoded(text, block.where).split("\n")
    except BadInputError:
        if block.line is not None:
            for number, line in enumerate(text.split(b"\n"), block.line):
                decoded(line, f"{block.where} line {number}")
        raise


@dataclass(frozen=True)
class Encoder:
    """Maps text to the tokens of a stream.

    Attributes:
      tokenizer: None for bytes.
      separator: text after every document. A token of the tokenizer is taken as that token.
    """

    tokenizer: Tokenizer | None
    separator: str = ""

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size if self.tokenizer else BYTE_VALUES

    def tokens(self, block: Block) -> np.ndarray:
        """Returns the tokens of a block; of word pieces each line's own, without line breaks.

        Raises:
          BadInputError: the text is to be word pieces, and is not UTF-8.
        """
        dtype = id_type(self.vocab_size)
        if self.tokenizer is None:
            return np.frombuffer(block.text, dtype)
        found = self.tokenizer.encode_all([line for line in lines(block) if line.strip()])
        return np.concatenate(found or [np.zeros(0)]).astype(dtype)

    @property
    def ending(self) -> np.ndarray:
        """The tokens after every document."""
        if not self.separator:
            return np.zeros(0, id_type(self.vocab_size))
        found = self.tokenizer and self.tokenizer.id_of(self.separator)
        if found is not None:
            return np.array([found], id_type(self.vocab_size))
        return self.tokens(Block(self.separator.encode(), "--separator", None, True))


class WordCount:
    """Counts words in a text that comes in parts.

    A word is a run of bytes without white space; an end of a line is one more, as WikiText counts.

    Attributes:
      words: so far.
    """

    def __init__(self) -> None:
        self.words = 0
        self._after_space = True

    def add(self, text: np.ndarray) -> None:
        """Adds bytes: uint8 [n]."""
        if not text.size:
            return
        space = _SPACE[text]
        before = np.concatenate([[self._after_space], space[:-1]])
        self.words += int((before & ~space).sum()) + int((text == NEWLINE).sum())
        self._after_space = bool(space[-1])

    def end_document(self) -> None:
        """Lets the next text begin with a new word."""
        self._after_space = True
