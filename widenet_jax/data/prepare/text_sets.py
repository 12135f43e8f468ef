"""Preparation of a text set: units of work in worker processes, an output shard for each unit.

A unit's shards get their names once they are whole, and its counts are stored in a part file. So a
preparation may be killed at any time: run it again, and it continues with the units that have no
part file. The bytes of the shards depend neither on that nor on the number of workers.
`dataset.json` is written last.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module

from widenet_jax.data import records
from widenet_jax.data.prepare.text_inputs import Input, documents
from widenet_jax.data.text import packing, text_records
from widenet_jax.data.text.chunking import Chunk, Chunking, Document, chunks_of
from widenet_jax.data.text.tokenizer import FILE, Tokenizer
from widenet_jax.data.text.unigrams import unigram_entropy
from widenet_jax.data.workers import start_worker
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.files import write_json

PLAN = ".preparation.json"  # settings of the preparation that a directory holds
_PART = ".part-"
_UNFINISHED = ".writing-"
TRAIN, VALID = "train", "valid"
OPTIONS = "group_size:1"  # random access reads single records


@dataclass(frozen=True)
class Preparation:
    """Everything that decides the bytes of a set.

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
        """Everything that decides the bytes, as JSON holds it."""
        inputs = [[_identity(part) for part in unit] for unit in self.units]
        return {
            "tokenizer_sha256": self.tokenizer.sha256,
            "rule": self.stored_rule,
            "inputs_sha256": hashlib.sha256(json.dumps(inputs).encode()).hexdigest(),
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
        names = {}
        total = len(self.units)
        first_valid = 0 if self.valid_per_mille else self.num_train
        if unit < self.num_train:
            names[TRAIN] = records.shard_name(TRAIN, unit, self.num_train)
        if unit >= first_valid:
            names[VALID] = records.shard_name(VALID, unit - first_valid, total - first_valid)
        return names

    def split_of(self, document: Document, unit: int) -> str:
        """Returns the split that a document of a unit belongs to."""
        if unit >= self.num_train or document.validates(self.valid_per_mille):
            return VALID
        return TRAIN


def _identity(part: Input) -> list:
    size = os.stat(part.path).st_size
    return [part.name, part.format, part.first, part.last, part.split, size]


def prepare(
    preparation: Preparation,
    directory: str | Path,
    *,
    workers: int,
    provenance: Mapping[str, Any],
    overwrite: bool = False,
    on_unit: Any = None,
) -> dict[str, Any]:
    """Prepares a set, or what a stopped preparation has left of it.

    Args:
      preparation: what to make.
      directory: where; created if absent. A finished set of the same settings is left as it is.
      workers: processes; at most one works on a unit.
      provenance: kept in the manifest.
      overwrite: remove another set that is there.
      on_unit: called with the counts of each unit that is finished, for the progress bar.

    Returns:
      The manifest.

    Raises:
      BadInputError: an input cannot be read, a split is empty, or the directory holds other things.
      RunFailedError: a worker process was killed.
    """
    directory = Path(directory)
    _open_directory(directory, preparation, overwrite)
    write_json(directory / FILE, preparation.tokenizer.json)
    done: dict[int, dict] = {}
    for unit, part in _work(preparation, directory, workers):
        done[unit] = part
        if on_unit:
            on_unit(part)
    manifest = _manifest([done[unit] for unit in range(len(preparation.units))], preparation)
    manifest["provenance"] = dict(provenance)
    write_json(directory / records.MANIFEST, manifest)
    for path in (
        directory / PLAN,
        *directory.glob(f"{_PART}*"),
        *directory.glob(f"{_UNFINISHED}*"),
    ):
        path.unlink(missing_ok=True)
    return manifest


# --- The directory --------------------------------------------------------------------------------


def _open_directory(directory: Path, preparation: Preparation, overwrite: bool) -> None:
    """Makes the directory ready, or raises BadInputError if it holds other things."""
    if directory.exists() and not directory.is_dir():
        raise BadInputError(f"{directory}: is a file; give --out a directory")
    directory.mkdir(parents=True, exist_ok=True)
    ours = [
        *(directory / name for name in (PLAN, FILE, records.MANIFEST)),
        *(path for prefix in (_PART, _UNFINISHED) for path in directory.glob(f"{prefix}*")),
        *directory.glob("*.array_record"),
    ]
    others = sorted({path.name for path in directory.iterdir()} - {path.name for path in ours})
    others = [name for name in others if not name.endswith(".tmp")]
    if others:
        raise BadInputError(
            f"{directory}: holds other files ({others[0]}, ...); give --out a new directory"
        )
    held = _held_settings(directory)
    if held == preparation.settings:
        return
    if any(path.exists() for path in ours):
        if not overwrite:
            what = _difference(held, preparation.settings)
            raise BadInputError(f"{directory}: already holds {what}; pass --overwrite")
        for path in ours:
            path.unlink(missing_ok=True)
    write_json(directory / PLAN, preparation.settings)


def _held_settings(directory: Path) -> dict[str, Any] | None:
    for name in (records.MANIFEST, PLAN):
        with contextlib.suppress(OSError, ValueError):
            content = json.loads((directory / name).read_bytes())
            return content.get("settings", content) if isinstance(content, dict) else None
    return None


def _difference(held: dict[str, Any] | None, wanted: Mapping[str, Any]) -> str:
    if not held or "rule" not in held:
        return "a set"
    changed = [key for key in wanted["rule"] if held["rule"].get(key) != wanted["rule"][key]]
    if changed:
        return f"a text set with {changed[0]}={held['rule'].get(changed[0])}"
    if held["tokenizer_sha256"] != wanted["tokenizer_sha256"]:
        return "a text set of another tokenizer"
    return "a text set of other inputs"


# --- The work -------------------------------------------------------------------------------------


def _work(
    preparation: Preparation, directory: Path, workers: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (unit, its counts) as units are finished, those of an earlier run first."""
    left = []
    for unit in range(len(preparation.units)):
        part = _finished(preparation, directory, unit)
        if part:
            yield unit, part
        else:
            left.append(unit)
    if workers == 1 or len(left) <= 1:
        for unit in left:
            yield unit, prepare_unit(preparation, directory, unit)
        return
    # The parent's threads, such as those of ArrayRecord, would not survive a fork.
    pool = futures.ProcessPoolExecutor(
        min(workers, len(left)), get_context("spawn"), start_worker, (0, workers)
    )
    try:
        running = {pool.submit(prepare_unit, preparation, directory, u): u for u in left}
        for future in futures.as_completed(running):
            yield running[future], future.result()
    except futures.process.BrokenProcessPool:
        raise RunFailedError(
            "a worker process was killed, perhaps for want of memory; run the command again to "
            "continue, with fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(preparation: Preparation, directory: Path, unit: int) -> dict[str, Any] | None:
    """Returns the counts of a unit whose shards are all there, else None."""
    try:
        part = json.loads((directory / f"{_PART}{unit:05d}.json").read_bytes())
        for split, name in preparation.shards(unit).items():
            if (directory / name).stat().st_size != part["splits"][split]["bytes"]:
                return None
    except (OSError, ValueError, KeyError):
        return None
    return part


def prepare_unit(preparation: Preparation, directory: Path, unit: int) -> dict[str, Any]:
    """Writes the shards of one unit; returns, and stores, its counts.

    Returns:
      {"splits": {split: {"records", "bytes", "documents", "chunks", "tokens"}}, "ids": [V]}, where
      `ids` counts each id in the unit's training text.
    """
    shards = preparation.shards(unit)
    with contextlib.ExitStack() as stack:
        writers = {
            split: stack.enter_context(ShardWriter(directory / name, preparation))
            for split, name in shards.items()
        }
        for document in documents(preparation.units[unit], preparation.column):
            split = preparation.split_of(document, unit)
            writers[split].add(chunks_of(document, preparation.tokenizer, preparation.rule))
    ids = writers[TRAIN].ids if TRAIN in writers else np.zeros(0, np.int64)
    part = {"splits": {split: w.counts for split, w in writers.items()}, "ids": ids.tolist()}
    write_json(directory / f"{_PART}{unit:05d}.json", part)
    return part


class ShardWriter:
    """Writes the chunks of one shard: a file that appears whole when the `with` block ends.

    Attributes:
      counts: of the shard: records, bytes, documents, chunks, tokens.
      ids: how often each id was written: int64 [V].
    """

    def __init__(self, path: Path, preparation: Preparation):
        self._path = path
        self._vocab_size = preparation.tokenizer.vocab_size
        self._row_length = preparation.rule.max_length if preparation.packed else None
        self._waiting: list[Chunk] = []  # to be packed
        self.counts = dict.fromkeys(("records", "bytes", "documents", "chunks", "tokens"), 0)
        self.ids = np.zeros(self._vocab_size, np.int64)

    def __enter__(self) -> "ShardWriter":
        # The process's id keeps apart a worker of a killed preparation that has not ended yet.
        self._beside = self._path.with_name(f"{_UNFINISHED}{self._path.name}-{os.getpid()}")
        self._writer = array_record_module.ArrayRecordWriter(str(self._beside), OPTIONS)
        return self

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Adds the chunks of one document."""
        if not chunks:
            return
        tokens = np.concatenate([sentence for chunk in chunks for sentence in chunk])
        self.ids += np.bincount(tokens, minlength=self._vocab_size)
        self.counts["documents"] += 1
        self.counts["chunks"] += len(chunks)
        self.counts["tokens"] += len(tokens)
        if self._row_length is None:
            self._write(text_records.encode_chunk(chunk, self._vocab_size) for chunk in chunks)
            return
        self._waiting += chunks
        if len(self._waiting) >= packing.WINDOW:
            self._write_rows()

    def _write_rows(self) -> None:
        rows = packing.pack(self._waiting, self._row_length)
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


def _manifest(parts: Sequence[dict[str, Any]], preparation: Preparation) -> dict[str, Any]:
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
            raise BadInputError(
                f"split {split}: no text found for it; check the inputs, --valid and "
                "--valid_per_mille"
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
    }
