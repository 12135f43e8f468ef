"""Writing of one shard of a text set."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module

from widenet_jax.corpus.chunking import Chunk
from widenet_jax.corpus.preparation import UNFINISHED
from widenet_jax.text.data import packing, text_records

OPTIONS = "group_size:1"  # random access reads single records


class Layout(NamedTuple):
    """How records are written.

    Attributes:
      vocab_size: V.
      row_length: T of a packed set; None if a record is one chunk.
    """

    vocab_size: int
    row_length: int | None


class ShardCounts(NamedTuple):
    """What a shard holds.

    Attributes:
      counts: records, bytes, documents, chunks, tokens.
      ids: how often each id was written: int64 [V].
    """

    counts: dict[str, int]
    ids: np.ndarray


class ShardWriter:
    """Writes the chunks of one shard: a file that appears whole when the `with` block ends.

    Attributes:
      written: what it holds; complete when the block has ended.
    """

    def __init__(self, path: Path, layout: Layout):
        self._path = path
        self._vocab_size, self._row_length = layout
        self._waiting: list[Chunk] = []  # to be packed
        counts = dict.fromkeys(("records", "bytes", "documents", "chunks", "tokens"), 0)
        self.written = ShardCounts(counts, np.zeros(self._vocab_size, np.int64))

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
        counts, ids = self.written
        ids += np.bincount(tokens, minlength=self._vocab_size)
        counts["documents"] += 1
        counts["chunks"] += len(chunks)
        counts["tokens"] += len(tokens)
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
            self.written.counts["records"] += 1

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and self._waiting:
            self._write_rows()
        self._writer.close()
        if kind is None:
            self.written.counts["bytes"] = self._beside.stat().st_size
            self._beside.rename(self._path)
        else:
            self._beside.unlink()
