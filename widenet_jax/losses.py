"""Cross-entropies, in float32 whatever the model's dtype; loss and metrics of classifiers."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.task import Evaluation, Metrics, layer_losses, layer_sums
from widenet_jax.typing import Array, Aux


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


# --- What tasks with one label an example share, of images or of texts


def batch_loss(cross_entropy: Array, right: Array, aux: Aux) -> tuple[Array, Metrics]:
    """Returns the scalar loss and the metrics of a training batch.

    Args:
      cross_entropy: scalar, mean over the batch.
      right: [B] bool, which examples the model classifies as labelled.
      aux: of the model; the feed-forwards' own losses are added (eq. 8).
    """
    of_layers, each = layer_losses(aux)
    loss = cross_entropy + of_layers
    means = {"cross_entropy": cross_entropy, "accuracy": right.mean(), **each, "loss": loss}
    return loss, Metrics(means=means, layer_sums=layer_sums(aux))


def batch_sums(
    cross_entropy: Array, logits: Array, batch: Mapping[str, Array], aux: Aux, *, unit: str
) -> Evaluation:
    """Returns the sums over the real examples of an evaluation batch.

    Args:
      cross_entropy: [B].
      logits: [B, V].
      batch: label [B] int32 and mask [B] bool.
      aux: of the model.
      unit: what an example is called.
    """
    mask = batch["mask"]
    sums = {
        "cross_entropy": jnp.where(mask, cross_entropy, 0.0).sum(),
        "correct": ((logits.argmax(-1) == batch["label"]) & mask).sum(dtype=jnp.int32),
        unit: mask.sum(dtype=jnp.int32),
    }
    return Evaluation(sums=sums, layer_sums=layer_sums(aux))


def split_metrics(sums: Mapping[str, np.ndarray], *, unit: str) -> dict[str, float]:
    """Returns the metrics of a split from its `batch_sums`, added up."""
    return {
        "accuracy": float(sums["correct"] / sums[unit]),
        "cross_entropy": float(sums["cross_entropy"] / sums[unit]),
        unit: int(sums[unit]),
    }
