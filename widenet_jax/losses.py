"""Cross-entropies, in float32 whatever the model's dtype; loss and metrics of classifiers."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.data.contract import Source
from widenet_jax.task import (
    Apply,
    Baseline,
    Evaluation,
    Metrics,
    PrimaryMetric,
    Task,
    add_layer_losses,
)
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


# What to do about a model that answers one class.
ADVICE = (
    "a model that always answers that class reaches as much; train longer (config.duration), try "
    "another config.optimizer.learning_rate, or balance the classes"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTask(Task):
    """Base of tasks with one label an example, of images or of texts.

    A subclass gives `inputs` and `loss`.

    Attributes:
      largest_share: see `DataInfo`.
    """

    largest_share: float | None = None

    primary_metric: ClassVar[PrimaryMetric] = PrimaryMetric("accuracy")

    @property
    def baseline(self) -> Baseline | None:
        if self.largest_share is None:
            return None
        name = "share of the largest class"
        return Baseline("accuracy", self.largest_share, name, ADVICE, higher_is_better=True)

    def evaluate(self, apply: Apply, batch: Mapping[str, Array]) -> Evaluation:
        logits, aux = apply(self.inputs(batch), None)
        cross_entropy, mask = label_cross_entropy(logits, batch["label"]), batch["mask"]
        sums = {
            "cross_entropy": jnp.where(mask, cross_entropy, 0.0).sum(),
            "correct": ((logits.argmax(-1) == batch["label"]) & mask).sum(dtype=jnp.int32),
            self.unit: mask.sum(dtype=jnp.int32),
        }
        return Evaluation(sums=sums, layer_sums=aux.get("sums", {}))

    def summarize(
        self, sums: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], source: Source
    ) -> dict[str, float]:
        return {
            "accuracy": float(sums["correct"] / sums[self.unit]),
            "cross_entropy": float(sums["cross_entropy"] / sums[self.unit]),
            self.unit: int(sums[self.unit]),
        }


def batch_loss(cross_entropy: Array, right: Array, aux: Aux) -> tuple[Array, Metrics]:
    """Returns the scalar loss and the metrics of a training batch.

    Args:
      cross_entropy: scalar, mean over the batch.
      right: [B] bool, which examples the model classifies as labelled.
      aux: of the model; the feed-forwards' own losses are added (eq. 8).
    """
    means = {"cross_entropy": cross_entropy, "accuracy": right.mean()}
    return add_layer_losses(cross_entropy, means, aux)
