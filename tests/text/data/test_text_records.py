"""Records of chunks and rows."""

import struct

import numpy as np
import pytest

from widenet_jax.text.data import text_records as records

CHUNK = [np.array([5, 6, 7], np.int32), np.array([8], np.int32), np.array([65_535, 0], np.int32)]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_bytes_of_a_chunk():
    small = records.encode_chunk(CHUNK, 65_536)
    assert small == struct.pack("<H3H6H", 3, 3, 1, 2, 5, 6, 7, 8, 65_535, 0)
    large = records.encode_chunk(CHUNK, 65_537)
    assert large == struct.pack("<H3H6I", 3, 3, 1, 2, 5, 6, 7, 8, 65_535, 0)


@pytest.mark.parametrize("vocab_size", [30_000, 65_536, 65_537, 250_000])
def test_round_trip(vocab_size: int):
    rng = np.random.default_rng(0)
    for count in (1, 2, 7):
        chunk = [rng.integers(vocab_size, size=rng.integers(1, 600)) for _ in range(count)]
        decoded = records.decode_chunk(records.encode_chunk(chunk, vocab_size), vocab_size)
        assert same(decoded, chunk) and {part.dtype for part in decoded} == {np.dtype(np.int32)}
        row = [chunk, chunk[:1]]
        read = records.decode_row(records.encode_row(row, vocab_size), vocab_size)
        assert all(same(*pair) for pair in zip(read, row, strict=True))


@pytest.mark.parametrize(
    "damage", [lambda r: r[:-1], lambda r: r + b"\0", lambda r: b"", lambda r: b"\xff" * 9]
)
def test_a_damaged_record_raises(damage):
    record = damage(records.encode_chunk(CHUNK, 30_000))
    with pytest.raises((ValueError, struct.error)):
        records.decode_chunk(record, 30_000)
    with pytest.raises((ValueError, struct.error)):
        records.decode_row(b"\1\0" + record, 30_000)
