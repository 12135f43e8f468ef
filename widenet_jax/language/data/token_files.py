"""Token ids in files, one unsigned integer a token, and in memory."""

import hashlib
from typing import Any, Protocol

import numpy as np
from etils import epath
from numpy.lib.stride_tricks import sliding_window_view

from widenet_jax.data.input_files import bytes_in
from widenet_jax.errors import BadInputError
from widenet_jax.files import is_remote

BYTE_VALUES = 256  # the vocabulary of a byte model
MOST_TOKENS = 1 << 16  # a vocabulary that 16 bits can tell apart
SAMPLES, SAMPLE_BYTES = 16, 1 << 20  # the parts of a file that tell it from others


def id_type(vocab_size: int) -> np.dtype:
    """Returns the type in which a token is stored; raises BadInputError for a V above 65,536."""
    if vocab_size > MOST_TOKENS:
        raise BadInputError(
            f"a vocabulary of {vocab_size:,} tokens is too large for a stream, which stores a "
            f"token in 16 bits; take a tokenizer of at most {MOST_TOKENS:,}"
        )
    return np.dtype("u1" if vocab_size <= BYTE_VALUES else "<u2")


class Tokens(Protocol):
    """Consecutive tokens."""

    def __len__(self) -> int: ...

    def read(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Returns `length` tokens from each of `starts`: int32 [n, length]."""
        ...


class HeldTokens:
    """Tokens in memory."""

    def __init__(self, tokens: np.ndarray):
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, starts: np.ndarray, length: int) -> np.ndarray:
        return sliding_window_view(self._tokens, length)[starts].astype(np.int32)


class TokenFile:
    """Consecutive tokens of a file; small to pickle, the file is opened at the first read.

    A remote file is read into memory whole, by each process that reads it.

    Attributes:
      path: local or remote.
      first: the first token in the file.
      count: number of tokens.
    """

    def __init__(self, path: str, vocab_size: int, first: int, count: int):
        self.path, self.first, self.count = path, first, count
        self._vocab_size = vocab_size
        self._tokens: np.ndarray | None = None

    def __len__(self) -> int:
        return self.count

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None}

    def read(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Returns `length` tokens from each of `starts`: int32 [n, length].

        Raises:
          BadInputError: a token is none of the vocabulary: the file is damaged.
        """
        if self._tokens is None:
            self._tokens = self._open()
        found = sliding_window_view(self._tokens, length)[starts].astype(np.int32)
        most = np.iinfo(self._tokens.dtype).max
        if self._vocab_size <= most and found.size and found.max() >= self._vocab_size:
            raise BadInputError(
                f"{self.path}: holds token {found.max()}, and the vocabulary has "
                f"{self._vocab_size:,}; the file is damaged: copy it again or prepare the set again"
            )
        return found

    def _open(self) -> np.ndarray:
        dtype = id_type(self._vocab_size)
        if is_remote(self.path):
            content = np.frombuffer(epath.Path(self.path).read_bytes(), dtype)
            return content[self.first : self.first + self.count]
        offset = self.first * dtype.itemsize
        return np.memmap(self.path, dtype, "r", offset, (self.count,))


def file_size(path: str) -> int:
    """Returns the size of a file in bytes; raises BadInputError unless it can be read."""
    try:
        return bytes_in(path)
    except FileNotFoundError:
        raise BadInputError(f"{path}: no such file") from None
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror or error})") from None


def file_sha256(path: str) -> str:
    """Returns the SHA-256 of a file's content; takes about a second a gigabyte."""
    with epath.Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
