"""Pooling: from the tokens of an example to one vector."""

import jax.numpy as jnp

from widenet_jax.typing import Array


def pool_token(x: Array, mask: Array | None) -> Array:  # [B, T, D] -> [B, D]
    """Returns the first token (CLS)."""
    del mask
    return x[:, 0]


def pool_mean(x: Array, mask: Array | None) -> Array:  # [B, T, D], [B, T] -> [B, D]
    """Returns the mean over real tokens; zero for an example that is all padding."""
    if mask is None:
        return x.mean(axis=1)
    weight = mask[..., None].astype(x.dtype)
    return (x * weight).sum(axis=1) / jnp.maximum(weight.sum(axis=1), 1)


POOLS = {"token": pool_token, "mean": pool_mean}
