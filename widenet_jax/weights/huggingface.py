"""Hugging Face's ViT (`.safetensors` of transformers' ViTModel and ViTForImageClassification) as
parameters of our ViT.

PyTorch stores a linear layer as [out, in] and a convolution as [out, in, height, width]; ours are
[in, out] and [height, width, in, out]. `ViTModel`'s pooler is our representation layer.
Differs from theirs: `hidden_act="gelu"` is the exact GELU and their epsilon is 1e-12. Google's
models, of which most of theirs are copies, were trained with the tanh form and 1e-6, as ours.
Sources of these facts: transformers/models/vit/modeling_vit.py.
"""

import re
from collections.abc import Mapping

import flax.traverse_util
import numpy as np

from widenet_jax.errors import BadInputError

EMBEDDINGS = "embeddings.patch_embeddings.projection"
BLOCK = r"encoder\.layer\.(\d+)\.(.+)"
# Modules of ours by theirs: outside the blocks, and in one.
OUTSIDE = {
    EMBEDDINGS: "embed/projection",
    "layernorm": "encoder/norm_out",
    "pooler.dense": "representation",
    "classifier": "head",
}
IN_BLOCK = {
    "layernorm_before": "norm_attention",
    "attention.attention.query": "attention/query",
    "attention.attention.key": "attention/key",
    "attention.attention.value": "attention/value",
    "attention.output.dense": "attention/out",
    "layernorm_after": "norm_ffn",
    "intermediate.dense": "mlp/wi",
    "output.dense": "mlp/wo",
}
# Arrays that are no module's weight or bias.
ALONE = {
    "embeddings.cls_token": "position/cls_token",
    "embeddings.position_embeddings": "position/position_embedding",
}
UNUSED = ("embeddings.mask_token",)  # of masked pretraining


def is_huggingface(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a flat file looks like one of theirs."""
    return any(name.endswith(f"{EMBEDDINGS}.weight") for name in arrays)


def from_huggingface(arrays: Mapping[str, np.ndarray], *, source: str) -> dict:
    """Our tree of parameters from theirs.

    Args:
      arrays: the file's, by name.
      source: named in errors.

    Raises:
      BadInputError: a part that our ViT has no place for.
    """
    ours = {}
    for name, array in arrays.items():
        theirs = name.removeprefix("vit.")
        if theirs in UNUSED:
            continue
        path = ALONE.get(theirs) or path_of(theirs)
        if path is None:
            raise BadInputError(f"{source}: {name} has no place in a ViT; is this another model?")
        ours[path] = turn(array) if path.endswith("/kernel") else array
    return flax.traverse_util.unflatten_dict(ours, sep="/")


def path_of(theirs: str) -> str | None:
    """Ours for a module's weight or bias; None if there is no such module."""
    module, _, leaf = theirs.rpartition(".")
    if match := re.fullmatch(BLOCK, module):
        inner = IN_BLOCK.get(match[2])
        ours = inner and f"encoder/block_{int(match[1]):02d}_{inner}"
    else:
        ours = OUTSIDE.get(module)
    if ours is None or leaf not in ("weight", "bias"):
        return None
    kernel = "scale" if "norm_" in ours.rpartition("/")[2] else "kernel"
    return f"{ours}/{kernel if leaf == 'weight' else 'bias'}"


def turn(kernel: np.ndarray) -> np.ndarray:
    """[out, in] to [in, out]; [out, in, height, width] to [height, width, in, out]."""
    return np.moveaxis(kernel, (0, 1), (-1, -2))
