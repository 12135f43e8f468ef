"""Dropout whose random numbers cost a few integer operations each."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.typing import Array

# Odd multipliers of a 32-bit mixer (Wellons, "hash prospector", lowbias32), as signed numbers.
MIX = (0x7FEB352D, 0x846CA68B - 2**32)

# Random uint32 words: one a row [...], one a column [D].
Words = tuple[Array, Array]


def draw_words(key: Array, rows: tuple[int, ...], columns: int) -> Words:
    """Draws the random words of a mask of shape [*rows, columns]; see `keep_mask`."""
    row_key, column_key = jax.random.split(key)
    row = jax.random.bits(row_key, rows, jnp.uint32)
    return row, jax.random.bits(column_key, (columns,), jnp.uint32)


def keep_mask(words: Words, rate: float) -> Array:
    """Returns booleans [*rows, columns], each False with probability `rate`.

    The entries behave as if drawn independently: each is a hash of its row's random word and its
    column's. A generator such as threefry spends some hundred operations an entry, and inside a
    fused product it spends them in the forward and again in the backward pass; this hash spends
    seven. The mask depends on positions alone, so it does not depend on the devices.

    Args:
      words: from `draw_words`; rows may be permuted.
      rate: in [0, 1), in steps of 2**-32.
    """
    row, column = words
    x = jax.lax.bitcast_convert_type(row[..., None] ^ column, jnp.int32)  # TPUs compare signed
    x = x * jnp.int32(MIX[0])
    x = x ^ jax.lax.shift_right_logical(x, 15)
    x = x * jnp.int32(MIX[1])
    return x >= jnp.int32(round(rate * 2**32) - 2**31)


def drop(x: Array, words: Words | None, rate: float) -> Array:
    """Sets each entry of x to 0 with probability `rate`, else to x / (1 - rate).

    Returns x where `words` is None.
    """
    if words is None:
        return x
    # In float32: 1 - 0.1 rounded to bfloat16 would make every entry 0.18% too large.
    scaled = (x.astype(jnp.float32) / (1 - rate)).astype(x.dtype)
    return jnp.where(keep_mask(words, rate), scaled, jnp.zeros((), x.dtype))


class Dropout(nn.Module):
    """`drop` in training, with the random stream "dropout"; the identity in evaluation.

    Attributes:
      rate: in [0, 1).
    """

    rate: float

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:  # any shape
        if not (train and self.rate):
            return x
        return drop(x, draw_words(self.make_rng("dropout"), x.shape[:-1], x.shape[-1]), self.rate)
