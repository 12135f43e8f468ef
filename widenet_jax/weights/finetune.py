"""Finetuning of vision models: a pretrained backbone under a new head (ViT, section 3.2).

Positions are a square grid of patches, perhaps after a CLS token, and are resized to the new grid.
"""

from collections.abc import Mapping

import cv2
import flax.traverse_util
import numpy as np

from widenet_jax.errors import BadInputError
from widenet_jax.typing import PyTree

POSITION = "position/position_embedding"
# The head is new, and the representation layer of pretraining before it is dropped.
NOT_COPIED = ("head/", "representation/")


def finetune_params(fresh: PyTree, pretrained: PyTree, *, cls_token: bool, source: str) -> PyTree:
    """Returns `fresh` with the backbone of `pretrained`: positions are resized, the head is kept.

    Args:
      fresh: newly initialised parameters of the model to finetune (host arrays).
      pretrained: parameters that `config.init_from` names (host arrays).
      cls_token: whether the first row of the positions belongs to a CLS token.
      source: value of `config.init_from`, named in errors.

    Raises:
      BadInputError: the backbones differ.
    """
    new = flax.traverse_util.flatten_dict(fresh, sep="/")
    old = flax.traverse_util.flatten_dict(pretrained, sep="/")
    new_backbone = {k for k in new if not k.startswith(NOT_COPIED)}
    old_backbone = {k for k in old if not k.startswith(NOT_COPIED)}
    if odd := sorted(new_backbone ^ old_backbone):
        raise BadInputError(
            f"config.init_from={source} holds another model: {odd[0]} is in only one of the two; "
            "finetune with the config.model it was trained with"
        )
    for name in sorted(new_backbone):
        value = old[name]
        if name == POSITION and value.shape != new[name].shape:
            value = resize_positions(value, new[name].shape[1], cls_token=cls_token)
        if value.shape != new[name].shape:
            raise BadInputError(
                f"config.init_from={source} holds another model: {name} is "
                f"{list(value.shape)} there and {list(new[name].shape)} here; finetune with the "
                "config.model it was trained with"
            )
        new[name] = value
    return flax.traverse_util.unflatten_dict(new, sep="/")


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


def has_cls_row(model: Mapping) -> bool:
    """Tells whether the first position row of `config.model` belongs to a CLS token."""
    return model["cls_token"] != "none"
