"""Google's ViT checkpoints, flat `.npz` files, as parameters of our ViT.

google-research/vision_transformer and big_vision have written several layouts:

- The tree lies under `opt/target/` (a whole training state), `params/`, `params/img/` (the image
  tower of a pair), or at the top.
- Positions are at `Transformer/posembed_input/pos_embedding`, `Transformer/pos_embedding` or
  `pos_embedding`. They have a row for the CLS token (added after the token was prepended) or none
  (added before).
- Blocks are separate, `encoderblock_0`, ..., or stacked along a leading axis, `encoderblock`.
- The layers of a block are numbered together (`LayerNorm_0`, `MultiHeadDotProductAttention_1`,
  `LayerNorm_2`, `MlpBlock_3`), or each kind from 0.
- A tanh layer `pre_logits` may precede the head; the head may be absent.

Pixels are in [-1, 1], as ours.
Sources: vision_transformer/vit_jax/checkpoint.py, big_vision/models/vit.py.
"""

import re
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np
from etils import epath

from widenet_jax import param_names
from widenet_jax.errors import refuse
from widenet_jax.vision.weights import PRE_NORM

PREFIXES = ("opt/target/", "params/", "img/")
POSITIONS = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding")
# Our layers for theirs in a block, numbered together or each kind from 0.
LAYERS = {
    "LayerNorm_0": "norm_attention",
    **dict.fromkeys(("LayerNorm_1", "LayerNorm_2"), "norm_ffn"),
    **dict.fromkeys((f"MultiHeadDotProductAttention_{i}" for i in (0, 1)), "attention"),
    **dict.fromkeys((f"MlpBlock_{i}/Dense_0" for i in (0, 3)), "mlp/wi"),
    **dict.fromkeys((f"MlpBlock_{i}/Dense_1" for i in (0, 3)), "mlp/wo"),
}
OUTSIDE = {
    "embedding/kernel": "embed/projection/kernel",
    "embedding/bias": "embed/projection/bias",
    "cls": "position/cls_token",
    "pos_embedding": "position/position_embedding",
    "Transformer/encoder_norm/scale": f"{param_names.ENCODER}/{param_names.NORM_OUT}/scale",
    "Transformer/encoder_norm/bias": f"{param_names.ENCODER}/{param_names.NORM_OUT}/bias",
    "pre_logits/kernel": "pre_logits/kernel",
    "pre_logits/bias": "pre_logits/bias",
    "head/kernel": "head/kernel",
    "head/bias": "head/bias",
}
NEEDED = ("embedding/kernel", "pos_embedding", "Transformer/encoder_norm/scale")


def from_google(arrays: Mapping[str, np.ndarray], *, source: str) -> dict:
    """Converts the arrays of a Google file to our parameter tree.

    Args:
      arrays: by their name in the file.
      source: the file, named in errors.

    Raises:
      BadInputError: a part that our ViT does not have, or a part that is missing.
    """
    theirs = unstack_blocks(strip_prefixes(arrays))
    theirs = param_names.renamed(
        theirs, lambda k: "pos_embedding" if k in POSITIONS else k, source=source
    )
    absent = "so this is not a ViT with learned positions"
    refuse(source, *((name not in theirs, f"no {name}, {absent}") for name in NEEDED))
    paths = {name: OUTSIDE.get(name) or path_in_block(name) for name in theirs}
    for name, path in paths.items():
        problem = f"{name} has no place in a ViT with a CLS token or average pooling"
        refuse(source, (path is None, problem))
        param_names.check_axes(
            name, theirs[name], axes_of(path), source=source, kind="ViT of Google"
        )
    theirs = param_names.renamed(theirs, paths.__getitem__, source=source)
    ours = {path: merge_heads(path, array) for path, array in theirs.items()}
    fit_positions(ours)
    return flax.traverse_util.unflatten_dict(ours, sep="/")


def model_fields(arrays: Mapping[str, np.ndarray], *, source: str) -> dict[str, Any]:
    """Returns the fields of `config.model` that Google's files decide.

    The number of heads N is an axis of the query kernel [D, N, H]; all models share the rest.

    Raises:
      BadInputError: the file has no attention.
    """
    kernels = [a for k, a in strip_prefixes(arrays).items() if k.endswith("/query/kernel")]
    refuse(source, (not kernels, "no query/kernel, so this is not a ViT"))
    attention = {"name": "full", "num_heads": kernels[0].shape[-2]}
    return {"attention": attention, "norm_epsilon": 1e-6, "activation": "gelu_tanh", **PRE_NORM}


def strip_prefixes(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Takes the tree out of its parents; drops what lies beside it (optimizer, text tower)."""
    found = dict(arrays)
    for prefix in PREFIXES:
        under = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
        found = under or found
    return found


def unstack_blocks(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Splits `encoderblock/X` [L, ...] into `encoderblock_0/X` [...], and so on."""
    stacked = "Transformer/encoderblock/"
    apart = {}
    for name, array in arrays.items():
        if name.startswith(stacked):
            rest = name.removeprefix(stacked)
            rows = enumerate(np.atleast_1d(array))
            apart |= {f"{stacked[:-1]}_{i}/{rest}": row for i, row in rows}
        else:
            apart[name] = array
    return apart


def path_in_block(name: str) -> str | None:
    """Returns our path for a name within a block; None if our ViT has no such layer."""
    match = re.fullmatch(rf"Transformer/encoderblock_{param_names.LAYER_NUMBER}/(.+)", name)
    for theirs, ours in LAYERS.items():
        rest = match[2].removeprefix(theirs) if match else ""
        if re.fullmatch("(/query|/key|/value|/out)?/(kernel|scale|bias)", rest):
            return f"{param_names.ENCODER}/{param_names.block_part(int(match[1]), ours)}{rest}"
    return None


def axes_of(path: str) -> tuple[int, ...]:
    """Returns how many axes the array of a path may have in Google's files."""
    last = path.rpartition("/")[2]
    if "_attention/" in path and "_norm_attention/" not in path:
        return (3,) if last == "kernel" else (1, 2)
    return param_names.AXES.get(last, param_names.AXES_OF_TABLE)


def merge_heads(path: str, array: np.ndarray) -> np.ndarray:
    """Merges the axes N and H of attention's kernels [D, N, H], [N, H, D] and biases [N, H]."""
    if "_attention/" not in path or "_norm_attention/" in path:
        return array
    if path.endswith("/bias"):
        return array.reshape(-1)
    return array.reshape(-1, array.shape[-1]) if "/out/" in path else array.reshape(len(array), -1)


def fit_positions(ours: dict[str, np.ndarray]) -> None:
    """Adds a position row of zeros for a CLS token that has none; the sum stays the same."""
    rows, token = ours["position/position_embedding"], ours.get("position/cls_token")
    tokens = rows.shape[1]
    if token is not None and round(tokens**0.5) ** 2 == tokens:
        zeros = np.zeros_like(rows[:, :1])
        ours["position/position_embedding"] = np.concatenate([zeros, rows], axis=1)


def read_google(
    arrays: Mapping[str, np.ndarray], directory: epath.Path, source: str
) -> tuple[dict, dict[str, Any], str] | None:
    """Reads such a checkpoint; None for other arrays. See `specs.ModelSpec`."""
    if not any(name.endswith("embedding/kernel") for name in arrays):
        return None
    return from_google(arrays, source=source), model_fields(arrays, source=source), ""
