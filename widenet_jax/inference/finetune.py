"""Starting from pretrained parameters: the backbone, and the head where the classes are the same.

Vision (ViT, section 3.2): positions are a square grid of patches, perhaps after a CLS token, and
are resized to the new grid. Text: shorter inputs take the first positions; the pooler and the heads
of pretraining are taken where both models have them. Language models: embedding and output layer
are taken where both vocabularies are as large.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import cv2
import flax.traverse_util
import numpy as np

from widenet_jax.errors import BadInputError
from widenet_jax.typing import PyTree

POSITION = "position/position_embedding"


class Rule(NamedTuple):
    """How a kind of model starts from pretrained parameters, by the first part of their paths.

    Attributes:
      new: parts that are always new.
      of_classes: parts that know the classes; they are taken where these are the same and both
        models have the same parts in the same shapes.
      optional: parts that are taken where both models have them in the same shapes.
      fit: (path, pretrained array, shape here, config.model) -> the array to take.
    """

    new: tuple[str, ...]
    of_classes: tuple[str, ...]
    optional: tuple[str, ...]
    fit: Callable[[str, np.ndarray, tuple[int, ...], Mapping], np.ndarray]


def finetune_params(
    fresh: PyTree,
    pretrained: PyTree,
    *,
    model: Mapping,
    source: str,
    same_classes: bool = False,
    differing: Sequence[str] = (),
    frozen: Callable[[str], bool] = lambda path: False,
) -> tuple[PyTree, str]:
    """Returns `fresh` with the backbone of `pretrained`, and a line that says what was taken.

    Args:
      fresh: newly initialised parameters of the model to finetune (host arrays).
      pretrained: parameters that `config.init_from` names (host arrays).
      model: `config.model`.
      source: value of `config.init_from`, named in errors.
      same_classes: whether both models have the same classes.
      differing: fields that let this model compute another function, for the line.
      frozen: whether a parameter, by its path, is never trained.

    Raises:
      BadInputError: the backbones differ, or a frozen parameter would be random.
    """
    rule = RULES[model["name"]]
    new = flax.traverse_util.flatten_dict(fresh, sep="/")
    old = flax.traverse_util.flatten_dict(pretrained, sep="/")
    taken = backbone(rule, new, old, model, source)
    heads = [{k: tree[k] for k in tree if part(k) in rule.of_classes} for tree in (new, old)]
    shapes = [{k: leaf.shape for k, leaf in head.items()} for head in heads]
    kept = heads[1] if same_classes and shapes[0] == shapes[1] else {}
    taken |= kept
    for scope in rule.optional:
        names = {k for k in new if part(k) == scope}
        fitted = {k: rule.fit(k, old[k], new[k].shape, model) for k in names & old.keys()}
        if all(k in fitted and fitted[k].shape == new[k].shape for k in names):
            taken |= fitted
    if random := sorted(path for path in new.keys() - taken.keys() if frozen(path)):
        raise BadInputError(
            f"config.optimizer.freeze would keep {part(random[0])} random, because "
            f"config.init_from={source} has none that fits; train it, too, with "
            "--config.optimizer.freeze=none, or start from a model that has it"
        )
    params = flax.traverse_util.unflatten_dict(new | taken, sep="/")
    line = told(taken, new.keys() - taken.keys(), old, source)
    line += resized(old, new, model)
    line += "; the classes are the same, so the head is kept" if kept else ""
    return params, "; differs from the pretrained model in: ".join(
        filter(None, [line, ", ".join(differing)])
    )


def backbone(
    rule: Rule, new: Mapping, old: Mapping, model: Mapping, source: str
) -> dict[str, np.ndarray]:
    """Returns the pretrained parameters of the backbone, by path, fitted to the shapes of `new`.

    Raises:
      BadInputError: the backbones differ.
    """
    apart = rule.new + rule.of_classes + rule.optional
    here, there = ({k for k in tree if part(k) not in apart} for tree in (new, old))
    if odd := sorted(here ^ there):
        raise BadInputError(
            f"config.init_from={source} holds another model: {odd[0]} is in only one of the two; "
            "finetune with the config.model it was trained with"
        )
    taken = {}
    for name in sorted(here):
        value = rule.fit(name, old[name], new[name].shape, model)
        if value.shape != new[name].shape:
            raise BadInputError(
                f"config.init_from={source} holds another model: {name} is "
                f"{list(value.shape)} there and {list(new[name].shape)} here; finetune with the "
                "config.model it was trained with"
            )
        taken[name] = value
    return taken


def told(taken: Mapping, fresh: set[str], pretrained: Mapping, source: str) -> str:
    """Returns the line on what was taken, what is new and what was not used."""
    parts = lambda names: ", ".join(dict.fromkeys(map(part, names)))  # noqa: E731
    text = f"taken from {source}: {parts(taken)}; new: {parts(sorted(fresh)) or 'nothing'}"
    unused = parts(sorted(name for name in pretrained if part(name) not in set(map(part, taken))))
    return f"{text}; not used: {unused}" if unused else text


def resized(old: Mapping, new: Mapping, model: Mapping) -> str:
    """Says that the grid of positions is resized: "; positions resized 14x14 -> 4x4"."""
    if POSITION not in new or old[POSITION].shape == new[POSITION].shape:
        return ""
    there, here = (square_side(x[POSITION].shape[1] - has_cls_row(model)) for x in (old, new))
    return f"; positions resized {there}x{there} -> {here}x{here}"


def part(path: str) -> str:
    """Returns the first part of a path: "encoder"."""
    return path.partition("/")[0]


def fit_vision(name: str, value: np.ndarray, shape: tuple[int, ...], model: Mapping) -> np.ndarray:
    """Resizes the positions to another grid."""
    if name == POSITION and value.shape != shape:
        return resize_positions(value, shape[1], cls_token=has_cls_row(model))
    return value


def fit_text(name: str, value: np.ndarray, shape: tuple[int, ...], model: Mapping) -> np.ndarray:
    """Takes the first positions, and the first rows of a table that was padded beyond V.

    A larger table here fails the comparison of shapes.
    """
    del model
    rows = ("embeddings/position", "embeddings/token", "mlm/bias")
    return value[: shape[0]] if name in rows else value


def as_stored(name: str, value: np.ndarray, shape: tuple[int, ...], model: Mapping) -> np.ndarray:
    """Returns the pretrained array."""
    del name, shape, model
    return value


RULES = {
    "vision_transformer": Rule((), ("head", "representation"), (), fit_vision),
    "text_encoder": Rule(("span",), ("classifier",), ("pooler", "mlm", "order"), fit_text),
    "language_model": Rule((), (), ("embedding", "output"), as_stored),
}


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
