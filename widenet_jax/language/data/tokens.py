"""Tokens of a text: made from passages, kept in files or in memory, and counted."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from etils import epath
from numpy.lib.stride_tricks import sliding_window_view

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.inputs import Passage
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data.input_files import bytes_in
from widenet_jax.errors import BadInputError, refusing
from widenet_jax.files import file_sha256, is_remote

BYTE_VALUES = 256  # the vocabulary of a byte model
MOST_TOKENS = 1 << 16  # a vocabulary that 16 bits can tell apart
SAMPLES, SAMPLE_BYTES = 16, 1 << 20  # the parts of a file that tell it from others
NEWLINE = ord("\n")
_SPACE = np.zeros(256, bool)
_SPACE[[ord(c) for c in " \t\n\r\v\f"]] = True


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the type in which a token is stored; raises BadInputError for a V above 65,536."""
    if vocab_size > MOST_TOKENS:
        raise BadInputError(
            f"a vocabulary of {vocab_size:,} tokens is too large for a stream, which stores a "
            f"token in 16 bits; take a tokenizer of at most {MOST_TOKENS:,}"
        )
    return np.dtype("u1" if vocab_size <= BYTE_VALUES else "<u2")


@dataclass
class Tokens:
    """Consecutive tokens, in memory or in a file.

    Small to pickle: a file is opened at the first read. A remote file is read into memory whole, by
    each process that reads it.

    Attributes:
      vocab_size: V.
      count: number of tokens.
      held: the tokens in memory; None until a file is opened.
      path: of the file, local or remote; "" for tokens in memory.
      first: the first token in the file.
    """

    vocab_size: int
    count: int
    held: np.ndarray | None = None
    path: str = ""
    first: int = 0

    def __len__(self) -> int:
        return self.count

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "held": None if self.path else self.held}

    def read(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Returns `length` tokens from each of `starts`: int32 [n, length].

        Raises:
          BadInputError: a token is not in the vocabulary: the file is damaged.
        """
        if self.held is None:
            self.held = self._open()
        found = sliding_window_view(self.held, length)[starts].astype(np.int32)
        if found.size and found.max() >= self.vocab_size:
            raise BadInputError(
                f"{self.path}: holds token {found.max()}, and the vocabulary has "
                f"{self.vocab_size:,}; the file is damaged: copy it again or prepare the set "
                "with --overwrite"
            )
        return found

    def _open(self) -> np.ndarray:
        dtype = token_dtype(self.vocab_size)
        if is_remote(self.path):
            content = np.frombuffer(epath.Path(self.path).read_bytes(), dtype)
            return content[self.first : self.first + self.count]
        offset = self.first * dtype.itemsize
        return np.memmap(self.path, dtype, "r", offset, (self.count,))


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

    def measured(self, passage: Passage) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a passage, and `lost_text.count` of its lines, [] of bytes.

        Word pieces are each line's own, without line breaks.

        Raises:
          BadInputError: the text is to be word pieces, and is not UTF-8.
        """
        dtype = token_dtype(self.vocab_size)
        if self.tokenizer is None:
            return np.frombuffer(passage.text, dtype), np.zeros(0, int)
        lines = passage.lines()
        found = iter(self.tokenizer.encode_all([line for line in lines if line.strip()]))
        pieces = [next(found) if line.strip() else np.zeros(0, np.int32) for line in lines]
        return np.concatenate(pieces).astype(dtype), lost_text.count(self.tokenizer, lines, pieces)

    @property
    def ending(self) -> np.ndarray:
        """The tokens after every document."""
        text = self.separator.encode(errors="surrogateescape")  # a command line's bytes as they are
        pieces, _ = self.measured(Passage(text, "--separator", None, True))
        found = self.tokenizer and self.separator and self.tokenizer.id_of(self.separator)
        return np.array([found], pieces.dtype) if isinstance(found, int) else pieces


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


def file_size(path: str) -> int:
    """Returns the size of a file in bytes; raises BadInputError unless it can be read."""
    with refusing(f"{path}: cannot be read", OSError):
        return bytes_in(path)


def sample_sha256(path: str) -> str:
    """Returns the SHA-256 of 16 parts of a file, of 1 MiB each, from its beginning to its end.

    It tells files apart in hundredths of a second, whatever their size: another text, and a copy
    whose end is missing, but not every changed byte. A file of up to 16 MiB is hashed whole.
    """
    last, digest = file_size(path) - SAMPLE_BYTES, hashlib.sha256()
    if last < (SAMPLES - 1) * SAMPLE_BYTES:
        return file_sha256(path)
    with epath.Path(path).open("rb") as file:
        for part in range(SAMPLES):
            file.seek(last * part // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
