"""Cross-entropies against dense targets and labels, in float32 whatever the model's dtype."""

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


def label_cross_entropy(logits: Array, labels: Array) -> Array:
    """Computes -log softmax(logits)[label] for each example.

    The label's logit is picked by comparison with an iota, which fuses into the reduction. The
    gradient of a gather would be a scatter into the logits.

    Args:
      logits: [..., V], any float type.
      labels: [...], int.

    Returns:
      [...] float32.
    """
    logits = logits.astype(jnp.float32)
    picked = jnp.arange(logits.shape[-1]) == labels[..., None]
    label_logit = jnp.where(picked, logits, 0.0).sum(-1)
    return jax.nn.logsumexp(logits, axis=-1) - label_logit
