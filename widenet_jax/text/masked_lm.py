"""Pretraining of text encoders: masked tokens and sentence order (ALBERT, arXiv:1909.11942)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from widenet_jax.corpus import texts
from widenet_jax.data.contract import ArraySpec, DataInfo, Source
from widenet_jax.losses import label_cross_entropy
from widenet_jax.task import (
    Apply,
    Baseline,
    Evaluation,
    Metrics,
    PrimaryMetric,
    Rngs,
    Task,
    add_layer_losses,
)
from widenet_jax.typing import Array, Shapes

PREDICTION_WEIGHT, ORDER_WEIGHT = "prediction_weight", "order_weight"


@dataclass(frozen=True)
class MaskedLm(Task):
    """Mean NLL of the batch's predictions + mean order loss + the feed-forwards' own losses.

    A batch has tokens, token_types [B, T], mlm_positions, mlm_labels [B, P], mlm_count [B], and
    length and order [B]. A packed one has positions, segment_ids [B, T] instead of length, and for
    up to I instances a row order [B, I] and num_instances [B].

    Attributes:
      vocab_size: V.
      example: the arrays of one example.
      unigram_entropy: of the training split's tokens, in nats; None where it is unknown.
    """

    vocab_size: int
    example: Mapping[str, ArraySpec]
    unigram_entropy: float | None

    primary_metric: ClassVar[PrimaryMetric] = PrimaryMetric("mlm_loss", higher_is_better=False)
    unit: ClassVar[str] = "sequences"

    @classmethod
    def build(cls, _: ConfigDict, data_info: DataInfo) -> "MaskedLm":
        info = data_info.info
        return cls(info["vocab_size"], data_info.example, info.get("unigram_entropy"))

    @property
    def model_fields(self) -> dict[str, int | str]:
        return {"vocab_size": self.vocab_size, "head": "pretraining"}

    @property
    def baseline(self) -> Baseline | None:
        return texts.unigram_baseline("mlm_loss", self.unigram_entropy)

    def batch_spec(self, batch_size: int) -> Shapes:
        return texts.batch_spec(self.example, batch_size)

    def inputs(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        names = ("tokens", "token_types", "mlm_positions", "positions", "segment_ids")
        found = {name: batch[name] for name in names if name in batch}
        if "segment_ids" in batch:
            return {**found, "mask": batch["segment_ids"] > 0}
        return {**found, "mask": _first(batch["length"], batch["tokens"].shape[1])}

    def of_whole_batch(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Returns weights [B] of each sequence's predictions and order labels.

        A mean over the sequences of a part of the batch, weighted so, is that part's share of the
        mean over all predictions of the whole batch.
        """
        predicted, ordered = batch["mlm_count"], _order_count(batch)

        def weight(counts: Array) -> Array:
            size = counts.shape[0]
            total = jnp.maximum(counts.sum(), 1).astype(jnp.float32)
            return jnp.broadcast_to(size / total, (size,))

        return {PREDICTION_WEIGHT: weight(predicted), ORDER_WEIGHT: weight(ordered)}

    def loss(self, apply: Apply, batch: Mapping[str, Array], rngs: Rngs) -> tuple[Array, Metrics]:
        """batch: as the class says, and what `of_whole_batch` returns."""
        outputs, aux = apply(self.inputs(batch), rngs)
        sums = sequence_sums(outputs, batch)
        weights = {"mlm": batch[PREDICTION_WEIGHT], "order": batch[ORDER_WEIGHT]}
        means = {
            f"{head}_{name}": (sums[f"{head}_{name}"] * weight).mean()
            for head, weight in weights.items()
            for name in ("loss", "accuracy")
        }
        return add_layer_losses(means["mlm_loss"] + means["order_loss"], means, aux)

    def evaluate(self, apply: Apply, batch: Mapping[str, Array]) -> Evaluation:
        outputs, aux = apply(self.inputs(batch), None)
        mask = batch["mask"]
        each = {
            **sequence_sums(outputs, batch),
            "predictions": batch["mlm_count"],
            "orders": _order_count(batch),
            "sequences": jnp.ones_like(batch["mlm_count"]),
        }
        right, made = each["mlm_accuracy"], batch["mlm_count"].astype(jnp.float32)
        each |= {"right^2": right**2, "right*made": right * made, "made^2": made**2}
        sums = {name: jnp.where(mask, value, 0).sum() for name, value in each.items()}
        return Evaluation(sums=sums, layer_sums=aux.get("sums", {}))

    def summarize(
        self, sums: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], source: Source
    ) -> dict[str, float]:
        """Adds the standard error of `mlm_accuracy`, whose sequences vary as wholes.

        By the delta method, for a ratio of sums over sequences.
        """
        del rows, source
        counts = {"mlm": sums["predictions"], "order": sums["orders"]}
        means = {
            f"{head}_{name}": float(sums[f"{head}_{name}"] / count)
            for head, count in counts.items()
            for name in ("loss", "accuracy")
        }
        if (n := int(sums["sequences"])) > 1:
            share = means["mlm_accuracy"]
            squares = sums["right^2"] - 2 * share * sums["right*made"] + share**2 * sums["made^2"]
            deviation = math.sqrt(max(0.0, squares) * n / (n - 1))
            means["mlm_accuracy_se"] = deviation / float(sums["predictions"])
        return means | {name: int(sums[name]) for name in ("predictions", "sequences")}


def sequence_sums(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
    """Adds up losses and right answers over each sequence's predictions and order labels.

    Args:
      outputs: of the head "pretraining": mlm_logits [B, P, V], order_logits [B, 2] or [B, I, 2].
      batch: of `MaskedLm`.

    Returns:
      mlm_loss, mlm_accuracy, order_loss, order_accuracy: [B] float32.
    """
    order, logits = batch["order"], outputs["order_logits"]
    order, logits = order.reshape(len(order), -1), logits.reshape(len(order), -1, 2)
    heads = {
        "mlm": (outputs["mlm_logits"], batch["mlm_labels"], batch["mlm_count"]),
        "order": (logits, order, _order_count(batch)),
    }
    sums = {}
    for head, (scores, labels, count) in heads.items():
        real = _first(count, labels.shape[1])
        right = scores.argmax(-1) == labels
        sums[f"{head}_loss"] = jnp.where(real, label_cross_entropy(scores, labels), 0.0).sum(1)
        sums[f"{head}_accuracy"] = (right & real).sum(1).astype(jnp.float32)
    return sums


def _order_count(batch: Mapping[str, Array]) -> Array:
    """Returns how many order labels each sequence has: [B]."""
    return batch["num_instances"] if "num_instances" in batch else jnp.ones_like(batch["order"])


def _first(count: Array, size: int) -> Array:
    """Returns [B, size], True in the first `count` places of each row."""
    return jnp.arange(size) < count[:, None]
