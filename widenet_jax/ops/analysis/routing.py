"""The routing of every token, block by block.

A model returns sums over tokens, because training needs no more. Analysis asks Linen for the
outputs of the MoE layers (`capture_intermediates`), so that the model contains nothing for it and a
training step computes nothing for it.
"""

from collections.abc import Mapping

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.param_names import ENCODER
from widenet_jax.typing import Array, PyTree, Routing

MOE = "moe"  # the feed-forward that routes, by its name


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
    return tuple(i for i, name in enumerate(model.ffn_names()) if name == MOE)


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

    def is_moe_call(module: nn.Module, method: str) -> bool:
        return isinstance(module, MoeLayer) and method == "__call__"

    # Linen captures nothing inside a loop (unroll=False) or a recomputed block (remat). Both fields
    # change how the blocks run and not what they compute.
    plain = model.clone(unroll=True, remat="none")
    (outputs, _), state = plain.apply(
        {"params": params},
        inputs,
        train=False,
        capture_intermediates=is_moe_call,
        mutable=["intermediates"],
    )
    layers = state["intermediates"][ENCODER]
    # One layer is called in every block, or each block has its layer; their names sort by block.
    calls = [call for name in sorted(layers) for call in layers[name]["__call__"]]
    B = len(next(iter(inputs.values())))
    per_block = [by_token(call.routing, MoeLayer(**model.feed_forwards[MOE]), B) for call in calls]
    return outputs, jax.tree.map(lambda *blocks: jnp.stack(blocks), *per_block)


def by_token(routing: Routing, layer: MoeLayer, B: int) -> TokenRouting:
    """Splits groups [G, S, ...] of consecutive examples into examples [B, T, ...]."""
    G, S, _ = routing.expert_index.shape
    dropped = routing.slot >= layer.slots(S, train=False)
    fields = (routing.expert_index, routing.gate, routing.router_probs, dropped)
    return TokenRouting(*(field.reshape(B, G * S // B, -1) for field in fields))
