"""FLOPs of a model from its dimensions: the definition of MFU in this project.

A multiply-add counts as two. Counted are the matrix products of the model's mathematics: every
token, K experts per token. Not counted are padding, the router, dispatch and combine, norms,
softmax, recomputation and the optimizer. A training step costs three times its forward pass.
"""

import math
from collections.abc import Mapping

import jax

from widenet_jax.errors import BadInputError
from widenet_jax.models.build import build_model
from widenet_jax.models.text_encoder import TextEncoder
from widenet_jax.models.vit import VisionTransformer

Specs = Mapping[str, jax.ShapeDtypeStruct]


def forward_flops(model: Mapping, inputs: Specs, **model_fields: int | str) -> int:
    """Returns the FLOPs of one example's forward pass through the model `config.model`.

    Args:
      model: `config.model`.
      inputs: shapes of the model's inputs, as `experiment.input_spec` returns them.
      **model_fields: those of the task, such as num_classes.

    Raises:
      BadInputError: another model, or a feed-forward whose products are not counted here.
    """
    module = build_model(model, **model_fields)
    if model["name"] not in OUTSIDE or not set(module.ffn_names()) <= {"mlp", "moe"}:
        raise BadInputError(
            f"config.model.name={model['name']}, config.model.ffn={model['ffn']}: FLOPs are "
            f"counted for {' and '.join(OUTSIDE)} with mlp and moe only; "
            "widenet_jax/tools/plan/flops.py is where others are added"
        )
    outside = OUTSIDE[model["name"]](module, inputs)
    with_experts = module.ffn_names().count("moe")
    return outside + blocks_flops(model, module.num_tokens(inputs), with_experts)


def outside_of_vision(model: VisionTransformer, inputs: Specs) -> int:
    """Returns the FLOPs of the patches' embedding and the classifier."""
    D, pixels = model.embed_dim, math.prod(inputs["image"].shape[1:])
    representation = 2 * D * D if model.representation else 0
    return 2 * pixels * D + representation + 2 * D * model.num_classes


def outside_of_text(model: TextEncoder, inputs: Specs) -> int:
    """Returns the FLOPs of the projection and of the head; looking up an embedding counts none."""
    T, D, E = model.num_tokens(inputs), model.embed_dim, model.embedding_dim
    projection = 2 * T * E * D if model.projection else 0
    pooler = 2 * D * D
    heads = {
        "classification": pooler + 2 * D * model.num_classes,
        "span": 2 * T * D * 2,
        # Starts and ends, ends given the true start, and the null logit.
        "span_beam": 2 * 2 * T * D + 2 * (T + 1) * D * D + 2 * T * D + 2 * (2 * D + 1) * D,
    }
    if model.head == "pretraining":
        predictions = inputs["mlm_positions"].shape[1]
        heads["pretraining"] = predictions * 2 * E * (D + model.vocab_size) + pooler + 2 * D * 2
    return projection + heads[model.head]


# config.model.name -> the FLOPs of a model outside its blocks
OUTSIDE = {"vision_transformer": outside_of_vision, "text_encoder": outside_of_text}


def blocks_flops(model: Mapping, num_tokens: int, with_experts: int) -> int:
    """Returns the FLOPs of one example's forward pass through the blocks of `config.model`.

    A block with T tokens costs 8 T D^2 for queries, keys, values and output, 4 T^2 D for the scores
    and the weighted sum of values, and 4 T D F for the feed-forward, K times that with experts.

    Args:
      model: `config.model`.
      num_tokens: T.
      with_experts: the number of blocks with experts.
    """
    T, D, moe = num_tokens, model["embed_dim"], model["moe"]
    attention = 8 * T * D * D + 4 * T * T * D
    dense = 4 * T * D * model["mlp_dim"]
    experts = 4 * T * D * moe["mlp_dim"] * moe["num_selected_experts"] if moe else 0
    feed_forward = with_experts * experts + (model["depth"] - with_experts) * dense
    return model["depth"] * attention + feed_forward


def train_flops(model: Mapping, inputs: Specs, **model_fields: int | str) -> int:
    """Returns the FLOPs of one example in a training step; arguments as in `forward_flops`."""
    return 3 * forward_flops(model, inputs, **model_fields)
