"""Parameters by path: names such as `encoder/block_0/attention/query/kernel`.

Optimizer settings (what decays, what LAMB scales as one unit) are stated on these paths. They are
static, so everything here may run while `jit` traces.
"""

import re
from collections.abc import Callable
from typing import Any

import jax

from widenet_jax.errors import BadInputError
from widenet_jax.typing import PyTree

PathPredicate = Callable[[str], bool]

# Component names with a meaning for storage; `models` and `moe` use the same words.
STACKED_BLOCKS = "blocks_stacked"  # leading axis L: one slice a block, as `scan` stores them
EXPERTS = "experts"  # leading axis E: one slice an expert
FUSED_QKV = "qkv"  # kernel [D, 3, N, H], bias [3, N, H]


def _name(key_path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def path_names(tree: PyTree) -> list[str]:
    """Paths of all leaves, in the order of `jax.tree.leaves`."""
    return [_name(key_path) for key_path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def map_with_path(fn: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` whose function sees the path first: `fn(path, leaf, *leaves_of_rest)`."""
    return jax.tree_util.tree_map_with_path(
        lambda key_path, *leaves: fn(_name(key_path), *leaves), tree, *rest
    )


def matches(regex: str) -> PathPredicate:
    """A predicate true for paths that `regex` matches from end to end; '' matches none.

    Raises:
      BadInputError: `regex` is not a regular expression.
    """
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise BadInputError(
            f"{regex!r} is not a regular expression ({error}); "
            "write one for whole parameter paths, such as '.*/embedding'"
        ) from error
    return lambda path: bool(regex) and pattern.fullmatch(path) is not None


def is_norm_or_bias(path: str) -> bool:
    """True for LayerNorm's `scale` and `bias` and for every other bias.

    Position embedding and class token are neither: they decay like kernels.
    """
    last = path.rsplit("/", 1)[-1]
    return last in ("scale", "bias") or last.endswith("_bias")


def trust_ratio_unit_axes(path: str, ndim: int) -> tuple[int, ...]:
    """Axes over which one stored leaf holds several kernels (or biases); () if it holds one.

    LAMB's unit is the kernel of one block, one expert, one of q, k, v. How they are stored is a
    matter of speed and must not change the update:
      `.../experts/wi/kernel` [E, D, F] -> (0,)       `.../experts/wi/bias` [E, F] -> (0,)
      `.../qkv/kernel` [D, 3, N, H]     -> (1,)       `.../qkv/bias` [3, N, H]     -> (0,)
      `blocks_stacked/...` [L, ...]     -> (0,) and the axes of the rest, moved by one.

    Raises:
      ValueError: the leaf has another rank than its path promises, so that the axes would be wrong.
    """
    parts = path.split("/")
    first = 1 if STACKED_BLOCKS in parts else 0
    leaf, layer = parts[-1], parts[-2] if len(parts) > 1 else ""
    if layer == FUSED_QKV and leaf in ("kernel", "bias"):
        inner, rank = ((1,), 4) if leaf == "kernel" else ((0,), 3)
    elif EXPERTS in parts[:-1]:
        inner, rank = (0,), {"kernel": 3, "bias": 2}.get(leaf)
    else:
        inner, rank = (), None
    if rank is not None and ndim != rank + first:
        raise ValueError(f"{path} has {ndim} axes, its path promises {rank + first}")
    axes = (*range(first), *(first + axis for axis in inner))
    if axes and ndim <= max(axes):
        raise ValueError(f"{path} has {ndim} axes, its path promises more than {max(axes)}")
    return axes
