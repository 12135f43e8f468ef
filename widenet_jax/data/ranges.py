"""Records of ArrayRecord shards on an object store: one request each, for many at the same time.

ArrayRecord's own reader opens a connection for each record, asks for all bytes up to the shard's
end, and waits. Here TensorStore reads the bytes of each record. ArrayRecord's reader then checks
and decodes them, in a file in memory that holds these bytes at their place in the shard.

A shard is a sequence of chunks, with a block header of 24 bytes at every 64 KiB. The chunk in the
last 64 KiB names the place of the footer, a chunk that lists where the chunk of each record begins.
"""

import os
import struct
import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow
import tensorstore as ts
from array_record.python import array_record_module

from widenet_jax.data.blocks import in_threads
from widenet_jax.errors import NO_ANSWER, NoAnswerError, first_line

BLOCK, BLOCK_HEADER, CHUNK_HEADER = 1 << 16, 24, 40
TAIL = 4 * BLOCK  # bytes of a shard that are read first: the footer of 20,000 records, or more
REQUESTS = 512  # at a time, of a process


class Ranges(Sequence[bytes]):
    """The records of a split whose shards are on gs://.

    Pickled copies, as in worker processes, read what they need again.

    Args:
      shards: of the split, `data.shards.Shards`, whole ones.
      sizes: bytes of each.
    """

    def __init__(self, shards: Any, sizes: Sequence[int]):
        self.shards, self.sizes = shards, sizes
        self._opened: dict[int, tuple[Any, np.ndarray, Any]] = {}  # by shard
        self._coming: dict[int, Any] = {}  # by record: its request
        self._opening = defaultdict(threading.Lock)  # by shard
        self._lock = threading.Lock()  # of the file in memory
        self._file = os.memfd_create("records")
        weakref.finalize(self, os.close, self._file)
        self._context = ts.Context({"gcs_request_concurrency": {"limit": REQUESTS}})

    def __reduce__(self) -> tuple[Any, ...]:
        return Ranges, (self.shards, self.sizes)

    def __len__(self) -> int:
        return sum(self.shards.takes)

    def ahead(self, records: np.ndarray) -> None:
        """Asks for records, which are then taken one by one."""
        indices = records.tolist()
        with suppress(Exception):  # raised again as a record is taken
            self._coming.update(zip(indices, in_threads(self._ask, indices), strict=True))

    def __getitem__(self, index: int) -> bytes:
        shard, record = self.shards.locate(index)
        request = self._coming.pop(index, None)
        for last in (False, True):
            try:
                _, ends, reader = self._open(shard)
                content = answer_of(request or self._ask(index))
                break
            except ConnectionError as error:
                self.shards.check(shard)  # asks in another way, and tells of a refusal that stays
                if last:
                    told = f"{NO_ANSWER} ({error}); run the same command again"
                    raise NoAnswerError(told) from error
                request = None
            except (ArithmeticError, MemoryError) as error:  # of a damaged footer
                raise RuntimeError(first_line(error)) from error
        with self._lock:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, content, ends[record])
            return reader.read([record])[0]

    def _ask(self, index: int) -> Any:
        shard, record = self.shards.locate(index)
        store, ends, _ = self._open(shard)
        return store.read("", byte_range=slice(*ends[record : record + 2].tolist()))

    def _open(self, shard: int) -> tuple[Any, np.ndarray, Any]:
        """Returns a shard's store, the places of its chunks with the footer's, and its reader."""
        with self._opening[shard]:
            if shard not in self._opened:
                self._opened[shard] = self._newly_opened(shard)
            return self._opened[shard]

    def _newly_opened(self, shard: int) -> tuple[Any, np.ndarray, Any]:
        bucket, _, key = self.shards.paths[shard].removeprefix("gs://").partition("/")
        place = {"driver": "gcs", "bucket": bucket, "path": key}
        store, size = ts.KvStore.open(place, context=self._context).result(), self.sizes[shard]
        start = size - min(TAIL, size)
        content = answer_of(store.read("", byte_range=slice(start, None)))
        footer = int(numbers(chunk_at(content, size - BLOCK, size))[1])
        if footer < start:
            start, content = footer, answer_of(store.read("", byte_range=slice(footer, None)))
        chunk = chunk_at(content, footer, size)
        length, first = number_at(chunk, 1)  # of what the footer tells of the shard
        starts = numbers(chunk[first + length :]).reshape(-1, 6)[:, 1]
        with self._lock:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, content, start)
            place = f"/proc/self/fd/{self._file}"
            reader = array_record_module.ArrayRecordReader(place, "readahead_buffer_size:0")
            if not reader.num_records() == len(starts) == self.shards.sizes[shard]:
                raise RuntimeError(f"{len(starts)} records found")
        return store, np.append(starts, footer), reader


def answer_of(request: ts.Future) -> bytes:
    """Returns the bytes that TensorStore has asked for; it tries for 15 minutes.

    Raises:
      ConnectionError: a store does not answer, or refuses.
    """
    try:
        answer = request.result()
    except ValueError as error:
        raise ConnectionError(first_line(error)) from error
    if answer.state != "value":
        raise ConnectionError("status 404")
    return answer.value


def chunk_at(content: bytes, place: int, size: int) -> bytes:
    """Returns the records of the chunk at a place of a shard of `size` bytes, joined.

    `content` is the end of the shard.
    """
    content, first = content[place - size :], -place % BLOCK
    after = (content[k + BLOCK_HEADER : k + BLOCK] for k in range(first, len(content), BLOCK))
    chunk = b"".join([content[:first], *after])
    (length,) = struct.unpack_from("<8xQ", chunk)
    data = chunk[CHUNK_HEADER : CHUNK_HEADER + length]
    # The kind of compression, the size of the records' lengths, these, and the records: plain (0),
    # or in Zstandard's format after their size.
    count, start = number_at(data, 1)
    records = data[start + count :]
    if data[0] == 0:
        return records
    length, start = number_at(records, 0)
    return pyarrow.Codec("zstd").decompress(records[start:], length).to_pybytes()


def number_at(data: bytes, place: int) -> tuple[int, int]:
    """Returns the number that begins at a place, and where it ends; see `numbers`."""
    last = np.argmax(np.frombuffer(data[place : place + 10], np.uint8) < 128)  # ValueError: no byte
    end = place + int(last) + 1
    return int(numbers(data[place:end])[0]), end


def numbers(data: bytes) -> np.ndarray:
    """Decodes numbers of seven bits a byte, the lowest first; all bytes but the last have bit 7."""
    values = np.frombuffer(data, np.uint8).astype(np.int64)
    starts = np.flatnonzero(np.append(True, values[:-1] < 128))
    places = np.arange(len(values)) - np.repeat(starts, np.diff(np.append(starts, len(values))))
    return np.add.reduceat((values & 127) << 7 * places, starts)
