"""What a forward pass computes for every token: the routing, and the hidden units of dense layers.

A model returns sums over tokens, because training needs no more. Analysis asks Linen for the
outputs of layers (`capture_intermediates`). All that the model has for it is one `sow` of the state
after each block; a training step computes nothing for it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from widenet_jax.errors import BadInputError
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.slots import capacity
from widenet_jax.nn.settings import MoeSettings
from widenet_jax.param_names import ENCODER
from widenet_jax.typing import Array, PyTree, Routing

MOE, MLP = "moe", "mlp"  # the feed-forward that routes, and the dense one, by their names
HIDDEN = "wi"  # the first layer of MLP


@flax.struct.dataclass
class TokenRouting:
    """The routing of every token; L counts the blocks with experts, see `routed_blocks`.

    Attributes:
      expert_index: [L, B, T, K] int32, best first.
      gate: [L, B, T, K] float32.
      router_probs: [L, B, T, E] float32.
      dropped: [L, B, T, K] bool, choices that found no slot, and all choices of padding.
    """

    expert_index: Array
    gate: Array
    router_probs: Array
    dropped: Array


def routed_blocks(model: nn.Module) -> tuple[int, ...]:
    """Lists the blocks with a mixture of experts.

    Raises:
      BadInputError: there is none.
    """
    if MOE not in model.ffn_names():
        raise BadInputError("this model has no mixture of experts, so no routing to analyse")
    return blocks_with(model, MOE)


def dense_blocks(model: nn.Module) -> tuple[int, ...]:
    """Lists the blocks with a dense feed-forward of ReLUs; units of other kinds are never 0."""
    return blocks_with(model, MLP) if model.activation == "relu" else ()


def blocks_with(model: nn.Module, ffn: str) -> tuple[int, ...]:
    """Lists the blocks with a feed-forward of this name."""
    return tuple(step.index for step in model.steps(train=False) if step.ffn == ffn)


def token_routing(
    model: nn.Module, params: PyTree, inputs: Mapping[str, Array]
) -> tuple[PyTree, TokenRouting]:
    """Returns the model's outputs in evaluation and the routing of every token; can be jitted.

    A block that reuses an earlier block's routing has a copy of it.

    Args:
      model: a model with experts.
      params: its parameters.
      inputs: arrays [B, ...], as the model takes them.
    """
    outputs, calls = capture(model, params, inputs, lambda layer: isinstance(layer, MoeLayer))
    B = len(next(iter(inputs.values())))
    # Blocks after a loop with exits run on the states after each loop: the last rows count.
    groups = B // model.examples_per_group
    routings = [jax.tree.map(lambda x: x[-groups:], call.routing) for call in calls]
    per_block = [by_token(of, model.feed_forwards[MOE], B) for of in routings]
    return outputs, jax.tree.map(lambda *blocks: jnp.stack(blocks), *per_block)


def by_token(routing: Routing, moe: MoeSettings, B: int) -> TokenRouting:
    """Splits groups [G, S, ...] of consecutive examples into examples [B, T, ...]."""
    G, S, _ = routing.expert_index.shape
    dropped = routing.slot >= capacity(S, moe, train=False)
    fields = (routing.expert_index, routing.gate, routing.router_probs, dropped)
    return TokenRouting(*(field.reshape(B, G * S // B, -1) for field in fields))


def active_counts(
    model: nn.Module, params: PyTree, inputs: Mapping[str, Array]
) -> tuple[PyTree, Array, int]:
    """Counts the hidden units above 0 of every token, in the `dense_blocks` of a model.

    Returns:
      The model's outputs in evaluation; the counts, int32 [L, B, T]; the number F of units.
    """

    dense = {dict(step.scopes)["ffn"] for step in model.steps() if step.ffn == MLP}

    def is_hidden(layer: nn.Module) -> bool:
        return layer.name == HIDDEN and layer.path[-2] in dense

    outputs, hidden = capture(model, params, inputs, is_hidden)
    B = len(next(iter(inputs.values())))
    counts = jnp.stack([(z[-B:] > 0).sum(axis=-1, dtype=jnp.int32) for z in hidden])
    return outputs, counts, hidden[0].shape[-1]


def states(
    model: nn.Module, params: PyTree, inputs: Mapping[str, Array]
) -> tuple[PyTree, tuple[Array, ...]]:
    """Returns the model's outputs in evaluation, and the state [B, T, D] after each block."""
    outputs, found = intermediates(model, params, inputs)
    return outputs, found["state"]


def intermediates(
    model: nn.Module, params: PyTree, inputs: Mapping[str, Array], **how: Any
) -> tuple[PyTree, PyTree]:
    """Returns the model's outputs in evaluation, and what Linen captures of its encoder."""
    # Linen captures nothing inside a loop (unroll=False) or a recomputed block (remat). Both fields
    # change how the blocks run and not what they compute.
    (outputs, _), found = model.clone(unroll=True, remat="none").apply(
        {"params": params}, inputs, train=False, mutable=["intermediates"], **how
    )
    return outputs, found["intermediates"][ENCODER]


def capture(
    model: nn.Module,
    params: PyTree,
    inputs: Mapping[str, Array],
    is_wanted: Callable[[nn.Module], bool],
) -> tuple[PyTree, list[Any]]:
    """Returns the model's outputs in evaluation and the wanted layers' outputs, block by block."""

    def wanted(layer: nn.Module, method: str) -> bool:
        return method == "__call__" and is_wanted(layer)

    outputs, found = intermediates(model, params, inputs, capture_intermediates=wanted)
    layers = flatten_dict(found)
    visited = [dict(step.scopes)["ffn"] for step in model.steps(train=False)]
    # Of a layer, loop by loop; the latest where one example's states ran one by one.
    calls = {path[0]: iter(of[-visited.count(path[0]) :]) for path, of in layers.items()}
    return outputs, [next(calls[scope]) for scope in visited if scope in calls]
