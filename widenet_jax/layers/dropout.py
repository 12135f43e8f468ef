"""Dropout whose random numbers cost a few integer operations each."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.typing import Array

# Odd multipliers of a 32-bit mixer (Wellons, "hash prospector", lowbias32), as signed numbers.
MIX = (0x7FEB352D, 0x846CA68B - 2**32)


def keep_mask(key: Array, shape: tuple[int, ...], rate: float) -> Array:
    """Booleans of `shape`, each False with probability `rate`, as if drawn independently.

    Every row (all axes but the last) and every column (the last) draws one random word; an entry
    is a hash of its row's and its column's. A generator such as threefry spends some hundred
    operations an entry, and inside a fused matmul it spends them anew in forward and backward;
    this spends seven. Being a function of the position, it does not depend on the devices.

    Args:
      key: a PRNG key.
      shape: at least one axis.
      rate: in [0, 1), in steps of 2**-32.
    """
    row_key, column_key = jax.random.split(key)
    row = jax.random.bits(row_key, shape[:-1], jnp.uint32)[..., None]
    column = jax.random.bits(column_key, shape[-1:], jnp.uint32)
    x = jax.lax.bitcast_convert_type(row ^ column, jnp.int32)  # TPUs compare signed words
    x = x * jnp.int32(MIX[0])
    x = x ^ jax.lax.shift_right_logical(x, 15)
    x = x * jnp.int32(MIX[1])
    return x >= jnp.int32(round(rate * 2**32) - 2**31)


def drop(x: Array, key: Array | None, rate: float) -> Array:
    """Each entry of x is 0 with probability `rate`, else x / (1 - rate); x where key is None."""
    if key is None:
        return x
    # In float32: 1 - 0.1 rounded to bfloat16 would make every entry 0.18% too large.
    scaled = (x.astype(jnp.float32) / (1 - rate)).astype(x.dtype)
    return jnp.where(keep_mask(key, x.shape, rate), scaled, jnp.zeros((), x.dtype))


class Dropout(nn.Module):
    """`drop` in training, by the random stream "dropout"; the identity in evaluation.

    Attributes:
      rate: in [0, 1).
    """

    rate: float

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:  # any shape
        return drop(x, self.make_rng("dropout") if train and self.rate else None, self.rate)
