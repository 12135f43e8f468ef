"""Image classification: what a batch means, the loss, the metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.tasks.losses import smooth_labels, softmax_cross_entropy
from widenet_jax.tasks.mixup import mixup
from widenet_jax.typing import Array, Aux

# (images, mask, rngs) -> (logits, aux); rngs None: evaluation.
Apply = Callable[[Array, Array | None, dict[str, Array] | None], tuple[Array, Aux]]

# Aux entries that are losses, one number a routing operation; the rest are sums over tokens.
LOSSES = ("loss", "load_balance_loss")


@dataclass(frozen=True)
class Classification:
    """Cross-entropy against smoothed, mixed labels, plus the layers' own losses (eq. 8).

    Attributes:
      num_classes: V.
      label_smoothing: after mixup, which is the same as before: both are linear.
      mixup_alpha: 0 for none.
      mixup_group_size: partners come from the same group of consecutive images.
    """

    num_classes: int
    label_smoothing: float
    mixup_alpha: float
    mixup_group_size: int

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise BadInputError(
                f"config.task.label_smoothing={self.label_smoothing} must be in [0, 1)"
            )
        if self.mixup_alpha < 0:
            raise BadInputError(
                f"config.augment.mixup_alpha={self.mixup_alpha} must be above 0, or 0 for none"
            )

    def loss(
        self, apply: Apply, batch: Mapping[str, Array], rngs: dict[str, Array]
    ) -> tuple[Array, tuple[Aux, Aux]]:
        """The scalar to minimise, metrics that are means over the batch, and sums over it.

        batch: image [B, height, width, channels] uint8, label [B] int32.
        """
        images = to_unit_range(batch["image"])
        targets = jax.nn.one_hot(batch["label"], self.num_classes)
        if self.mixup_alpha > 0:
            images, targets = mixup(
                rngs["mixup"],
                images,
                targets,
                alpha=self.mixup_alpha,
                group_size=self.mixup_group_size,
            )
        logits, aux = apply(images, None, rngs)
        smoothed = smooth_labels(targets, self.label_smoothing)
        cross_entropy = softmax_cross_entropy(logits, smoothed).mean()
        means = {
            "cross_entropy": cross_entropy,
            # Against the heavier of two mixed labels.
            "accuracy": (logits.argmax(-1) == targets.argmax(-1)).mean(),
        }
        loss = cross_entropy
        if aux:
            loss = loss + aux["loss"].sum()  # summed over the T routing operations, eq. 8
            means["load_balance_loss"] = aux["load_balance_loss"]
        means["loss"] = loss
        return loss, (means, {k: v for k, v in aux.items() if k not in LOSSES})

    def evaluate(self, apply: Apply, batch: Mapping[str, Array]) -> Aux:
        """Sums over the real images of a batch; `mask` [B] is False at padding."""
        mask = batch["mask"]
        logits, aux = apply(to_unit_range(batch["image"]), mask, None)
        target = jax.nn.one_hot(batch["label"], self.num_classes)
        sums = {
            "cross_entropy": jnp.where(mask, softmax_cross_entropy(logits, target), 0.0).sum(),
            "correct": ((logits.argmax(-1) == batch["label"]) & mask).sum(dtype=jnp.int32),
            "images": mask.sum(dtype=jnp.int32),
        }
        return sums | {k: v for k, v in aux.items() if k not in LOSSES}

    def logits(self, apply: Apply, batch: Mapping[str, Array]) -> Array:
        """[B, V] for images as they are, without training's noise."""
        return apply(to_unit_range(batch["image"]), batch.get("mask"), None)[0]

    def summarize(self, sums: Mapping) -> dict[str, float]:
        """Sums of `evaluate` over a whole set as metrics."""
        return {
            "accuracy": float(sums["correct"] / sums["images"]),
            "cross_entropy": float(sums["cross_entropy"] / sums["images"]),
            "images": int(sums["images"]),
        }


def to_unit_range(images: Array) -> Array:
    """uint8 pixels to float32 in [-1, 1], on the device: bytes travel, not floats."""
    return images.astype(jnp.float32) / 127.5 - 1.0


TASKS = {"classification": Classification}
