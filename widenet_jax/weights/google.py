"""Google's ViT checkpoints, flat `.npz` files, as parameters of our ViT.

Key layouts as written over the years by google-research/vision_transformer and big_vision:

- under `opt/target/` (a whole training state), `params/`, `params/img/` (the image tower of a
  pair), or nothing;
- positions at `Transformer/posembed_input/pos_embedding`, `Transformer/pos_embedding` or
  `pos_embedding`, with a row for the CLS token (added after the token was prepended) or without
  (added before);
- blocks apart, `encoderblock_0`, ..., or stacked along a leading axis, `encoderblock`;
- a block's layers numbered together (`LayerNorm_0`, `MultiHeadDotProductAttention_1`,
  `LayerNorm_2`, `MlpBlock_3`) or each kind from 0;
- a tanh layer `pre_logits` before the head, or none; no head.

Their pixels are in [-1, 1], their GELU is the tanh form and their LayerNorm's epsilon 1e-6: ours.
Sources of these facts: vision_transformer/vit_jax/checkpoint.py, big_vision/models/vit.py.
"""

import re
from collections.abc import Mapping

import flax.traverse_util
import numpy as np

from widenet_jax.errors import BadInputError

PREFIXES = ("opt/target/", "params/", "img/")
POSITIONS = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding")
# Their names of what is in a block, in the order of ours. The two norms are told apart by number.
LAYERS = {
    "LayerNorm": ("norm_attention", "norm_ffn"),
    "MultiHeadDotProductAttention": ("attention",),
    "MlpBlock": ("mlp",),
}
MLP = {"Dense_0": "wi", "Dense_1": "wo"}
OUTSIDE = {
    "embedding/kernel": "embed/projection/kernel",
    "embedding/bias": "embed/projection/bias",
    "cls": "position/cls_token",
    "pos_embedding": "position/position_embedding",
    "Transformer/encoder_norm/scale": "encoder/norm_out/scale",
    "Transformer/encoder_norm/bias": "encoder/norm_out/bias",
    "pre_logits/kernel": "representation/kernel",
    "pre_logits/bias": "representation/bias",
    "head/kernel": "head/kernel",
    "head/bias": "head/bias",
}
NEEDED = ("embedding/kernel", "pos_embedding", "Transformer/encoder_norm/scale")


def is_google(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a flat file looks like one of theirs."""
    return any(name.endswith("embedding/kernel") for name in arrays)


def from_google(arrays: Mapping[str, np.ndarray], *, source: str) -> dict:
    """Our tree of parameters from theirs.

    Args:
      arrays: the file's, by name.
      source: named in errors.

    Raises:
      BadInputError: a part that our ViT has no place for, or one that is missing.
    """
    theirs = unstack_blocks(move_positions(strip_prefixes(arrays)))
    for name in NEEDED:
        if name not in theirs:
            raise BadInputError(f"{source}: no {name}, so this is no ViT with learned positions")
    norms = numbers_of_norms(theirs)
    ours = {}
    for name, array in theirs.items():
        path = OUTSIDE.get(name) or path_in_block(name, norms)
        if path is None:
            raise BadInputError(
                f"{source}: {name} has no place in a ViT with a CLS token or average pooling"
            )
        ours[path] = merge_heads(path, array)
    fit_positions(ours)
    return flax.traverse_util.unflatten_dict(ours, sep="/")


def strip_prefixes(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without what the whole tree is under; what lies beside it (optimizer, text) is left out."""
    found = dict(arrays)
    for prefix in PREFIXES:
        under = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
        found = under or found
    return found


def move_positions(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {("pos_embedding" if k in POSITIONS else k): v for k, v in arrays.items()}


def unstack_blocks(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`encoderblock/X` [L, ...] to `encoderblock_0/X` [...], and so on."""
    stacked = "Transformer/encoderblock/"
    apart = {}
    for name, array in arrays.items():
        if name.startswith(stacked):
            rest = name.removeprefix(stacked)
            apart |= {f"{stacked[:-1]}_{i}/{rest}": row for i, row in enumerate(array)}
        else:
            apart[name] = array
    return apart


def numbers_of_norms(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """["0", "2"] where a block's layers are numbered together, ["0", "1"] where kinds are apart."""
    found = (re.search(r"encoderblock_\d+/LayerNorm_(\d+)/", name) for name in arrays)
    return sorted({match[1] for match in found if match})


def path_in_block(name: str, norms: list[str]) -> str | None:
    """Ours for a name within a block; None if there is no such thing."""
    match = re.fullmatch(r"Transformer/encoderblock_(\d+)/([A-Za-z]+)_(\d+)/(.+)", name)
    if not match or match[2] not in LAYERS:
        return None
    block, kind, number, rest = match.groups()
    layer = LAYERS[kind][norms.index(number) if kind == "LayerNorm" else 0]
    head, _, leaf = rest.rpartition("/")
    parts = (f"encoder/block_{int(block):02d}_{layer}", MLP.get(head, head), leaf)
    return "/".join(part for part in parts if part)


def merge_heads(path: str, array: np.ndarray) -> np.ndarray:
    """query, key, value: kernel [D, N, H] and bias [N, H] to [D, D] and [D]; out: [N, H, D] too."""
    if "_attention/" not in path or "_norm_attention/" in path:
        return array
    if path.endswith("/bias"):
        return array.reshape(-1)
    return array.reshape(-1, array.shape[-1]) if "/out/" in path else array.reshape(len(array), -1)


def fit_positions(ours: dict[str, np.ndarray]) -> None:
    """A CLS token without a position row of its own gets one of zeros: the same sum."""
    rows, token = ours["position/position_embedding"], ours.get("position/cls_token")
    tokens = rows.shape[1]
    if token is not None and round(tokens**0.5) ** 2 == tokens:
        ours["position/position_embedding"] = np.concatenate([np.zeros_like(token), rows], axis=1)
