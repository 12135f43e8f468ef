"""Rotary positions (RoPE): pairs of a head's dimensions are turned by the token's place.

Su et al. 2021, arXiv:2104.09864. The product of a query at place i and a key at place j then
depends on i - j and not on the places.
"""

from functools import cache

import jax.numpy as jnp
import numpy as np

from widenet_jax.typing import Array

BASE = 10_000


def rotate(x: Array, share: float) -> Array:
    """Rotates queries or keys [B, T, N, H] by their places 0 to T - 1.

    The first R dimensions of a head rotate. Their halves are paired (as in GPT-NeoX and Llama, not
    neighbours as in the paper): dimensions i and R/2 + i turn by t BASE^(-2i/R) at place t.

    Args:
      share: of the H dimensions; 0 returns x.
    """
    R = int(share * x.shape[-1]) // 2 * 2  # whole pairs
    if not R:
        return x
    cosines, sines = (jnp.asarray(wave)[:, None] for wave in waves(x.shape[1], R))
    first, second = jnp.split(x[..., :R].astype(jnp.float32), 2, axis=-1)
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    turned = [part.astype(x.dtype) for part in turned]
    return jnp.concatenate([*turned, x[..., R:]], axis=-1)


@cache
def waves(places: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cosines and sines [T, R/2] of all places; float32, of angles in float64."""
    angle = np.arange(places)[:, None] * float(BASE) ** (-np.arange(0, width, 2) / width)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
