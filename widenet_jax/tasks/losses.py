"""Losses on dense targets, computed in float32 whatever the model's dtype."""

import jax
import jax.numpy as jnp

from widenet_jax.typing import Array


def smooth_labels(target: Array, smoothing: float) -> Array:
    """Smooths targets: (1 - smoothing) * target + smoothing / V. Rows still sum to 1.

    Affine in the target, so it commutes with mixup.

    Args:
      target: [..., V], rows that sum to 1.
      smoothing: in [0, 1]; 0 returns the target unchanged.
    """
    return (1.0 - smoothing) * target + smoothing / target.shape[-1]


def softmax_cross_entropy(logits: Array, target: Array) -> Array:
    """Computes -sum_v target_v * log softmax(logits)_v for each example.

    Args:
      logits: [..., V], any float type.
      target: [..., V], rows that sum to 1.

    Returns:
      [...] float32.
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -jnp.sum(target.astype(jnp.float32) * log_probs, axis=-1)
