"""FLOPs of a model by its dimensions: what MFU means everywhere in this project.

A multiply-add is two. Counted are the matrix products that the model's mathematics needs: K experts
a token, every token of every image. Not counted: padding, the router, dispatch and combine, norms,
softmax, recomputation, the optimizer. A training step costs three times its forward pass.
"""

from collections.abc import Mapping

from widenet_jax.models.blocks import moe_block_indices
from widenet_jax.models.vit import num_tokens


def forward_flops(model: Mapping, image_shape: tuple[int, int, int], num_classes: int) -> int:
    """FLOPs of one image through the model of `config.model`, forward.

    A block: q, k, v and out 8TD^2, scores and their use 4T^2 D, and 4TDF for a dense layer or each
    of K experts.
    """
    T, D = num_tokens(model, image_shape), model["embed_dim"]
    moe = model["moe"]
    moe_blocks = moe_block_indices(moe["blocks"], model["depth"]) if moe else ()
    dense = 4 * T * D * model["mlp_dim"]
    experts = 4 * T * D * moe["mlp_dim"] * moe["num_selected_experts"] if moe else 0
    attention = 8 * T * D * D + 4 * T * T * D
    blocks = model["depth"] * attention
    blocks += len(moe_blocks) * experts + (model["depth"] - len(moe_blocks)) * dense
    patches = image_shape[0] * image_shape[1] * image_shape[2]
    embed = 2 * patches * D
    representation = 2 * D * D if model["representation"] else 0
    return embed + blocks + representation + 2 * D * num_classes


def train_flops(model: Mapping, image_shape: tuple[int, int, int], num_classes: int) -> int:
    """FLOPs of one image in a training step."""
    return 3 * forward_flops(model, image_shape, num_classes)
