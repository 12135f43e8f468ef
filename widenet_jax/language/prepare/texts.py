"""Passages of text to the tokens of a stream, and a count of their words."""

from dataclasses import dataclass

import numpy as np

from widenet_jax.corpus.inputs import Passage
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.language.data.token_files import BYTE_VALUES, id_type

NEWLINE = ord("\n")
_SPACE = np.zeros(256, bool)
_SPACE[[ord(c) for c in " \t\n\r\v\f"]] = True


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

    def tokens(self, passage: Passage) -> np.ndarray:
        """Returns the tokens of a passage; of word pieces each line's own, without line breaks.

        Raises:
          BadInputError: the text is to be word pieces, and is not UTF-8.
        """
        dtype = id_type(self.vocab_size)
        if self.tokenizer is None:
            return np.frombuffer(passage.text, dtype)
        found = self.tokenizer.encode_all([line for line in passage.lines() if line.strip()])
        return np.concatenate(found or [np.zeros(0)]).astype(dtype)

    @property
    def ending(self) -> np.ndarray:
        """The tokens after every document."""
        if not self.separator:
            return np.zeros(0, id_type(self.vocab_size))
        found = self.tokenizer and self.tokenizer.id_of(self.separator)
        if found is not None:
            return np.array([found], id_type(self.vocab_size))
        return self.tokens(Passage(self.separator.encode(), "--separator", None, True))


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
