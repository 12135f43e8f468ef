"""FLOPs of a model from its dimensions: the definition of MFU in this project.

A multiply-add counts as two. Counted are the matrix products of the model's mathematics: every
token, K experts per token, the hidden units or values that a token uses. Not counted are padding,
the router, dispatch and combine, norms, softmax, recomputation and the optimizer. A training step
costs three times its forward pass. Every part counts its own: `forward_flops` of attention, of a
feed-forward and of a text model's head, `outside_flops` of a model.
"""

from collections.abc import Callable, Mapping

import flax.linen as nn

from widenet_jax.errors import BadInputError
from widenet_jax.nn.build import build_model
from widenet_jax.typing import Shapes


def forward_flops(model: Mapping, inputs: Shapes, **model_fields: int | str) -> int:
    """Returns the FLOPs of one example's forward pass through the model `config.model`.

    Args:
      model: `config.model`.
      inputs: shapes of the model's inputs, as `experiment.input_spec` returns them.
      **model_fields: fields of the task, such as num_classes.

    Raises:
      BadInputError: the model, or a part of its blocks, does not count its products.
    """
    module = build_model(model, **model_fields)
    sizes = (1, module.num_tokens(inputs), module.embed_dim)  # B, T, D
    memory = inputs["memory"].shape[2] if "memory" in inputs else 0  # M of [B, L, M, D]
    outside = method(module, "outside_flops", f"name={model['name']}")(inputs)
    field = f"attention.name={module.attention['name']}"
    attention = method(module.build_attention(), "forward_flops", field)(*sizes, memory=memory)
    return (
        outside
        + module.depth * attention
        + sum(
            method(module.build_ffn(name), "forward_flops", f"ffn={name}")(*sizes)
            for name in module.ffn_names()
        )
    )


def method(part: nn.Module, name: str, field: str) -> Callable[..., int]:
    """Returns the method of a part that counts its products.

    Raises:
      BadInputError: it has none.
    """
    if not hasattr(part, name):
        raise BadInputError(
            f"config.model.{field}: its FLOPs are not counted; add the method {name} to its class "
            f"{type(part).__name__}"
        )
    return getattr(part, name)


def train_flops(model: Mapping, inputs: Shapes, **model_fields: int | str) -> int:
    """Returns the FLOPs of one example in a training step; arguments as in `forward_flops`."""
    return 3 * forward_flops(model, inputs, **model_fields)
