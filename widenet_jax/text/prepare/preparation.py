"""What a text set is made of: its settings, its shards and their writer, the manifest.

Worker processes (`corpus.preparation`) and the Apache Beam pipeline (`beam`) prepare units by the
same code, and so make the same bytes.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module

from widenet_jax.corpus.chunking import SPECIALS, Chunk, Chunking, Document, chunks_of
from widenet_jax.corpus.inputs import documents
from widenet_jax.corpus.preparation import UNFINISHED, have_size, inputs_sha256, units_sha256
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
class ChunkPreparation:
    """Everything that decides the bytes of a set of chunks; see `corpus.preparation.Preparation`.

    Attributes:
      units: the work; the first `num_train` units are divided between both splits.
      num_train: units of training text; those after it are validation text.
      tokenizer: of all texts.
      rule: makes the chunks.
      valid_per_mille: validation documents among 1,000 of the training text.
      packed: whether records are rows of several chunks.
      column: of parquet files and JSON lines.
    """

    units: Sequence[Sequence[Input]]
    num_train: int
    tokenizer: Tokenizer
    rule: Chunking
    valid_per_mille: int
    packed: bool
    column: str

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the bytes but the content of the inputs, as JSON holds it."""
        return {
            "tokenizer_sha256": self.tokenizer.sha256,
            "rule": self.stored_rule,
            "units_sha256": units_sha256(self.units),
            "num_train": self.num_train,
            "column": self.column,
        }

    @property
    def stored_rule(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self.rule),
            "valid_per_mille": self.valid_per_mille,
            "packed": self.packed,
        }

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
          {"splits": {split: {"records", "bytes", "documents", "chunks", "tokens"}}, "ids": [V] or
          [], "inputs_sha256": str}, where `ids` counts each id in the unit's training text.
        """
        with contextlib.ExitStack() as stack:
            writers = {
                split: stack.enter_context(ShardWriter(directory / name, self))
                for split, name in self.shards(unit).items()
            }
            for document in documents(self.units[unit], self.column):
                split = self.split_of(document, unit)
                writers[split].add(chunks_of(document, self.tokenizer, self.rule))
        return {
            "splits": {split: writer.counts for split, writer in writers.items()},
            "ids": writers[TRAIN].ids.tolist() if TRAIN in writers else [],
            "inputs_sha256": inputs_sha256(self.units[unit]),
        }

    def is_whole(self, directory: Path, unit: int, part: Mapping[str, Any]) -> bool:
        """Whether all shards of a unit are there and as large as its counts say."""
        sizes = {name: part["splits"][split]["bytes"] for split, name in self.shards(unit).items()}
        return all(have_size(directory / name, size) for name, size in sizes.items())

    def split_of(self, document: Document, unit: int) -> str:
        """Returns the split that a document of a unit belongs to."""
        if unit >= self.num_train or document.validates(self.valid_per_mille):
            return VALID
        return TRAIN

    def finish(self, directory: Path, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the manifest without the provenance, from the counts of all units.

        Raises:
          BadInputError: a split is empty.
        """
        del directory
        splits: dict[str, dict[str, Any]] = {}
        for split in (TRAIN, VALID):
            shards = [part["splits"][split] for part in parts if split in part["splits"]]
            splits[split] = {
                "count": sum(shard["records"] for shard in shards),
                **{key: sum(shard[key] for shard in shards) for key in COUNTED},
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
            "format_version": records.FORMAT_VERSION,
            "kind": text_records.KIND,
            "tokenizer_sha256": self.tokenizer.sha256,
            "vocab_size": self.tokenizer.vocab_size,
            "unigram_entropy": unigram_entropy(ids),
            "rule": self.stored_rule,
            "splits": splits,
            "settings": self.settings,
            "inputs_sha256": [part["inputs_sha256"] for part in parts],
        }


class ShardWriter:
    """Writes the chunks of one shard: a file that appears whole when the `with` block ends.

    Attributes:
      counts: records, bytes, documents, chunks, tokens; complete when the block has ended.
      ids: how often each id was written: int64 [V].
    """

    def __init__(self, path: Path, preparation: ChunkPreparation):
        self._path = path
        self._vocab_size = preparation.tokenizer.vocab_size
        self._row_length = preparation.rule.max_length if preparation.packed else None
        self._waiting: list[Chunk] = []  # to be packed
        self.counts = dict.fromkeys(("records", "bytes", *COUNTED), 0)
        self.ids = np.zeros(self._vocab_size, np.int64)

    def __enter__(self) -> "ShardWriter":
        # The process's id keeps apart a worker of a killed preparation that has not ended yet.
        self._beside = self._path.with_name(f"{UNFINISHED}{self._path.name}-{os.getpid()}")
        self._writer = array_record_module.ArrayRecordWriter(str(self._beside), OPTIONS)
        return self

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Adds the chunks of one document."""
        if not chunks:
            return
        tokens = np.concatenate([sentence for chunk in chunks for sentence in chunk])
        self.ids += np.bincount(tokens, minlength=self._vocab_size)
        for name, number in zip(COUNTED, (1, len(chunks), len(tokens)), strict=True):
            self.counts[name] += number
        if self._row_length is None:
            self._write(text_records.encode_chunk(chunk, self._vocab_size) for chunk in chunks)
            return
        self._waiting += chunks
        if len(self._waiting) >= PACKED_TOGETHER:
            self._write_rows()

    def _write_rows(self) -> None:
        rows = pack(self._waiting, self._row_length)
        self._write(text_records.encode_row(row, self._vocab_size) for row in rows)
        self._waiting = []

    def _write(self, encoded: Iterable[bytes]) -> None:
        for record in encoded:
            self._writer.write(record)
            self.counts["records"] += 1

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and self._waiting:
            self._write_rows()
        self._writer.close()
        if kind is None:
            self.counts["bytes"] = self._beside.stat().st_size
            self._beside.rename(self._path)
        else:
            self._beside.unlink()


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
