"""Mixup (Zhang et al. 2018, arXiv:1710.09412) on the device, within groups of images."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from widenet_jax.errors import BadInputError, check_group
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
      group_size: images per group; at least 2, and divides B. May be that of the model's routing.

    Returns:
      Images and targets of the same shapes and types; mixed in float32.

    Raises:
      BadInputError: `group_size` does not divide B or is 1, `alpha` is not above 0, or the images
        are not float.
    """
    batch = images.shape[0]
    _check(batch, alpha=alpha, group_size=group_size)
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise BadInputError(f"mixup: images are {images.dtype}; normalise them to float first")
    # Replicate the draw. It uses rejection sampling: if it were sharded, every round would need a
    # collective to find out whether all devices have finished.
    weight = constrain(jax.random.beta(rng, alpha, alpha, (batch,), jnp.float32), P())

    def mix(x: Array) -> Array:
        grouped = x.reshape(batch // group_size, group_size, *x.shape[1:])
        partner = jnp.roll(grouped, -1, axis=1).reshape(x.shape)
        w = weight.reshape(batch, *([1] * (x.ndim - 1)))
        return (w * x + (1.0 - w) * partner).astype(x.dtype)

    return mix(images), mix(targets)


def _check(batch: int, *, alpha: float, group_size: int) -> None:
    if not alpha > 0:
        raise BadInputError(f"mixup: alpha={alpha} must be above 0; 0 in the config turns it off")
    check_group(batch, group_size, field="config.augment.mixup_group_size", smallest=2)
