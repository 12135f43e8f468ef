"""Hugging Face's ViT files (`.safetensors` of the transformers library) as parameters of our ViT.

Reads `ViTModel`, `ViTForImageClassification`, `ViTForMaskedImageModeling`, the encoders of ViT-MAE
and ViT-MSN, and `Dinov2Model`, under both sets of names that transformers has used for a block:
`encoder.layer.0.attention.attention.query` in stored files, and `layers.0.attention.q_proj` in the
modules of version 5. DINOv2's classifier is not read: its input is twice as wide as ours. DeiT's
`DeiTModel` has a second class token and is refused; DeiT without it is stored as a `ViTModel`.

The pooler of `ViTModel` is our `pre_logits` layer.
`config.json` beside the weights says which function they belong to: see `model_fields`, and
`preprocessor_config.json` which pixels they read: see `fold_pixels`.
Sources: modeling_vit.py, configuration_vit.py, activations.py and image_processing_vit.py of
transformers.
"""

import math
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import cv2
import flax.traverse_util
import numpy as np
from etils import epath

from widenet_jax import param_names
from widenet_jax.config.names import activation_of
from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.files import read_object
from widenet_jax.vision.weights import PRE_NORM
from widenet_jax.vision.weights.layouts import QKV, Layout, fold_layer_scales, from_layout

PREPROCESSOR = "preprocessor_config.json"
EMBEDDINGS = "embeddings.patch_embeddings.projection"
LAYOUT = Layout(
    block=re.compile(rf"(?:encoder\.layer|layers)\.{param_names.LAYER_NUMBER}\."),
    outside={
        EMBEDDINGS: "embed/projection",
        "layernorm": f"{param_names.ENCODER}/{param_names.NORM_OUT}",
        "pooler.dense": "pre_logits",
        "classifier": "head",
    },
    in_block={
        "layernorm_before": "norm_attention",
        "layernorm_after": "norm_ffn",
        # Names in stored files.
        **{f"attention.attention.{name}": f"attention/{name}" for name in QKV},
        "attention.output.dense": "attention/out",
        "intermediate.dense": "mlp/wi",
        "output.dense": "mlp/wo",
        # Names of the modules of transformers 5.
        **{f"attention.{name[0]}_proj": f"attention/{name}" for name in (*QKV, "out")},
        # DINOv2's, of which the modules of transformers 5 have the last two.
        "norm1": "norm_attention",
        "norm2": "norm_ffn",
        "mlp.fc1": "mlp/wi",
        "mlp.fc2": "mlp/wo",
    },
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    alone={
        "embeddings.cls_token": "position/cls_token",
        "embeddings.position_embeddings": "position/position_embedding",
    },
)
PREFIX = re.compile(r"^(vit|deit|dinov2(_with_registers)?)\.")
DINOV2 = "dinov2"  # their model_type
# Parts that only pretraining uses: the token for masked patches, and the decoder of pixels.
UNUSED = r"embeddings\.mask_token|decoder\..+"


def from_huggingface(arrays: Mapping[str, np.ndarray], *, source: str) -> dict:
    """Converts the arrays of Hugging Face's files to our parameter tree.

    Args:
      arrays: by their name in the file.
      source: the file, named in errors.

    Raises:
      BadInputError: a part that our ViT does not have.
    """
    theirs = param_names.renamed(arrays, lambda name: PREFIX.sub("", name), source=source)
    theirs = {name: array for name, array in theirs.items() if not re.fullmatch(UNUSED, name)}
    ours = from_layout(theirs, LAYOUT, source=source)
    fold_layer_scales(ours, source=source)
    return flax.traverse_util.unflatten_dict(ours, sep="/")


