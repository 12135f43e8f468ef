"""Writing of one shard of a text set."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module

from widenet_jax.corpus.chunking import SPECIALS, Chunk
from widenet_jax.corpus.preparation import UNFINISHED
from widenet_jax.text.data import text_records
from widenet_jax.text.data.instances import MOST_CHUNKS

PACKED_TOGETHER = 1 << 16  # chunks
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
        if len(self._waiting) >= PACKED_TOGETHER:
            self._write_rows()

    def _write_rows(self) -> None:
        rows = pack(self._waiting, self._row_length)
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
