"""Loss and metrics that tasks with one label an example share, of images or of texts."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from widenet_jax.task import Evaluation, Metrics, layer_losses, layer_sums
from widenet_jax.typing import Array, Aux


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
