"""Finetuning: parameters of another run into a new model (ViT, section 3.2)."""

from collections.abc import Mapping

import cv2
import flax.traverse_util
import numpy as np

from widenet_jax.errors import BadInputError
from widenet_jax.typing import PyTree

POSITION = "position/position_embedding"
# The classifier is new; the pretraining representation layer before it is dropped.
LEFT_BEHIND = ("head/", "representation/")


def finetune_params(fresh: PyTree, pretrained: PyTree, *, cls_token: bool, source: str) -> PyTree:
    """`fresh` with its backbone taken from `pretrained`, positions resized, the head left as it is.

    Args:
      fresh: newly initialised parameters of the model to finetune (host arrays).
      pretrained: parameters of the run at `source`.
      cls_token: the first position row belongs to a CLS token and is not part of the grid.
      source: named in errors.

    Raises:
      BadInputError: the backbones differ.
    """
    new = flax.traverse_util.flatten_dict(fresh, sep="/")
    old = flax.traverse_util.flatten_dict(pretrained, sep="/")
    new_backbone = {k for k in new if not k.startswith(LEFT_BEHIND)}
    old_backbone = {k for k in old if not k.startswith(LEFT_BEHIND)}
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
    """[1, T, D] -> [1, num_tokens, D]: bilinear over the square grid of patches; CLS row kept.

    Raises:
      BadInputError: one of the grids is not square.
    """
    extra = int(cls_token)
    old_side, new_side = square_side(position.shape[1] - extra), square_side(num_tokens - extra)
    grid = position[0, extra:].reshape(old_side, old_side, -1)
    # Each embedding channel is an image; OpenCV resizes any number of them channel by channel.
    resized = np.stack(
        [
            cv2.resize(grid[..., d], (new_side, new_side), interpolation=cv2.INTER_LINEAR)
            for d in range(grid.shape[-1])
        ],
        axis=-1,
    )
    return np.concatenate([position[:, :extra], resized.reshape(1, new_side**2, -1)], axis=1)


def square_side(tokens: int) -> int:
    side = round(tokens**0.5)
    if side * side != tokens:
        raise BadInputError(f"positions of {tokens} patches are no square grid and cannot resize")
    return side


def has_cls_row(model: Mapping) -> bool:
    """Whether the first row of the position embedding of `config.model` belongs to a CLS token."""
    return model["cls_token"] != "none"
