"""Mixup (Zhang et al. 2018, arXiv:1710.09412) on the device, inside groups of images."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from widenet_jax.errors import BadInputError
from widenet_jax.sharding import constrain
from widenet_jax.typing import Array


def mixup(
    rng: Array, images: Array, targets: Array, *, alpha: float, group_size: int
) -> tuple[Array, Array]:
    """x_i <- lambda_i x_i + (1 - lambda_i) x_next(i), the targets likewise.

    lambda_i ~ Beta(alpha, alpha), one an example. next(i) is the following image of the same group
    of `group_size` consecutive images, and the group's first image after its last: partners never
    leave a group, so nothing crosses devices when whole groups lie on each.

    Differs from the original, which draws one lambda a batch and a random partner: batches are
    shuffled already, so the next image is as random.

    Args:
      rng: a key.
      images: [B, H, W, C], float.
      targets: [B, V], float, rows that sum to 1.
      alpha: above 0; a caller that wants no mixup does not call.
      group_size: images a group, at least 2; divides B. The model's routing group by choice.

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
    # Whole on every device: of a split draw, which rejects until all are accepted, the devices
    # would have to agree on the end, round by round.
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
    if group_size >= 2 and batch % group_size == 0:
        return
    sizes = [size for size in range(2, batch + 1) if batch % size == 0]
    fitting = ", ".join(map(str, sizes)) or "none, so use a larger batch or turn mixup off"
    raise BadInputError(
        f"mixup: groups of {group_size} images cannot pair up a batch of {batch}; "
        f"group sizes that can: {fitting}"
    )
