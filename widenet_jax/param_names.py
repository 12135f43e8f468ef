"""Parameters by path: names such as `encoder/block_03_attention/query/kernel`.

Optimizer settings (what decays, what LAMB scales as one unit) are stated on these paths. They are
static, so everything here may run while `jit` traces.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from widenet_jax.errors import BadInputError, refuse
from widenet_jax.typing import PyTree

PathPredicate = Callable[[str], bool]

# Names of parameter scopes. Storage (`sharding`) and the optimizer go by them.
ENCODER, ADAPTER = "encoder", "adapter"  # the stack of blocks, and low-rank additions to kernels
ADAPTERS = f"{ENCODER}/{ADAPTER}"
ROUTER = "router"  # a scope of this name, or one that ends so: "block_03_router"
EXPERTS = "experts"  # leading axis E: one slice an expert
NORM_OUT = "norm_out"  # the last norm of a stack
BALANCE_BIAS = "balance_bias"  # of a router: moved by the sign of its gradient
_BLOCK_PART = re.compile(r"block_(\d+)_(.+)")


def without_idle_routers(params: PyTree, wanted: PyTree) -> PyTree:
    """Returns parameters without the routers that `wanted` lacks.

    Until November 2026 some looped models of grouped blocks had a router that no step ran.
    """
    stored, known = flatten_dict(params), flatten_dict(wanted)
    return unflatten_dict({k: x for k, x in stored.items() if k in known or ROUTER not in k})


def block_part(index: int, part: str) -> str:
    """Returns the scope of a part that one block owns: "block_03_attention"."""
    return f"block_{index:02d}_{part}"


def core_part(group: int, layer: int, part: str) -> str:
    """Returns the scope of a part of one layer of a looped core: "core_0_1_attention"."""
    return f"core_{group}_{layer}_{part}"


def split_block_part(name: str) -> tuple[int | None, str]:
    """Splits the name of a part: "block_03_mlp" to (3, "mlp"), a shared "mlp" to (None, "mlp")."""
    match = _BLOCK_PART.fullmatch(name)
    return (int(match[1]), match[2]) if match else (None, name)


def part_of(path: str) -> str:
    """Returns the part of a model that holds a parameter: "head", or "encoder/adapter"."""
    first, *scopes = path.split("/")
    return ADAPTERS if scopes[:1] == [ADAPTER] else first


def is_expert(path: str) -> bool:
    """True for the experts' parameters, whose leading axis is E."""
    return EXPERTS in path.split("/")[:-1]


def holds_several(path: str) -> bool:
    """True for parameters whose leading axis counts kernels: experts', attention's among them."""
    return any(scope.endswith(EXPERTS) for scope in path.split("/")[:-1])


def is_balance_bias(path: str) -> bool:
    """True for the biases that balance experts, whose gradient is a count and not of the loss."""
    return path.rpartition("/")[2] == BALANCE_BIAS


def is_matrix(path: str, ndim: int) -> bool:
    """True for the kernels of the encoder's layers, experts' among them, but for routers'."""
    first, *scopes = path.split("/")
    is_kernel = first == ENCODER and scopes[-1:] == ["kernel"] and ndim == 2 + holds_several(path)
    return is_kernel and not any(scope.endswith(ROUTER) for scope in scopes)


def is_shared_by_blocks(path: str) -> bool:
    """True for the encoder's parameters that are not of one block alone."""
    parts = path.split("/")
    return parts[0] == ENCODER and len(parts) > 1 and split_block_part(parts[1])[0] is None


def path_name(key_path: tuple[Any, ...]) -> str:
    """Returns the path of one leaf: its keys joined by slashes."""
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def path_names(tree: PyTree) -> list[str]:
    """Paths of all leaves, in the order of `jax.tree.leaves`."""
    return [name for name, _ in named_leaves(tree)]


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """(path, leaf) of all leaves, in the order of `jax.tree.leaves`."""
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def map_with_path(fn: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` whose function sees the path first: `fn(path, leaf, *leaves_of_rest)`."""
    return jax.tree_util.tree_map_with_path(
        lambda key_path, *leaves: fn(path_name(key_path), *leaves), tree, *rest
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
    """Returns the axes over which one stored leaf holds several kernels or biases; () for one.

    LAMB's unit is the kernel of one block or one expert. How kernels are stored must not change
    the update: `.../experts/wi/kernel` [E, D, F] and `.../experts/wi/bias` [E, F] give (0,).

    Raises:
      BadInputError: the leaf has another rank than its path promises, so that the axes would be
        wrong.
    """
    if not holds_several(path):
        return ()
    rank = {"kernel": 3, "bias": 2}.get(path.rsplit("/", 1)[-1], ndim)
    if ndim != rank or ndim < 1:
        raise BadInputError(
            f"{path} has {ndim} axes, and its path promises {rank}: a scope whose name ends in "
            f"{EXPERTS} holds an array for each expert; rename it"
        )
    return (0,)


# --- Public weights

LAYER_NUMBER = "(0|[1-9][0-9]{0,3})"  # in names, as a regular expression
# How many axes an array may have, by the last name of our path; others are tables.
AXES = {"kernel": (2, 4), "scale": (1,), "bias": (1,)}
AXES_OF_TABLE = (2, 3)


def renamed(
    arrays: Mapping[str, np.ndarray], rename: Callable[[str], str], *, source: str
) -> dict[str, np.ndarray]:
    """Returns arrays by other names; raises BadInputError where two of them get the same."""
    first: dict[str, str] = {}
    for name in arrays:
        if (other := first.setdefault(rename(name), name)) != name:
            raise BadInputError(
                f"{source}: {other} and {name} are the same parameter; remove one of them"
            )
    return {new: arrays[name] for new, name in first.items()}


def check_axes(
    name: str, array: np.ndarray, axes: tuple[int, ...], *, source: str, kind: str
) -> None:
    """Raises BadInputError unless an array has one of these numbers of axes."""
    problem = f"{name} has the shape {list(array.shape)}, as in no {kind}; download it again"
    refuse(source, (array.ndim not in axes, problem))


def torch_names(modules: Mapping[str, str]) -> dict[str, str]:
    """Returns our path for the `weight` and `bias` of each module, given our name of the module."""
    names = {}
    for theirs, ours in modules.items():
        kernel = "scale" if "norm" in ours.rpartition("/")[2] else "kernel"
        names |= {f"{theirs}.weight": f"{ours}/{kernel}", f"{theirs}.bias": f"{ours}/bias"}
    return names


def from_torch(
    arrays: Mapping[str, np.ndarray], names: Mapping[str, str], *, source: str, kind: str
) -> dict[str, np.ndarray]:
    """Returns arrays by our paths.

    Linear layers [out, in] become [in, out], and convolutions [out, in, height, width] become
    [height, width, in, out].

    Args:
      arrays: by PyTorch's names.
      names: our path for each name.
      source: the file, for messages.
      kind: the model that `names` describe, for messages.

    Raises:
      BadInputError: `names` lacks a name, or an array has another number of axes.
    """
    if odd := [name for name in arrays if name not in names]:
        raise BadInputError(f"{source}: {odd[0]} has no place in a {kind}; is this another model?")
    for name, array in arrays.items():
        axes = AXES.get(names[name].rpartition("/")[2], AXES_OF_TABLE)
        check_axes(name, array, axes, source=source, kind=kind)
    ours = renamed(arrays, names.__getitem__, source=source)
    return {
        path: np.moveaxis(array, (0, 1), (-1, -2)) if path.endswith("/kernel") else array
        for path, array in ours.items()
    }
