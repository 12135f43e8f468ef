"""The k largest of many numbers, without sorting them."""

import jax
import jax.numpy as jnp

from widenet_jax.typing import Array


def keys_of(x: Array) -> Array:
    """Returns int32 numbers in the order of the floats x, which lose nothing in float32."""
    x = x.astype(jnp.float32)
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.int32)  # -0 becomes 0
    return bits ^ (jax.lax.shift_right_arithmetic(bits, 31) & jnp.int32(2**31 - 1))


def floats_of(keys: Array) -> Array:
    """Returns the float32 numbers of `keys_of`; -0 has become 0."""
    bits = keys ^ (jax.lax.shift_right_arithmetic(keys, 31) & jnp.int32(2**31 - 1))
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def kth_largest(keys: Array, k: int) -> Array:
    """Finds the k-th largest number, of equal ones each counted.

    Each of the 32 bits takes one pass that compares and counts, which on processors with vectors is
    several times faster than sorting, and needs no memory.

    Args:
      keys: [..., n] int32, as from `keys_of`.
      k: 1 to n.

    Returns:
      [..., 1] int32.
    """
    lowest = jnp.int32(-(2**31))

    def bit(i: Array, key: Array) -> Array:
        higher = key + jax.lax.shift_left(jnp.int32(1), 31 - i)  # the first sum overflows to 0
        enough = (keys >= higher).sum(-1, keepdims=True, dtype=jnp.int32) >= k
        return jnp.where(enough, higher, key)

    return jax.lax.fori_loop(0, 32, bit, jnp.full_like(keys[..., :1], lowest))


def last_of_largest(keys: Array, k: int) -> tuple[Array, Array]:
    """Finds the smallest of the k largest keys, and the last place where it is among them.

    Of equal keys those that come first are chosen. With `place` from 0 to n - 1, the chosen are

        (keys > key) | ((keys == key) & (place <= last))

    The key is found as by `kth_largest`. The place takes as many passes as it has bits, but only
    where some row has more keys equal to `key` than it may keep.

    Args:
      keys: [..., n] int32, as from `keys_of`.
      k: 1 to n.

    Returns:
      key and last, both [..., 1] int32.
    """
    n = keys.shape[-1]
    place = jnp.arange(n, dtype=jnp.int32)
    key = kth_largest(keys, k)
    equal = keys == key
    above = (keys > key).sum(-1, keepdims=True, dtype=jnp.int32)
    excess = (above + equal.sum(-1, keepdims=True, dtype=jnp.int32) > k).any()
    bits = jnp.where(excess, (n - 1).bit_length(), 0)

    def bit_of_place(i: Array, first: Array) -> Array:
        """Raises the bound `first` while the equal keys before it are fewer than may be kept."""
        higher = first + jax.lax.shift_left(jnp.int32(1), bits - 1 - i)
        below = (equal & (place < higher)).sum(-1, keepdims=True, dtype=jnp.int32)
        return jnp.where(above + below < k, higher, first)

    last = jax.lax.fori_loop(0, bits, bit_of_place, jnp.zeros_like(key))
    every = jnp.where(equal, place, 0).max(-1, keepdims=True)
    return key, jnp.where(excess, last, every)


def keep_largest(x: Array, k: int) -> Array:
    """Sets all but the k largest of x [..., n], which has no negative numbers, to 0.

    Of equal numbers the one with the lower index is kept. The gradient passes through those kept.
    """
    n = x.shape[-1]
    if k >= n:
        return x
    place = jnp.arange(n, dtype=jnp.int32)
    # Zeros get distinct negative keys: whichever are kept, the result is the same, and equal keys
    # would take another search.
    keys = jnp.where(x > 0, keys_of(jax.lax.stop_gradient(x)), -1 - place)
    key, last = last_of_largest(keys, k)
    return jnp.where((keys > key) | ((keys == key) & (place <= last)), x, jnp.zeros((), x.dtype))
