"""FLOPs of a model from its dimensions: the definition of MFU in this project.

A multiply-add counts as two. Counted are the matrix products of the model's mathematics: every
token, K experts per token, the hidden units or values that a token uses. Not counted are padding,
the router, dispatch and combine, norms, softmax, recomputation and the optimizer. A training step
costs three times its forward pass.
"""

import math
from collections.abc import Mapping

from widenet_jax.errors import BadInputError
from widenet_jax.language.model import LanguageModel
from widenet_jax.nn.block_settings import BlockSettings
from widenet_jax.nn.build import build_model
from widenet_jax.text.encoder import TextEncoder
from widenet_jax.typing import Shapes
from widenet_jax.vision.model import VisionTransformer


def forward_flops(model: Mapping, inputs: Shapes, **model_fields: int | str) -> int:
    """Returns the FLOPs of one example's forward pass through the model `config.model`.

    Args:
      model: `config.model`.
      inputs: shapes of the model's inputs, as `experiment.input_spec` returns them.
      **model_fields: those of the task, such as num_classes.

    Raises:
      BadInputError: another model, or a feed-forward or attention whose products are not counted
        here.
    """
    module = build_model(model, **model_fields)
    chosen = {"name": model["name"], "ffn": module.ffn, "attention": module.attention}
    for field, counted in (("name", OUTSIDE), ("ffn", FFN_FLOPS), ("attention", ATTENTION_FLOPS)):
        if chosen[field] not in counted:
            raise BadInputError(
                f"config.model.{field}={chosen[field]}: FLOPs are counted for {', '.join(counted)} "
                "only; widenet_jax/ops/plan/flops.py is where others are added"
            )
    outside = OUTSIDE[model["name"]](module, inputs)
    return outside + blocks_flops(module, module.num_tokens(inputs), memory_length(inputs))


def outside_of_vision(model: VisionTransformer, inputs: Shapes) -> int:
    """Returns the FLOPs of the patches' embedding and the classifier."""
    D, pixels = model.embed_dim, math.prod(inputs["image"].shape[1:])
    representation = 2 * D * D if model.representation else 0
    return 2 * pixels * D + representation + 2 * D * model.num_classes


def outside_of_text(model: TextEncoder, inputs: Shapes) -> int:
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


def outside_of_language(model: LanguageModel, inputs: Shapes) -> int:
    """Returns the FLOPs of the output layer; looking up an embedding counts none."""
    return 2 * model.num_tokens(inputs) * model.embed_dim * model.vocab_size


# config.model.name -> the FLOPs of a model outside its blocks
OUTSIDE = {
    "vision_transformer": outside_of_vision,
    "text_encoder": outside_of_text,
    "language_model": outside_of_language,
}


def blocks_flops(model: BlockSettings, num_tokens: int, memory: int = 0) -> int:
    """Returns the FLOPs of one example's forward pass through the blocks of a model.

    Args:
      model: the model, with `embed_dim`.
      num_tokens: T.
      memory: M, tokens of the past that relative attention sees.
    """
    D = model.embed_dim
    width = model.num_heads * model.head_dim if model.head_dim else D
    attention = ATTENTION_FLOPS[model.attention](num_tokens, memory, D, width)
    feed_forwards = sum(FFN_FLOPS[name](model.feed_forwards[name], D) for name in model.ffn_names())
    return model.depth * attention + num_tokens * feed_forwards


def memory_length(inputs: Shapes) -> int:
    """Returns M of a model with a memory [B, L, M, D], else 0."""
    return inputs["memory"].shape[2] if "memory" in inputs else 0


def full_attention(tokens: int, memory: int, embed_dim: int, width: int) -> int:
    """Returns the FLOPs of one layer in which T tokens see each other.

    8 T D W for queries, keys, values and output, W = N H; 4 T^2 W for the scores and the weighted
    sum of values.
    """
    del memory
    return 8 * tokens * embed_dim * width + 4 * tokens * tokens * width


def relative_attention(tokens: int, memory: int, embed_dim: int, width: int) -> int:
    """Returns the FLOPs of one layer in which T tokens see M earlier ones and those before them.

    4 T D W for queries and output, 4 (M + T) D W for keys and values, and 6 W for each token and
    token that it sees: scores by content, scores by distance, the weighted sum. The keys of the
    distances are left out: all examples of a batch share them.
    """
    seen = tokens * memory + tokens * (tokens + 1) // 2
    projections = 4 * tokens + 4 * (memory + tokens)
    return projections * embed_dim * width + 6 * seen * width


# config.model.attention -> FLOPs of one layer: f(T, M, D, N H)
ATTENTION_FLOPS = {"full": full_attention, "relative": relative_attention}


def product_key_flops(section: Mapping, embed_dim: int) -> int:
    """Returns the FLOPs of a product-key memory per token: query, sub-keys, chosen values."""
    D, n, heads = embed_dim, section["num_keys"], section["num_heads"]
    query_dim = section.get("query_dim", 0)
    chosen = min(section["knn"] * heads, n * n)
    if section.get("combine_heads") == "before":
        chosen = n * n if section["knn"] >= n else section["knn"]
    query = 2 * D * heads * query_dim
    return query + 2 * heads * n * (query_dim or D) + 2 * chosen * D


# config.model.ffn -> FLOPs of one layer per token: f(its section, D)
FFN_FLOPS = {
    "mlp": lambda section, D: 4 * D * section["mlp_dim"],
    "moe": lambda section, D: 4 * D * section["mlp_dim"] * section["num_selected_experts"],
    # The output layer needs the K largest units only.
    "top_k_mlp": lambda section, D: 2 * D * (section["mlp_dim"] + section["num_active"]),
    "product_key": product_key_flops,
}


def train_flops(model: Mapping, inputs: Shapes, **model_fields: int | str) -> int:
    """Returns the FLOPs of one example in a training step; arguments as in `forward_flops`."""
    return 3 * forward_flops(model, inputs, **model_fields)