def model_fields(config: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Returns the fields of `config.model` that Hugging Face's `config.json` decides.

    A model with other values of them takes the same arrays and computes another function. Copies
    of Google's models are published with the exact GELU and an epsilon of 1e-12, although they
    were trained with the tanh form and 1e-6.

    Args:
      config: the contents of `config.json`. Absent fields have the defaults of `ViTConfig` or
        `Dinov2Config`.
      source: the file, named in errors.

    Raises:
      BadInputError: a value that our models do not have.
    """
    activation = activation_of(config, "gelu", source=source)
    with downloaded(source):
        heads = config.get("num_attention_heads", 12)
        usual = 1e-6 if config.get("model_type") == DINOV2 else 1e-12
        epsilon = float(config.get("layer_norm_eps", usual))
        if type(heads) is not int or heads < 1 or not 0 <= epsilon < math.inf:
            raise ValueError(f"num_attention_heads={heads!r} or layer_norm_eps={epsilon} is wrong")
    attention = {"name": "full", "num_heads": heads}
    return {"attention": attention, "norm_epsilon": epsilon, "activation": activation, **PRE_NORM}


def downloaded(source: str) -> AbstractContextManager[None]:
    """Names a file with values of other kinds than the library writes."""
    kinds = (AttributeError, TypeError, ValueError, OverflowError)  # the last of 400 digits
    return refusing(f"{source}: damaged", *kinds, advice="; download it again")


def fold_pixels(params: dict, preprocessor: Mapping[str, Any], *, source: str) -> tuple[dict, str]:
    """Returns parameters that read pixels of [-1, 1], and what was changed for it ("": nothing).

    Theirs read z = (r p - mean) / std of pixels p in 0..255, ours x = p / 127.5 - 1, so that
    z = a x + b with a = 127.5 r / std and b = (127.5 r - mean) / std for each channel. The kernel
    of the patches takes a, and their bias the sum of b over the kernel: the outputs are the same.

    Args:
      params: our tree, of `from_huggingface`.
      preprocessor: the contents of `preprocessor_config.json`. Absent fields have the defaults of
        `ViTImageProcessor`, which make z equal x.
      source: the file, named in errors.

    Raises:
      BadInputError: no numbers for each channel, or a std that is not above 0.
    """
    projection = params["embed"]["projection"]
    kernel = projection["kernel"].astype(np.float64)  # [P, P, C, D]
    mean, std, r = np.zeros(1), np.ones(1), 1.0
    with downloaded(source):
        fields = {name: value for name, value in preprocessor.items() if value is not None}
        if fields.get("do_rescale", True):
            r = float(fields.get("rescale_factor", 1 / 255))
        if fields.get("do_normalize", True):
            mean, std = (np.array(fields.get(f"image_{x}", 0.5), float) for x in ("mean", "std"))
        if not (std > 0).all():
            raise ValueError("image_std is not above 0")
        a, b = (np.broadcast_to(x / std, kernel.shape[-2]) for x in (127.5 * r, 127.5 * r - mean))
        if not (a.all() and np.isfinite(a + b).all()):
            raise ValueError("its numbers leave no finite pixels that differ")
    if np.allclose(a, 1) and np.allclose(b, 0, atol=1e-6):
        return params, ""
    bias = projection.get("bias", 0) + (kernel * b[:, None]).sum((0, 1, 2))
    folded = {"kernel": kernel * a[:, None], "bias": bias}
    folded = {name: x.astype(projection["kernel"].dtype) for name, x in folded.items()}
    numbers = f"rescale_factor {r:.4g}, mean {mean.tolist()}, std {std.tolist()}"
    note = f"its normalisation of pixels ({numbers}) is folded into embed"
    return {**params, "embed": {**params["embed"], "projection": folded}}, note


def read_huggingface(
    arrays: Mapping[str, np.ndarray], directory: epath.Path, source: str
) -> tuple[dict, dict[str, Any], str] | None:
    """Reads a ViT; None for other arrays, or without its `config.json`. See `specs.ModelSpec`."""
    config, preprocessor = directory / "config.json", directory / PREPROCESSOR
    known = any(name.endswith(f"{EMBEDDINGS}.weight") for name in arrays)
    if not known or not config.exists():
        return None
    theirs = read_object(config)
    fields = model_fields(theirs, source=str(config))
    # Positions may be as many as those of a square, such as 4 x 16 and 8 x 8.
    sides = theirs.get("image_size")
    problem = (
        f"image_size={sides}, so its positions are not of a square grid, as those of our images "
        "are; start from a ViT of square images"
    )
    refuse(config, (isinstance(sides, list) and len(set(map(repr, sides))) > 1, problem))
    is_dinov2 = theirs.get("model_type") == DINOV2
    missing = "is missing; download it too: DINOv2's pixels have ImageNet's mean and std"
    refuse(preprocessor, (is_dinov2 and not preprocessor.exists(), missing))
    params = from_huggingface(arrays, source=source)
    dropped = "not used: classifier" * bool(is_dinov2 and params.pop("head", None))
    if not preprocessor.exists():
        return params, fields, f"{PREPROCESSOR} is missing: mean 0.5 and std 0.5 of pixels assumed"
    params, folded = fold_pixels(params, read_object(preprocessor), source=str(preprocessor))
    return params, fields, "; ".join(filter(None, (dropped, folded)))


POSITION = "position/position_embedding"


def fit(name: str, value: np.ndarray, shape: tuple[int, ...], model: Mapping) -> np.ndarray:
    """Resizes the positions to the grid of this model; see `specs.ModelSpec`."""
    if name == POSITION and value.shape[:1] == (1,) and value.shape != shape:
        return resize_positions(value, shape[1], cls_token=model["cls_token"] != "none")
    return value


def resize_positions(position: np.ndarray, num_tokens: int, *, cls_token: bool) -> np.ndarray:
    """Resizes [1, T, D] to [1, num_tokens, D], bilinear over the grid of patches; keeps a CLS row.

    Differs from timm (bicubic, with antialiasing), transformers (bicubic) and Google's ViT
    (`scipy.ndimage.zoom` of order 1, which keeps the corners in place): docs/log/timm.md.

    Raises:
      BadInputError: one of the grids is not square.
    """
    extra = int(cls_token)
    old_side, new_side = square_side(position.shape[1] - extra), square_side(num_tokens - extra)
    grid = position[0, extra:].reshape(old_side, old_side, -1)
    # OpenCV limits the channels of an image, so each embedding channel is resized by itself.
    channels, size = (grid[..., d] for d in range(grid.shape[-1])), (new_side, new_side)
    linear = cv2.INTER_LINEAR
    resized = np.stack([cv2.resize(c, size, interpolation=linear) for c in channels], axis=-1)
    return np.concatenate([position[:, :extra], resized.reshape(1, new_side**2, -1)], axis=1)


def square_side(tokens: int) -> int:
    """Returns the side of a square grid; raises BadInputError if `tokens` is not a square."""
    side = math.isqrt(max(tokens, 0))
    if not 0 < side * side == tokens:
        raise BadInputError(
            f"positions of {tokens} patches do not form a square grid and cannot be resized; "
            "finetune at the image size of pretraining"
        )
    return side
