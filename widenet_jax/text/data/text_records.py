"""The records of a prepared text set, and the source that reads them.

A record is one chunk, little-endian: uint16 number of sentences, uint16 length of each, then the
ids of all (uint16, or uint32 if the vocabulary has more than 65,536 entries). In a packed set a
record is one row of T tokens: uint16 number of chunks, then each chunk as above.

A set is a directory of ArrayRecord shards and `tokenizer.json`, with a `dataset.json` of kind
"text" (see `data.records`): its splits also count documents and tokens, `unigram_entropy` is that
of the training split's ids in nats, and `rule` says how the chunks were made.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.corpus.chunking import Chunk
from widenet_jax.corpus.tokenizer import load_written_tokenizer
from widenet_jax.data.shards import PackedSet
from widenet_jax.data.sources import path_of
from widenet_jax.errors import BadInputError

KIND = "text"
_COUNT = np.dtype("<u2")


def id_type(vocab_size: int) -> np.dtype:
    """Returns the type in which a record stores ids."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def encode_chunk(chunk: Sequence[np.ndarray], vocab_size: int) -> bytes:
    """Returns the record of a chunk.

    Args:
      chunk: ids of each sentence: integers [n] below `vocab_size`.
      vocab_size: V.
    """
    header = np.array([len(chunk), *map(len, chunk)], _COUNT)
    return header.tobytes() + np.concatenate(chunk).astype(id_type(vocab_size)).tobytes()


def encode_row(chunks: Sequence[Sequence[np.ndarray]], vocab_size: int) -> bytes:
    """Returns the record of a packed row."""
    encoded = (encode_chunk(chunk, vocab_size) for chunk in chunks)
    return np.array(len(chunks), _COUNT).tobytes() + b"".join(encoded)


def decode_chunk(record: bytes, vocab_size: int) -> Chunk:
    """Returns the sentences of a record: int32 [n] each; the inverse of `encode_chunk`.

    Raises:
      ValueError, struct.error: the record is not a chunk.
    """
    chunk, end = _read_chunk(record, 0, id_type(vocab_size))
    _check_end(record, end)
    return chunk


def decode_row(record: bytes, vocab_size: int) -> list[Chunk]:
    """Returns the chunks of a packed row; the inverse of `encode_row`. Raises as `decode_chunk`."""
    (count,) = struct.unpack_from("<H", record)
    chunks, place = [], _COUNT.itemsize
    for _ in range(count):
        chunk, place = _read_chunk(record, place, id_type(vocab_size))
        chunks.append(chunk)
    _check_end(record, place)
    return chunks


def _read_chunk(record: bytes, place: int, ids: np.dtype) -> tuple[Chunk, int]:
    (count,) = struct.unpack_from("<H", record, place)
    place += _COUNT.itemsize
    lengths = np.frombuffer(record, _COUNT, count, place)
    place += lengths.nbytes
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if count else 0
    tokens = np.frombuffer(record, ids, total, place).astype(np.int32)
    return np.split(tokens, ends[:-1]) if count else [], place + total * ids.itemsize


def _check_end(record: bytes, end: int) -> None:
    if end != len(record):
        raise ValueError(f"{len(record)} bytes where {end} are expected")


class TextRecords(PackedSet):
    """One split of a set that `scripts/prepare_data.py text` wrote.

    `source[i]` is {"sentences": [int32 [n], ...]}; in a packed set {"chunks": [[int32 [n], ...],
    ...]}, a list of sentences for each chunk of the row.

    Attributes:
      info: "tokenizer", parsed from tokenizer.json; "vocab_size"; and "unigram_entropy", of the
        training split's ids, in nats: the loss of a model that knows word frequencies alone.
      max_length: T, the length that the set was prepared for.
      packed: whether a record is a row of several chunks.
    """

    def __init__(self, directory: str, split: str, max_length: int | None = None):
        """Opens a split for sequences of `max_length` tokens; None: of the set's own length.

        Raises:
          BadInputError: nothing readable there, or prepared for shorter sequences; rows of a packed
            set have one length only.
        """
        super().__init__(directory, split, kind=KIND, unit="sequence")
        tokenizer = load_written_tokenizer(directory, self.manifest["tokenizer_sha256"])
        self.info: Mapping[str, Any] = {
            "tokenizer": tokenizer.json,
            "vocab_size": tokenizer.vocab_size,
            "unigram_entropy": self.manifest["unigram_entropy"],
        }
        self.max_length: int = self.manifest["rule"]["max_length"]
        self.packed: bool = self.manifest["rule"]["packed"]
        if max_length and (
            max_length > self.max_length or max_length < self.max_length * self.packed
        ):
            raise BadInputError(
                f"config.data.max_length={max_length}: {directory} was prepared with --max_length="
                f"{self.max_length}{' --pack' if self.packed else ''}; set the field to that, or "
                "prepare the text again"
            )
        self.note = ""
        if max_length and max_length < self.max_length:
            self.note = (
                f"config.data.max_length={max_length}, and {directory} was prepared with "
                f"--max_length={self.max_length}: longer sequences are cut at both ends, and the "
                "rest is never seen; prepare the text again to use all of it"
            )

    def _example(self, record: bytes) -> dict[str, Any]:
        vocab_size = self.info["vocab_size"]
        if self.packed:
            return {"chunks": decode_row(record, vocab_size)}
        return {"sentences": decode_chunk(record, vocab_size)}


def open_text(data: Mapping[str, Any], split: str, info: Mapping[str, Any]) -> TextRecords:
    """Opens a split of a prepared text set; see `specs.SourceSpec`."""
    del info
    return TextRecords(path_of(data), split, data.get("max_length"))
