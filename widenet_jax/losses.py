"""Losses on dense targets, in float32 whatever the model computes in."""

import jax
import jax.numpy as jnp

from widenet_jax.typing import Array


def smooth_labels(target: Array, smoothing: float) -> Array:
    """(1 - smoothing) * target + smoothing / V; a distribution stays one.

    Linear in the target, so it commutes with mixup.

    Args:
      target: [..., V], rows that sum to 1.
      smoothing: in [0, 1]; 0 returns the target.
    """
    return (1.0 - smoothing) * target + smoothing / target.shape[-1]


def softmax_cross_entropy(logits: Array, target: Array) -> Array:
    """-sum_v target_v * log softmax(logits)_v, for each example.

    Args:
      logits: [..., V], any float type.
      target: [..., V], rows that sum to 1.

    Returns:
      [...] float32.
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -jnp.sum(target.astype(jnp.float32) * log_probs, axis=-1)


def masked_mean(values: Array, mask: Array | None = None) -> Array:
    """Mean over the entries the mask keeps; 0 if it keeps none. float32 scalar.

    Args:
      values: any shape. What is masked may be anything, NaN included.
      mask: the shape of `values`, bool or 0/1; None keeps all.
    """
    values = values.astype(jnp.float32)
    if mask is None:
        return jnp.mean(values)
    kept = mask.astype(bool)
    count = jnp.sum(kept, dtype=jnp.float32)
    return jnp.sum(jnp.where(kept, values, 0.0)) / jnp.maximum(count, 1.0)
