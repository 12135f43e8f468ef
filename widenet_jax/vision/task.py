"""Image classification, mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax.data.contract import DataInfo
from widenet_jax.errors import choose, refuse
from widenet_jax.losses import LabelTask, batch_loss, smooth_labels, softmax_cross_entropy
from widenet_jax.sharding import constrain
from widenet_jax.task import Apply, Metrics, Rngs
from widenet_jax.typing import Array, Shapes

MIXING = ("mixup_alpha", "cutmix_alpha", "mixup_group_size")  # fields of config.augment
CLASS_WEIGHTS = dict.fromkeys(("none", "balanced"))


@dataclass(frozen=True)
class Classification(LabelTask):
    """Cross-entropy against smoothed, mixed labels, plus the feed-forwards' own losses (eq. 8).

    Attributes:
      num_classes: V.
      image_shape: (height, width, channels) of a batch's images.
      label_smoothing: applied after mixup; before it would be the same, as both are linear.
      mixup_alpha: of the Beta distribution; 0 turns mixup off.
      cutmix_alpha: the same of CutMix; where both are on, each example has one of the two.
      class_weights: of each label in the training loss; () for equal ones.
      mixup_group_size: partners come from the same group of so many consecutive images.
    """

    num_classes: int
    image_shape: tuple[int, int, int]
    label_smoothing: float
    mixup_alpha: float
    mixup_group_size: int
    cutmix_alpha: float = 0.0
    class_weights: tuple[float, ...] = ()

    unit: ClassVar[str] = "images"
    group_field: ClassVar[str] = "config.augment.mixup_group_size"

    @classmethod
    def build(cls, config: ConfigDict, data_info: DataInfo) -> "Classification":
        """Builds the task of `config.task` and `config.augment`.

        Raises:
          BadInputError: a field is out of range.
        """
        choose(CLASS_WEIGHTS, config.task.class_weights, field="config.task.class_weights")
        return cls(
            num_classes=len(data_info.info["class_names"]),
            image_shape=data_info.example["image"].shape,
            label_smoothing=config.task.label_smoothing,
            **{name: config.augment[name] for name in MIXING},
            class_weights=weigh(data_info.class_counts),
            largest_share=data_info.largest_share,
        )

    def __post_init__(self) -> None:
        size = f"{self.group_field}={self.mixup_group_size} must be at least 2"
        advice = "mixing needs a partner; mixup_alpha=0 and cutmix_alpha=0 turn it off"
        refuse(size, (self.mixes_images and self.mixup_group_size < 2, advice))

    @property
    def mixes_images(self) -> bool:
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0

    @property
    def model_fields(self) -> dict[str, int]:
        return {"num_classes": self.num_classes}

    @property
    def group_size(self) -> int:
        return self.mixup_group_size if self.mixes_images else 1

    def batch_spec(self, batch_size: int) -> Shapes:
        return {
            "image": jax.ShapeDtypeStruct((batch_size, *self.image_shape), jnp.uint8),
            "label": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
        }

    def inputs(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        mask = {"mask": batch["mask"]} if "mask" in batch else {}
        return {"image": to_signed_range(batch["image"]), **mask}

    def loss(self, apply: Apply, batch: Mapping[str, Array], rngs: Rngs) -> tuple[Array, Metrics]:
        """batch: image [B, height, width, channels] uint8, label [B] int32.

        Training accuracy counts the heavier of two mixed labels.
        """
        images = to_signed_range(batch["image"])
        targets = jax.nn.one_hot(batch["label"], self.num_classes)
        if self.mixes_images:
            settings = self.mixup_alpha, self.cutmix_alpha, self.mixup_group_size
            images, targets = mixup_or_cutmix(rngs["mixup"], images, targets, *settings)
        logits, aux = apply({"image": images}, rngs)
        right = logits.argmax(-1) == targets.argmax(-1)
        cross_entropy = self.weighted_cross_entropy(logits, targets).mean()
        return batch_loss(cross_entropy, right, aux)

    def weighted_cross_entropy(self, logits: Array, targets: Array) -> Array:
        """Returns sum_k w_k t_k H_k: [B], of logits and mixed targets t [B, V].

        H_k is the cross-entropy against class k, smoothed, and w_k its weight. Weighting examples
        instead, by sum_k w_k t_k, would give a frequent class the weights of its rare partners.
        """
        mass = 1.0
        if self.class_weights:
            targets *= jnp.asarray(self.class_weights, jnp.float32)
            mass = targets.sum(-1)
            targets /= mass[:, None]
        return mass * softmax_cross_entropy(logits, smooth_labels(targets, self.label_smoothing))


def weigh(counts: Sequence[int]) -> tuple[float, ...]:
    """Returns weights N / (V n_k) of classes of n_k examples: their mean over all examples is 1.

    V counts the classes that have an example.
    """
    present = max(1, sum(count > 0 for count in counts))
    return tuple(sum(counts) / (present * max(count, 1)) for count in counts)


def to_signed_range(images: Array) -> Array:
    """Maps uint8 pixels to float32 in [-1, 1]; on the device, so that bytes are transferred."""
    return images.astype(jnp.float32) / 127.5 - 1.0


def mixup(
    rng: Array, images: Array, targets: Array, *, alpha: float, group_size: int
) -> tuple[Array, Array]:
    """Mixes each image with the next: x_i <- lambda_i x_i + (1 - lambda_i) x_next(i).

    Targets are mixed likewise. lambda_i ~ Beta(alpha, alpha), drawn per example. next(i) is the
    next image in the same group of `group_size` consecutive images, cyclically. If each device
    holds whole groups, mixup therefore needs no communication between devices.

    Differs from the original, which draws one lambda per batch and random partners. Batches are
    shuffled, so the next image is a random partner as well. Of WideNet's Table 6, "prob. 0.5" is
    read as alpha.

    Args:
      rng: a key.
      images: [B, H, W, C], float.
      targets: [B, V], float, rows that sum to 1.
      alpha: above 0; to train without mixup, do not call this function.
      group_size: images per group; at least 2, and divides B. The routing's group will do.

    Returns:
      Images and targets of the same shapes and types; mixed in float32.
    """
    batch = images.shape[0]
    # Replicate the draw. It uses rejection sampling: if it were sharded, every round would need a
    # collective to find out whether all devices have finished.
    weight = constrain(jax.random.beta(rng, alpha, alpha, (batch,), jnp.float32), P())

    def mix(x: Array) -> Array:
        partner = _next(x, group_size)
        w = weight.reshape(batch, *([1] * (x.ndim - 1)))
        return (w * x + (1.0 - w) * partner).astype(x.dtype)

    return mix(images), mix(targets)


def cutmix(
    rng: Array, images: Array, targets: Array, *, alpha: float, group_size: int
) -> tuple[Array, Array]:
    """Pastes a box of the next image into each image; targets are mixed by the areas.

    The box covers 1 - lambda of the image before it is cut at the borders, with the image's aspect
    ratio and a uniform centre; lambda ~ Beta(alpha, alpha), drawn per example. Arguments and
    partners as in `mixup`.
    """
    batch, height, width = images.shape[:3]
    of_area, of_row, of_column = jax.random.split(rng, 3)
    # Replicated, as in `mixup`.
    weight = constrain(jax.random.beta(of_area, alpha, alpha, (batch,), jnp.float32), P())
    side = jnp.sqrt(1.0 - weight)

    def inside(key: Array, length: int) -> Array:
        """Returns which of `length` pixels lie within the box: bool [B, length]."""
        centre = constrain(jax.random.uniform(key, (batch, 1), maxval=length), P())
        pixels = jnp.arange(length) + 0.5
        return jnp.abs(pixels - centre) < side[:, None] * length / 2

    box = inside(of_row, height)[:, :, None] & inside(of_column, width)[:, None, :]
    share = box.mean((1, 2), dtype=jnp.float32)[:, None]
    images = jnp.where(box[..., None], _next(images, group_size), images)
    mixed = (1.0 - share) * targets + share * _next(targets, group_size)
    return images, mixed.astype(targets.dtype)


def mixup_or_cutmix(
    rng: Array,
    images: Array,
    targets: Array,
    mixup_alpha: float,
    cutmix_alpha: float,
    group_size: int,
) -> tuple[Array, Array]:
    """Applies mixup or CutMix, whose alpha is above 0; of two, each to half of the examples."""
    if not cutmix_alpha:
        return mixup(rng, images, targets, alpha=mixup_alpha, group_size=group_size)
    if not mixup_alpha:
        return cutmix(rng, images, targets, alpha=cutmix_alpha, group_size=group_size)
    of_choice, *keys = jax.random.split(rng, 3)
    mixed = mixup(keys[0], images, targets, alpha=mixup_alpha, group_size=group_size)
    cut = cutmix(keys[1], images, targets, alpha=cutmix_alpha, group_size=group_size)
    chosen = constrain(jax.random.bernoulli(of_choice, 0.5, images.shape[:1]), P())
    images = jnp.where(chosen[:, None, None, None], cut[0], mixed[0])
    return images, jnp.where(chosen[:, None], cut[1], mixed[1])


def _next(x: Array, group_size: int) -> Array:
    """Returns the next row of the same group, cyclically, for each row of [B, ...]."""
    grouped = x.reshape(-1, group_size, *x.shape[1:])
    return jnp.roll(grouped, -1, axis=1).reshape(x.shape)
