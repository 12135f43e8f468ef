"""Mixup (Zhang et al. 2018, arXiv:1710.09412) and CutMix (Yun et al. 2019, arXiv:1905.04899).

On the device, within groups of images.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from widenet_jax.sharding import constrain
from widenet_jax.typing import Array


def mixup(
    rng: Array, images: Array, targets: Array, *, alpha: float, group_size: int
) -> tuple[Array, Array]:
    """Mixes each image with the next: x_i <- lambda_i x_i + (1 - lambda_i) x_next(i).

    Targets are mixed likewise. lambda_i ~ Beta(alpha, alpha), drawn per example. next(i) is the
    next image in the same group of `group_size` consecutive images, cyclically. If each device
    holds whole groups, mixup therefore needs no communication between devices.

    Differs from the original, which draws one lambda per batch and random partners. Batches are
    shuffled, so the next image is a random partner as well.

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
    *,
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

    def choose(a: Array, b: Array) -> Array:
        return jnp.where(chosen.reshape(-1, *([1] * (a.ndim - 1))), a, b)

    return choose(cut[0], mixed[0]), choose(cut[1], mixed[1])


def _next(x: Array, group_size: int) -> Array:
    """Returns the next row of the same group, cyclically, for each row of [B, ...]."""
    grouped = x.reshape(-1, group_size, *x.shape[1:])
    return jnp.roll(grouped, -1, axis=1).reshape(x.shape)
