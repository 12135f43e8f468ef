"""timm's ViT files, and those of DeiT, MAE, DINO and DINOv2, as parameters of our ViT.

Reads AugReg's and the original ViT, with class token or average pooling, DeiT, DeiT-III and DINOv2
(layer scales; positions without a row for the class token), the encoder of MAE, and the teacher of
DINO. All have LayerNorms with an epsilon of 1e-6 and the exact GELU.

What a file does not say:

- Pixels. `config.json` beside the weights has their mean and std, as in timm's directories on the
  hub. Without it they follow from a word in the name of the file (of the directory, if that is
  given), see `FAMILIES`; other names are refused. The first layer takes them in: see
  `huggingface.fold_pixels`.
- Heads. `model_args` of `config.json` may have `num_heads`. Otherwise heads have 64 channels up to
  a width of 1,024, and there are 16 above, as in timm's (docs/log/timm.md).
- The function. Other architectures have the same names and compute something else, such as residual
  post-norm (`rpn`), SigLIP's GELU or rotary positions; see `ARCHITECTURE`.

Sources: vision_transformer.py, deit.py and _hub.py of timm 1.0.31.
"""

import re
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np
from etils import epath

from widenet_jax import param_names
from widenet_jax.errors import refuse
from widenet_jax.files import read_object
from widenet_jax.vision.weights import PRE_NORM
from widenet_jax.vision.weights.google import fit_positions
from widenet_jax.vision.weights.huggingface import downloaded, fold_pixels
from widenet_jax.vision.weights.layouts import QKV, Layout, fold_layer_scales, from_layout

# Of checkpoints of training, and of transformers' `TimmWrapperModel`.
PREFIX = re.compile(r"^(module\.|timm_model\.)?(backbone\.)?")
# Parts that only pretraining uses: the token for masked patches, MAE's decoder, DINO's head.
UNUSED = re.compile(r"mask_token|decoder_.+|head\.(mlp|last_layer)\..+")
PATCHES, POSITIONS, HIDDEN = "patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc2.weight"
# Names in `model_args` of what a model computes with the same arrays.
COMPUTES = re.compile("layer|norm|prefix|pos_embed|block|rope|swiglu|scale")
LAYOUT = Layout(
    block=re.compile(rf"blocks\.{param_names.LAYER_NUMBER}\."),
    outside={
        "patch_embed.proj": "embed/projection",
        "norm": f"{param_names.ENCODER}/{param_names.NORM_OUT}",
        "pre_logits.fc": "pre_logits",
        "head": "head",
    },
    in_block={
        "norm1": "norm_attention",
        **{f"attn.{name}": f"attention/{name}" for name in QKV},  # of `split_qkv`
        "attn.proj": "attention/out",
        "norm2": "norm_ffn",
        "mlp.fc1": "mlp/wi",
        "mlp.fc2": "mlp/wo",
    },
    scales=("ls1.gamma", "ls2.gamma", "gamma_1", "gamma_2"),  # of timm, and of DeiT-III
    alone={"cls_token": "position/cls_token", POSITIONS: "position/position_embedding"},
)
# Names of timm's architectures that are plain ViTs with the heads of `read_timm`.
ARCHITECTURE = r"(?!.*base.*gap)(vit|deit3?)_[a-z]+_patch\d+(_gap|_plus)?_(\d+(_miil)?|dinov2)"
# Pixels of models by a word of their names.
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
FAMILIES = {"augreg": {}, "deit": IMAGENET, "dino": IMAGENET, "mae": IMAGENET}
NO_PIXELS = (
    "no config.json beside it has the mean and std of its pixels, and its name has not one word of "
    f"{[*FAMILIES]}; download it, or write one: "
    '{"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}'
)


def from_timm(arrays: Mapping[str, np.ndarray], *, source: str) -> dict:
    """Converts the arrays of timm's files to our parameter tree.

    Args:
      arrays: by their name in the file, without `PREFIX` and what is `UNUSED`.
      source: the file, named in errors.

    Raises:
      BadInputError: a part that our ViT does not have, a missing one, or one of another shape.
    """
    ours = from_layout(split_qkv(arrays), LAYOUT, source=source)  # names other parts first
    check_shapes(arrays, source=source)
    fold_layer_scales(ours, source=source)
    fit_positions(ours)
    return flax.traverse_util.unflatten_dict(ours, sep="/")


