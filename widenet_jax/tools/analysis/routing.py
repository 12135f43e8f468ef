"""Which experts see which token of which image, block by block.

A model returns sums over tokens only, since training needs no more. Analysis asks Linen for what
the MoE layers returned (`capture_intermediates`): nothing is added to the model, and a training
step computes nothing for it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.errors import BadInputError
from widenet_jax.models.blocks import moe_block_indices
from widenet_jax.moe.layer import MoeLayer
from widenet_jax.moe.slots import capacity_limit
from widenet_jax.tasks.classification import to_unit_range
from widenet_jax.typing import Array, PyTree, Routing
from widenet_jax.weights.finetune import has_cls_row
from widenet_jax.weights.trained import Trained


@flax.struct.dataclass
class TokenRouting:
    """The routing of every token; the leading axis counts the blocks that route, `routed_blocks`.

    Attributes:
      expert_index: [L, B, T, K] int32, best first.
      gate: [L, B, T, K] float32.
      probs: [L, B, T, E] float32.
      dropped: [L, B, T, K] bool, choices that found no slot; also all those of padding.
    """

    expert_index: Array
    gate: Array
    probs: Array
    dropped: Array


def routed_blocks(model: nn.Module) -> tuple[int, ...]:
    """Blocks with a mixture of experts.

    Raises:
      BadInputError: the model has none.
    """
    if model.moe is None:
        raise BadInputError("this model routes nothing: it has no mixture of experts")
    return moe_block_indices(model.moe["blocks"], model.depth)


def token_routing(
    model: nn.Module, params: PyTree, images: Array, mask: Array | None = None
) -> tuple[Array, TokenRouting]:
    """Logits [B, V] and the routing of images [B, height, width, channels] in evaluation; jittable.

    Blocks that follow an earlier block's routing have a copy of it.
    """

    def is_moe_call(module: nn.Module, method: str) -> bool:
        return isinstance(module, MoeLayer) and method == "__call__"

    (logits, _), state = model.apply(
        {"params": params},
        images,
        mask=mask,
        train=False,
        capture_intermediates=is_moe_call,
        mutable=["intermediates"],
    )
    layers = state["intermediates"]["encoder"]
    # One layer called in every block, or a layer a block, whose names sort by block.
    outputs = [output for name in sorted(layers) for output in layers[name]["__call__"]]
    B = len(images)
    per_block = [by_token(output.routing, model.moe, B) for output in outputs]
    return logits, jax.tree.map(lambda *blocks: jnp.stack(blocks), *per_block)


def by_token(routing: Routing, moe: Mapping[str, Any], B: int) -> TokenRouting:
    """Groups [G, S, ...] of consecutive images taken apart: [B, T, ...]."""
    G, S, _ = routing.expert_index.shape
    apart = lambda x: x.reshape(B, G * S // B, -1)  # noqa: E731
    return TokenRouting(
        expert_index=apart(routing.expert_index),
        gate=apart(routing.gate),
        probs=apart(routing.probs),
        dropped=apart(routing.slot >= buffer_slots(moe, S)),
    )


def buffer_slots(moe: Mapping[str, Any], tokens: int) -> int:
    """C of a group of `tokens` in evaluation: the slot of a choice that was dropped."""
    limit = capacity_limit(
        tokens,
        rule=moe["capacity"],
        capacity_factor=moe["capacity_factor_eval"],
        num_selected=moe["num_selected_experts"],
        num_experts=moe["num_experts"],
    )
    return max(1, min(limit, tokens))


def image_router(trained: Trained) -> Callable[[np.ndarray], TokenRouting]:
    """A function from one image as the model takes it (uint8) to its routing (B = 1).

    The image is a routing group of its own, so that no other one plays a part.

    Raises:
      BadInputError: the model has no experts.
    """
    routed_blocks(trained.model)

    @jax.jit
    def route(image: Array) -> TokenRouting:
        return token_routing(trained.model, trained.params, to_unit_range(image[None]))[1]

    return lambda image: jax.device_get(route(image))


def patch_grid(trained: Trained, per_token: np.ndarray) -> np.ndarray:
    """[T, ...] to [rows, columns, ...] of the patches, without a CLS token, which is no patch."""
    height, width, _ = trained.image_shape
    P = trained.model.patch_size
    patches = per_token[int(has_cls_row(trained.config.model)) :]
    return patches.reshape(height // P, width // P, *per_token.shape[1:])
