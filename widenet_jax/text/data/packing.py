"""Packing of chunks into rows of T tokens, so that less of a batch is padding."""

from collections.abc import Sequence

from widenet_jax.corpus.chunking import SPECIALS, Chunk

MOST_CHUNKS = 8  # in a row
WINDOW = 1 << 16  # chunks packed together


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