def check_shapes(arrays: Mapping[str, np.ndarray], *, source: str) -> None:
    """Raises BadInputError where an array of the backbone is missing or has another shape.

    The positions, the patches' kernel and the first block's `fc2` decide the sizes.
    """
    for name, axes in ((POSITIONS, 3), (PATCHES, 4), (HIDDEN, 2)):
        refuse(source, (name not in arrays, f"no {name}, so this is no ViT with learned positions"))
        param_names.check_axes(name, arrays[name], (axes,), source=source, kind="ViT of timm")
    D, F = arrays[POSITIONS].shape[2], arrays[HIDDEN].shape[1]
    in_block = {"attn.qkv.weight": (3 * D, D), "attn.qkv.bias": (3 * D,)}
    in_block |= {"attn.proj.weight": (D, D), "attn.proj.bias": (D,), "mlp.fc2.bias": (D,)}
    in_block |= {"mlp.fc1.weight": (F, D), "mlp.fc1.bias": (F,), "mlp.fc2.weight": (D, F)}
    in_block |= {f"norm{i}.{leaf}": (D,) for i in (1, 2) for leaf in ("weight", "bias")}
    shapes = {PATCHES: (D, *arrays[PATCHES].shape[1:]), "patch_embed.proj.bias": (D,)}
    shapes |= {"cls_token": (1, 1, D), "norm.weight": (D,), "norm.bias": (D,)}
    classes = arrays.get("head.bias", np.zeros(0)).shape
    shapes |= {"head.weight": (*classes, D), "head.bias": classes, "pre_logits.fc.weight": (D, D)}
    for index in range(len({match[1] for match in map(LAYOUT.block.match, arrays) if match})):
        shapes |= {f"blocks.{index}.{name}": shape for name, shape in in_block.items()}
    for name, shape in shapes.items():
        found = arrays[name].shape if name in arrays else None
        wrong = f"{name} has the shape {found}, and the other arrays need {shape}"
        wrong += ": SwiGLU with one kernel for gate and hidden units" * (found == (2 * F, D))
        needed = not re.search("^(cls_token|head|pre_logits)|qkv.bias$", name)
        lacks = f"{name} is missing; download the file again"
        refuse(source, (found is None and needed, lacks), (found and found != shape, wrong))


def split_qkv(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Splits `attn.qkv` [3 D, ...] into `attn.query`, `attn.key` and `attn.value`."""
    apart = {}
    for name, array in arrays.items():
        is_qkv = re.match(r"blocks\.\d+\.attn\.qkv\.", name) and array.ndim
        rows = zip(QKV, np.array_split(array, 3), strict=True) if is_qkv else [("qkv", array)]
        apart |= {name.replace(".qkv.", f".{part}."): x for part, x in rows}
    return apart


def read_timm(
    arrays: Mapping[str, np.ndarray], directory: epath.Path, source: str
) -> tuple[dict, dict[str, Any], str] | None:
    """Reads such a file; None for other arrays. See `specs.ModelSpec`.

    Raises:
      BadInputError: as `from_timm`; another architecture; or nothing says which pixels it reads.
    """
    theirs = param_names.renamed(arrays, lambda name: PREFIX.sub("", name), source=source)
    if PATCHES not in theirs:
        return None
    unused = [name for name in theirs if UNUSED.fullmatch(name)]
    params = from_timm({k: v for k, v in theirs.items() if k not in unused}, source=source)
    file, width = directory / "config.json", theirs[POSITIONS].shape[2]
    config = read_object(file) if file.exists() else {}
    with downloaded(str(file)):
        architecture, arguments = config.get("architecture"), config.get("model_args") or {}
        stated = config.get("pretrained_cfg", config)  # older files have its fields at the top
        pixels = {f"image_{x}": stated[x] for x in ("mean", "std") if x in stated}
        sides = {*np.ravel(arguments.get("img_size") or stated.get("input_size", [])[-2:])}
        usual = 16 if width > 1024 else width // 64 if width % 64 == 0 else None
        heads = arguments.get("num_heads", usual)
        pool = arguments.get("global_pool", config.get("global_pool"))
    known = architecture is None or re.fullmatch(ARCHITECTURE, str(architecture))
    other = f"architecture={architecture!r} may compute something else; start from a plain ViT"
    odd = type(heads) is not int or heads < 1 or width % heads
    told = f"num_heads={heads!r} of a width of {width}; state it, under model_args"
    oblong = "its images are no squares, as ours are; start from a ViT of square images"
    pools = (None, "", "token") if "cls_token" in theirs else (None, "avg")
    pooled = (
        f"global_pool={pool!r} is not how models with these arrays pool; start from one that is"
    )
    function = next(filter(COMPUTES.search, arguments), "")
    unknown = f"model_args has {function}, with which the arrays may compute something else"
    refuse(file, (not known, other), (odd, told), (len(sides) > 1, oblong))
    refuse(file, (pool not in pools, pooled), (function, unknown))
    notes = [f"not used: {name}" for name in sorted({n.partition(".")[0] for n in unused})]
    if len(pixels) < 2:
        name = r"(?<![a-z]){}(v?\d)?(?![a-z])[^/]*/?$"
        words = [w for w in FAMILIES if re.search(name.format(w), source, re.IGNORECASE)]
        refuse(source, (len(words) != 1, NO_PIXELS))
        pixels = FAMILIES[words[0]]
        notes.append(f"no config.json says its pixels: as of {words[0]}, by the name of the file")
    params, folded = fold_pixels(params, pixels, source=str(file))
    attention = {"name": "full", "num_heads": heads}
    fields = {"attention": attention, "norm_epsilon": 1e-6, "activation": "gelu", **PRE_NORM}
    return params, fields, "; ".join(filter(None, (*notes, folded)))
