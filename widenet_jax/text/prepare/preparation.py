"""What a text set is made of: its settings, its shards and their writer, the manifest.

Worker processes (`corpus.preparation`) and the Apache Beam pipeline (`beam`) prepare units by the
same code, and so make the same bytes.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.chunking import SPECIALS, Chunk, Chunking, chunks_of
from widenet_jax.corpus.inputs import documents
from widenet_jax.corpus.preparation import Preparation, written_whole
from widenet_jax.corpus.readers import Input
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data import records
from widenet_jax.data.sources import unigram_entropy
from widenet_jax.errors import BadInputError
from widenet_jax.text.data import text_records
from widenet_jax.text.data.instances import MOST_CHUNKS

COUNTED = ("documents", "chunks", "tokens")  # in a shard, besides its records
PACKED_TOGETHER = 1 << 16  # chunks
OPTIONS = "group_size:1"  # random access reads single records
TRAIN, VALID = "train", "valid"


@dataclass(frozen=True)
class ChunkPreparation(Preparation):
    """Everything that decides the bytes of a set of chunks.

    Attributes:
      units: the work; the first `num_train` units are divided between both splits.
      column: of parquet files, JSON lines and TFDS sets.
      tokenizer: of all texts.
      num_train: units of training text; those after it are validation text.
      chunking: makes the chunks.
      valid_per_mille: validation documents among 1,000 of the training text.
      packed: whether records are rows of several chunks.
    """

    units: Sequence[Sequence[Input]]
    column: str
    tokenizer: Tokenizer
    num_train: int
    chunking: Chunking
    valid_per_mille: int
    packed: bool

    kind = text_records.KIND

    @property
    def rule(self) -> dict[str, Any]:
        names = ("valid_per_mille", "packed")
        return dataclasses.asdict(self.chunking) | {name: getattr(self, name) for name in names}

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"num_train": self.num_train}

    def shards(self, unit: int) -> dict[str, str]:
        """Returns the file name of each split's shard of a unit."""
        names, total = {}, len(self.units)
        first_valid = 0 if self.valid_per_mille else self.num_train
        if unit < self.num_train:
            names[TRAIN] = records.shard_name(TRAIN, unit, self.num_train)
        if unit >= first_valid:
            names[VALID] = records.shard_name(VALID, unit - first_valid, total - first_valid)
        return names

    def prepare_unit(self, directory: Path, unit: int) -> dict[str, Any]:
        """Writes the shards of one unit; returns its counts, as JSON holds them.

        Returns:
          {"splits": {split: {"records", "bytes", "documents", "chunks", "tokens", "losses"}},
          "ids": [V] or []}, where `losses` are `lost_text.count` and `ids` counts each id in the
          unit's training text.
        """
        shards = {split: directory / name for split, name in self.shards(unit).items()}
        with contextlib.ExitStack() as stack:
            writers = {}
            for split, path in shards.items():
                writer = ShardWriter(stack.enter_context(written_whole(path)), self)
                writers[split] = stack.enter_context(contextlib.closing(writer))
            for document in documents(self.units[unit], self.column):
                validates = unit >= self.num_train or document.validates(self.valid_per_mille)
                chunks, losses = chunks_of(document, self.tokenizer, self.chunking)
                writers[VALID if validates else TRAIN].add(chunks, losses)
        return {
            "splits": {
                split: writers[split].counts
                | {"bytes": path.stat().st_size, "losses": writers[split].losses.tolist()}
                for split, path in shards.items()
            },
            "ids": writers[TRAIN].ids.tolist() if TRAIN in writers else [],
        }

    def sizes(self, directory: Path, unit: int, part: Mapping[str, Any]) -> dict[Path, int]:
        """Returns the bytes of a unit's shards."""
        counts = part["splits"]
        return {directory / name: counts[s]["bytes"] for s, name in self.shards(unit).items()}

    def finish(self, directory: Path, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Adds up the counts of all units; raises BadInputError where a split is empty."""
        del directory
        splits: dict[str, dict[str, Any]] = {}
        for split in (TRAIN, VALID):
            shards = [part["splits"][split] for part in parts if split in part["splits"]]
            # Parts that an older version made have no losses.
            losses = [shard.get("losses", []) for shard in shards]
            splits[split] = {
                "count": sum(shard["records"] for shard in shards),
                **{key: sum(shard[key] for shard in shards) for key in COUNTED},
                **lost_text.shares_of(np.sum(losses, axis=0) if all(losses) else []),
                "shards": [{key: shard[key] for key in ("records", "bytes")} for shard in shards],
            }
        for split, entry in splits.items():
            if not entry["count"]:
                found = sum(entry["documents"] for entry in splits.values())
                raise BadInputError(
                    f"split {split}: no text found for it in {found} documents; name a file with "
                    "--valid, or more documents with --valid_per_mille"
                )
        ids = np.sum([part["ids"] for part in parts if part["ids"]], axis=0)
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "unigram_entropy": unigram_entropy(ids),
            "splits": splits,
        }

    def open_split(self, directory: str, split: str) -> object:
        """Opens a split; raises as `text_records.TextRecords`."""
        return text_records.TextRecords({"path": directory}, split, {})


class ShardWriter:
    """Writes the chunks of one shard.

    Attributes:
      counts: records, documents, chunks, tokens; complete after `close`.
      losses: sums of `lost_text.count`.
      ids: how often each id was added: int64 [V].
    """

    def __init__(self, path: Path, preparation: ChunkPreparation):
        self._writer = array_record_module.ArrayRecordWriter(str(path), OPTIONS)
        self._row_length = preparation.chunking.max_length if preparation.packed else None
        self._waiting: list[Chunk] = []
        self.counts: dict[str, Any] = dict.fromkeys(("records", *COUNTED), 0)
        self.losses = np.zeros(4, int)
        self.ids = np.zeros(preparation.tokenizer.vocab_size, np.int64)

    def add(self, chunks: Sequence[Chunk], losses: np.ndarray) -> None:
        """Adds the chunks of one document, and what its encoding lost."""
        self.losses += losses
        if not chunks:
            return
        tokens = np.concatenate([sentence for chunk in chunks for sentence in chunk])
        self.ids += np.bincount(tokens, minlength=len(self.ids))
        for name, number in zip(COUNTED, (1, len(chunks), len(tokens)), strict=True):
            self.counts[name] += number
        self._waiting += chunks
        if self._row_length is None or len(self._waiting) >= PACKED_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Writes the chunks that wait to be packed."""
        packed = self._row_length is not None
        rows = pack(self._waiting, self._row_length) if packed else [[c] for c in self._waiting]
        for row in rows:
            self._writer.write(text_records.encode_record(row, len(self.ids), packed=packed))
        self.counts["records"] += len(rows)
        self._waiting = []

    def close(self) -> None:
        """Writes the chunks that wait, and closes the file."""
        self.flush()
        self._writer.close()


def pack(chunks: Sequence[Chunk], max_length: int) -> list[list[Chunk]]:
    """Packs chunks into rows by best fit, the longest first.

    Args:
      chunks: each takes its tokens and three special ones, at most a whole row: instances are cut
        to it when they are drawn.
      max_length: T, tokens of a row.

    Returns:
      Rows of at most MOST_CHUNKS chunks. The longest chunk left goes into the fullest row that has
      room for it, else into a new one.
    """
    rows: list[list[Chunk]] = []
    with_room: list[list[int]] = [[] for _ in range(max_length + 1)]  # rows by the room they have
    lengths = [length_in_row(chunk, max_length) for chunk in chunks]
    for place in sorted(range(len(chunks)), key=lambda k: -lengths[k]):
        need = lengths[place]
        room = next((room for room in range(need, max_length + 1) if with_room[room]), None)
        if room is None:
            rows.append([])
            row, room = len(rows) - 1, max_length
        else:
            row = with_room[room].pop()
        rows[row].append(chunks[place])
        if len(rows[row]) < MOST_CHUNKS:
            with_room[room - need].append(row)
    return rows


def length_in_row(chunk: Chunk, max_length: int) -> int:
    """Returns the tokens that a chunk takes of a row."""
    return min(sum(map(len, chunk)) + SPECIALS, max_length)
