"""Packing of chunks into rows."""

import numpy as np

from widenet_jax.text.data.instances import MOST_CHUNKS
from widenet_jax.text.prepare.preparation import length_in_row, pack


def chunk(length: int) -> list[np.ndarray]:
    return [np.zeros(length, np.int32)]


def rows_of(lengths: list[int], max_length: int) -> list[list[int]]:
    packed = pack([chunk(length) for length in lengths], max_length)
    return sorted(sorted(len(part[0]) for part in row) for row in packed)


def test_the_longest_go_first_into_the_fullest_row_that_has_room():
    # With three special tokens 7, 6, 5, 4 and 3 take 10, 9, 8, 7 and 6 of 16. 10 and 9 open rows
    # of room 6 and 7. 8 opens the third. 7 fits the second row best, 6 the first.
    assert rows_of([7, 6, 5, 4, 3], max_length=16) == [[3, 7], [4, 6], [5]]


def test_a_chunk_longer_than_a_row_takes_a_whole_one():
    assert rows_of([50, 1], max_length=16) == [[1], [50]]


def test_a_row_has_at_most_eight_chunks():
    assert rows_of([1] * 20, max_length=512) == [[1] * 4, [1] * 8, [1] * 8]


def test_every_chunk_is_in_one_row_and_rows_are_full():
    rng = np.random.default_rng(0)
    chunks = [chunk(int(n)) for n in rng.integers(2, 700, 3000)]
    rows = pack(chunks, 512)
    assert sorted(id(c) for row in rows for c in row) == sorted(map(id, chunks))
    used = [sum(length_in_row(c, 512) for c in row) for row in rows]
    assert max(used) <= 512 and max(map(len, rows)) <= MOST_CHUNKS
    assert np.mean(used) / 512 > 0.99
