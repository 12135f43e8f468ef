"""Positions of a vision transformer on another grid of patches (ViT, section 3.2)."""

from collections.abc import Mapping

import cv2
import numpy as np

from widenet_jax.errors import BadInputError

POSITION = "position/position_embedding"


def fit(name: str, value: np.ndarray, shape: tuple[int, ...], model: Mapping) -> np.ndarray:
    """Resizes the positions to the grid of this model; see `specs.ModelSpec`."""
    if name == POSITION and value.shape != shape:
        return resize_positions(value, shape[1], cls_token=model["cls_token"] != "none")
    return value


def resize_positions(position: np.ndarray, num_tokens: int, *, cls_token: bool) -> np.ndarray:
    """Resizes [1, T, D] to [1, num_tokens, D], bilinear over the grid of patches; keeps a CLS row.

    Raises:
      BadInputError: one of the grids is not square.
    """
    extra = int(cls_token)
    old_side, new_side = square_side(position.shape[1] - extra), square_side(num_tokens - extra)
    grid = position[0, extra:].reshape(old_side, old_side, -1)
    # OpenCV limits the channels of an image, so each embedding channel is resized by itself.
    channels, size = (grid[..., d] for d in range(grid.shape[-1])), (new_side, new_side)
    linear = cv2.INTER_LINEAR
    resized = np.stack([cv2.resize(c, size, interpolation=linear) for c in channels], axis=-1)
    return np.concatenate([position[:, :extra], resized.reshape(1, new_side**2, -1)], axis=1)


def square_side(tokens: int) -> int:
    """Returns the side of a square grid; raises BadInputError if `tokens` is not a square."""
    side = round(tokens**0.5)
    if side * side != tokens:
        raise BadInputError(
            f"positions of {tokens} patches do not form a square grid and cannot be resized; "
            "finetune at the image size of pretraining"
        )
    return side
