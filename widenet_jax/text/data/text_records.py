"""The records of a prepared text set, and the sources of pretraining: sets, the embedded novel.

A record is one chunk, little-endian: uint16 number of sentences, uint16 length of each, then the
ids of all (uint16, or uint32 if the vocabulary has more than 65,536 entries). In a packed set a
record is one row of T tokens: uint16 number of chunks, then each chunk as above.

A set is a directory of ArrayRecord shards and `tokenizer.json`, with a `dataset.json` of kind
"text" (see `data.records`): its splits also count documents and tokens, `unigram_entropy` is that
of the training split's ids in nats, and `rule` says how the chunks were made.
"""

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.chunking import Chunk, Chunking, chunks_of
from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.corpus.tokenizer import FILE, load_tokenizer, load_written_tokenizer
from widenet_jax.data.shards import PackedSet
from widenet_jax.data.sources import path_of, unigram_entropy
from widenet_jax.data.splits import check_split
from widenet_jax.errors import BadInputError
from widenet_jax.text.data.sequences import tokenizer_info

KIND = "text"
_COUNT = np.dtype("<u2")
# Of the novel: every run has the same validation chapters, whatever its seed.
VALID_PER_MILLE = 50
SEED = 0


def id_type(vocab_size: int) -> np.dtype:
    """Returns the type in which a record stores ids."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def encode_record(chunks: Sequence[Chunk], vocab_size: int, *, packed: bool) -> bytes:
    """Returns the record of a packed row of chunks, or of the single chunk of a list."""
    record = np.array(len(chunks), _COUNT).tobytes() if packed else b""
    for chunk in chunks:
        header = np.array([len(chunk), *map(len, chunk)], _COUNT)
        record += header.tobytes() + np.concatenate(chunk).astype(id_type(vocab_size)).tobytes()
    return record


def decode_record(record: bytes, vocab_size: int, *, packed: bool) -> list[Chunk]:
    """Returns the chunks of a record, each a list of int32 [n]; the inverse of `encode_record`.

    Raises:
      ValueError, struct.error: the record holds no such chunks.
    """
    ids, chunks, place, number = id_type(vocab_size), [], 0, 1
    if packed:
        (number,), place = struct.unpack_from("<H", record), _COUNT.itemsize
    for _ in range(number):
        (count,) = struct.unpack_from("<H", record, place)
        lengths = np.frombuffer(record, _COUNT, count, place + _COUNT.itemsize)
        place += _COUNT.itemsize + lengths.nbytes
        ends = np.cumsum(lengths, dtype=np.int64)
        total = int(ends[-1]) if count else 0
        tokens = np.frombuffer(record, ids, total, place).astype(np.int32)
        chunks.append(np.split(tokens, ends[:-1]) if count else [])
        place += total * ids.itemsize
    if place != len(record):
        raise ValueError(f"{len(record)} bytes where {place} are expected")
    return chunks


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

    def __init__(self, data: Mapping[str, Any], split: str, _: Mapping[str, Any]):
        """Opens a split for sequences of `max_length` tokens, by default of the set's own length.

        Args:
          data: `config.data`: "path", and "max_length" where it is known.
          split: its name.

        Raises:
          BadInputError: nothing readable there, or prepared for shorter sequences; rows of a packed
            set have one length only.
        """
        directory, max_length = path_of(data), data.get("max_length")
        super().__init__(directory, split, kind=KIND, unit="sequence")
        tokenizer = load_written_tokenizer(directory, self.manifest["tokenizer_sha256"])
        entropy = {"unigram_entropy": self.manifest["unigram_entropy"]}
        self.info: Mapping[str, Any] = tokenizer_info(tokenizer) | entropy
        self.max_length: int = self.manifest["rule"]["max_length"]
        self.packed: bool = self.manifest["rule"]["packed"]
        least = self.max_length if self.packed else 0
        if max_length and not least <= max_length <= self.max_length:
            raise BadInputError(
                f"config.data.max_length={max_length}: {directory} was prepared with --max_length="
                f"{self.max_length}{' --pack' if self.packed else ''}; set the field to that, or "
                "prepare the text again"
            )
        notes = [lost_text.describe(self.manifest["splits"][split])]
        if max_length and max_length < self.max_length:
            notes.append(
                f"config.data.max_length={max_length}, and {directory} was prepared with "
                f"--max_length={self.max_length}: longer sequences are cut at both ends, and the "
                "rest is never seen; prepare the text again to use all of it"
            )
        self.note = "\n".join(filter(None, notes))

    def _example(self, record: bytes) -> dict[str, Any]:
        chunks = decode_record(record, self.info["vocab_size"], packed=self.packed)
        return {"chunks": chunks} if self.packed else {"sentences": chunks[0]}


class TinyText:
    """Jane Austen's Persuasion in chunks made when it is opened; one chapter is a document.

    As `TextRecords`: `source[i]` is {"sentences": [int32 [n], ...]}.

    Attributes:
      info: "tokenizer", "vocab_size" and "unigram_entropy".
      note: what the tokenizer loses of the novel.
    """

    def __init__(self, data: Mapping[str, Any], split: str, _: Mapping[str, Any]):
        """Opens a split for sequences of `config.data.max_length` tokens."""
        check_split(split, ("train", "valid"), "the embedded text")
        chunks, self.info, self.note = _read_novel(data["max_length"])
        self._chunks = chunks[split]
        self._split = split

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"sentences": self._chunks[index]}

    def describe(self, index: int) -> str:
        return f"embedded text, {self._split} sequence {index}"


@functools.cache  # a run opens both splits
def _read_novel(max_length: int) -> tuple[dict[str, list[Chunk]], dict[str, Any], str]:
    """Returns the chunks of each split, and the source's `info` and `note`."""
    from widenet_jax.corpus.inputs import documents
    from widenet_jax.corpus.readers import Input

    tokenizer = load_tokenizer(str(FOLDER / FILE))
    rule = Chunking(max_length, SEED)
    chunks: dict[str, list[Chunk]] = {"train": [], "valid": []}
    losses = np.zeros(4, int)
    for document in documents([Input(str(TEXT), TEXT.name, "titles")]):
        side = "valid" if document.validates(VALID_PER_MILLE) else "train"
        of_document, lost = chunks_of(document, tokenizer, rule)
        chunks[side] += of_document
        losses += lost
    counts = np.bincount(np.concatenate([np.concatenate(chunk) for chunk in chunks["train"]]))
    info = tokenizer_info(tokenizer) | {"unigram_entropy": unigram_entropy(counts)}
    return chunks, info, lost_text.describe(lost_text.shares_of(losses))
