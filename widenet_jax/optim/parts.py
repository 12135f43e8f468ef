"""Parts of a model that learn more slowly than its head, or not at all: for finetuning."""

from collections.abc import Mapping
from typing import Any

import jax
import optax

from widenet_jax.errors import BadInputError, choose
from widenet_jax.param_names import (
    ENCODER,
    NORM_OUT,
    map_with_path,
    named_leaves,
    path_names,
    split_block_part,
)
from widenet_jax.specs import parts
from widenet_jax.typing import PyTree

FREEZES = dict.fromkeys(("none", "backbone"))


def is_frozen(path: str, freeze: str) -> bool:
    """Returns whether `config.optimizer.freeze` keeps a parameter as it is."""
    if freeze != "backbone":
        return False
    found = parts().get(path.partition("/")[0])
    return found is None or not found.head


def check_freeze(optimizer: Mapping[str, Any], params: PyTree, init_from: str) -> None:
    """Raises BadInputError where there is no trained model to freeze, or nothing would learn.

    `weights.finetune` raises it where that model lacks a parameter to freeze.
    """
    freeze = optimizer.get("freeze", "none")
    choose(FREEZES, freeze, field="config.optimizer.freeze")
    if freeze == "none":
        return
    if not init_from:
        raise BadInputError(
            f"config.optimizer.freeze={freeze} would freeze random parameters; name a trained "
            "model: --config.init_from=DIR"
        )
    if all(is_frozen(path, freeze) for path in path_names(params)):
        raise BadInputError(f"config.optimizer.freeze={freeze} leaves no parameter to train")


def count_frozen(params: PyTree, freeze: str) -> int:
    """Returns the number of parameters that `config.optimizer.freeze` keeps as they are."""
    return sum(leaf.size for path, leaf in named_leaves(params) if is_frozen(path, freeze))


def stop_frozen(params: PyTree, freeze: str) -> PyTree:
    """Returns the parameters without gradients of the frozen ones, which are then not computed."""
    stop = jax.lax.stop_gradient
    return map_with_path(lambda path, x: stop(x) if is_frozen(path, freeze) else x, params)


def without_frozen(tx: optax.GradientTransformation, freeze: str) -> optax.GradientTransformation:
    """Returns `tx` for the other parameters alone; the frozen ones have no update and no state."""

    def labels(params: PyTree) -> PyTree:
        name = lambda path, _: "frozen" if is_frozen(path, freeze) else "trained"  # noqa: E731
        return map_with_path(name, params)

    return optax.multi_transform({"trained": tx, "frozen": optax.set_to_zero()}, labels)


def layer_factors(params: PyTree, decay: float, *, depth: int) -> PyTree:
    """Returns the factor of each parameter's learning rate, as BEiT's layer-wise decay sets it.

    decay^(L + 1 - l): l = 0 for embeddings, i + 1 for block i, L + 1 for the rest (the last norm
    and the heads). Parameters that all blocks share have the mean exponent of the blocks,
    (L + 1) / 2.

    Args:
      params: whose paths decide.
      decay: in (0, 1].
      depth: L, number of blocks; names tell it only where blocks own something.
    """

    above = {name for name, found in parts().items() if found.above} | {ENCODER}

    def factor(path: str, _: Any) -> float:
        first, second = (*path.split("/"), "")[:2]
        if first == ENCODER and second != NORM_OUT:
            block, _ = split_block_part(second)
            layer = (depth + 1) / 2 if block is None else block + 1
        else:
            layer = depth + 1 if first in above else 0
        return decay ** (depth + 1 - layer)

    return map_with_path(factor, params)


def scale_layers(decay: float, *, depth: int) -> optax.GradientTransformation:
    """Scales the updates by `layer_factors`."""

    def update(updates: PyTree, state: optax.EmptyState, params: PyTree = None) -> tuple:
        del params
        factors = layer_factors(updates, decay, depth=depth)
        return jax.tree.map(lambda u, f: (u * f).astype(u.dtype), updates, factors), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
