"""What a text set is made of: its settings, its shards, the counts of a unit, the manifest.

Worker processes (`corpus.preparation`) and the Apache Beam pipeline (`beam`) make the same bytes.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.corpus.chunking import Chunking, Document, chunks_of
from widenet_jax.corpus.inputs import documents
from widenet_jax.corpus.preparation import have_size, inputs_sha256, units_sha256
from widenet_jax.corpus.readers import Input
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data import records
from widenet_jax.data.sources import unigram_entropy
from widenet_jax.errors import BadInputError
from widenet_jax.text.data import text_records
from widenet_jax.text.prepare.shards import Layout, ShardCounts, ShardWriter

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

    @property
    def layout(self) -> Layout:
        row_length = self.rule.max_length if self.packed else None
        return Layout(self.tokenizer.vocab_size, row_length)

    def shards(self, unit: int) -> dict[str, str]:
        """Returns the file name of each split's shard of a unit."""
        names = {}
        total = len(self.units)
        first_valid = 0 if self.valid_per_mille else self.num_train
        if unit < self.num_train:
            names[TRAIN] = records.shard_name(TRAIN, unit, self.num_train)
        if unit >= first_valid:
            names[VALID] = records.shard_name(VALID, unit - first_valid, total - first_valid)
        return names

    def prepare_unit(self, directory: Path, unit: int) -> dict[str, Any]:
        """Writes the shards of one unit; returns its counts."""
        with contextlib.ExitStack() as stack:
            writers = {
                split: stack.enter_context(ShardWriter(directory / name, self.layout))
                for split, name in self.shards(unit).items()
            }
            for document in documents(self.units[unit], self.column):
                split = self.split_of(document, unit)
                writers[split].add(chunks_of(document, self.tokenizer, self.rule))
        return self.part(unit, {split: writer.written for split, writer in writers.items()})

    def is_whole(self, directory: Path, unit: int, part: Mapping[str, Any]) -> bool:
        """Whether all shards of a unit are there and as large as its counts say."""
        sizes = {name: part["splits"][split]["bytes"] for split, name in self.shards(unit).items()}
        return all(have_size(directory / name, size) for name, size in sizes.items())

    def finish(self, directory: Path, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the manifest but for the provenance; raises as `make_manifest`."""
        del directory
        return make_manifest(parts, self)

    def part(self, unit: int, shards: Mapping[str, ShardCounts]) -> dict[str, Any]:
        """Returns the counts of a unit, as JSON holds them.

        Args:
          unit: its number.
          shards: by split, the counts of the shard that was written.

        Returns:
          {"splits": {split: {"records", "bytes", "documents", "chunks", "tokens"}}, "ids": [V] or
          [], "inputs_sha256": str}, where `ids` counts each id in the unit's training text.
        """
        return {
            "splits": {split: dict(shard.counts) for split, shard in shards.items()},
            "ids": shards[TRAIN].ids.tolist() if TRAIN in shards else [],
            "inputs_sha256": inputs_sha256(self.units[unit]),
        }

    def split_of(self, document: Document, unit: int) -> str:
        """Returns the split that a document of a unit belongs to."""
        if unit >= self.num_train or document.validates(self.valid_per_mille):
            return VALID
        return TRAIN


def make_manifest(
    parts: Sequence[Mapping[str, Any]], preparation: ChunkPreparation
) -> dict[str, Any]:
    """Returns the content of dataset.json but for the provenance, from the counts of all units.

    Raises:
      BadInputError: a split is empty.
    """
    splits: dict[str, dict[str, Any]] = {}
    for part in parts:
        for split, counts in part["splits"].items():
            entry = splits.setdefault(
                split, {"count": 0, "documents": 0, "chunks": 0, "tokens": 0, "shards": []}
            )
            entry["count"] += counts["records"]
            for key in ("documents", "chunks", "tokens"):
                entry[key] += counts[key]
            entry["shards"].append({key: counts[key] for key in ("records", "bytes")})
    for split in (TRAIN, VALID):
        if not splits.get(split, {}).get("count"):
            documents = sum(entry["documents"] for entry in splits.values())
            raise BadInputError(
                f"split {split}: no text found for it in {documents} documents; name a file with "
                "--valid, or more documents with --valid_per_mille"
            )
    ids = np.sum([part["ids"] for part in parts if part["ids"]], axis=0)
    return {
        "format_version": records.FORMAT_VERSION,
        "kind": text_records.KIND,
        "tokenizer_sha256": preparation.tokenizer.sha256,
        "vocab_size": preparation.tokenizer.vocab_size,
        "unigram_entropy": unigram_entropy(ids),
        "rule": preparation.stored_rule,
        "splits": splits,
        "settings": preparation.settings,
        "inputs_sha256": [part["inputs_sha256"] for part in parts],
    }
