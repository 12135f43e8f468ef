"""Records of chunks and rows, and the packing of chunks into rows."""

import struct
from functools import partial

import numpy as np
import pytest

from widenet_jax.text.data import text_records as records
from widenet_jax.text.data.instances import MOST_CHUNKS
from widenet_jax.text.prepare.preparation import length_in_row, pack

CHUNK = [np.array([5, 6, 7], np.int32), np.array([8], np.int32), np.array([65_535, 0], np.int32)]


encode, decode = (partial(f, packed=False) for f in (records.encode_record, records.decode_record))


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_bytes_of_a_chunk():
    small = encode([CHUNK], 65_536)
    assert small == struct.pack("<H3H6H", 3, 3, 1, 2, 5, 6, 7, 8, 65_535, 0)
    large = encode([CHUNK], 65_537)
    assert large == struct.pack("<H3H6I", 3, 3, 1, 2, 5, 6, 7, 8, 65_535, 0)


@pytest.mark.parametrize("vocab_size", [65_536, 65_537])
def test_round_trip(vocab_size: int):
    rng = np.random.default_rng(0)
    for count in (1, 2, 7):
        chunk = [rng.integers(vocab_size, size=rng.integers(1, 600)) for _ in range(count)]
        (decoded,) = decode(encode([chunk], vocab_size), vocab_size)
        assert same(decoded, chunk) and {part.dtype for part in decoded} == {np.dtype(np.int32)}
        row = [chunk, chunk[:1]]
        read = decode(encode(row, vocab_size, packed=True), vocab_size, packed=True)
        assert all(same(*pair) for pair in zip(read, row, strict=True))


@pytest.mark.parametrize(
    "damage", [lambda r: r[:-1], lambda r: r + b"\0", lambda r: b"", lambda r: b"\xff" * 9]
)
def test_a_damaged_record_raises(damage):
    record = damage(encode([CHUNK], 30_000))
    with pytest.raises((ValueError, struct.error)):
        decode(record, 30_000)
    with pytest.raises((ValueError, struct.error)):
        decode(b"\1\0" + record, 30_000, packed=True)


def chunk(length: int) -> list[np.ndarray]:
    return [np.zeros(length, np.int32)]


@pytest.mark.parametrize(
    ("lengths", "max_length", "rows"),
    [
        # With three special tokens 7, 6, 5, 4 and 3 take 10, 9, 8, 7 and 6 of 16. 10 and 9 open
        # rows of room 6 and 7. 8 opens the third. 7 fits the second row best, 6 the first.
        ([7, 6, 5, 4, 3], 16, [[3, 7], [4, 6], [5]]),
        ([50, 1], 16, [[1], [50]]),  # a chunk longer than a row takes a whole one
        ([1] * 20, 512, [[1] * 4, [1] * 8, [1] * 8]),  # a row has at most eight chunks
    ],
)
def test_the_longest_go_first_into_the_fullest_row_that_has_room(
    lengths: list[int], max_length: int, rows: list[list[int]]
):
    packed = pack([chunk(length) for length in lengths], max_length)
    assert sorted(sorted(len(part[0]) for part in row) for row in packed) == rows


def test_every_chunk_is_in_one_row_and_rows_are_full():
    rng = np.random.default_rng(0)
    chunks = [chunk(int(n)) for n in rng.integers(2, 700, 3000)]
    rows = pack(chunks, 512)
    assert sorted(id(c) for row in rows for c in row) == sorted(map(id, chunks))
    used = [sum(length_in_row(c, 512) for c in row) for row in rows]
    assert max(used) <= 512 and max(map(len, rows)) <= MOST_CHUNKS
    assert np.mean(used) / 512 > 0.99
