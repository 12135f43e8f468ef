"""What PyTorch's layouts of vision transformers share: tables of names, and parts folded away."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from widenet_jax import param_names
from widenet_jax.errors import refuse

QKV = ("query", "key", "value")
SCALES = ("attention/out/scale", "mlp/wo/scale")  # where a block's layer scales wait to be folded


class Layout(NamedTuple):
    """Names of modules and arrays in files, and our paths.

    Attributes:
      block: matches the beginning of a name in a block; its group is the block's number.
      outside: our module for each module outside the blocks.
      in_block: our module for each module of a block.
      scales: the layer scales of a block, for `SCALES` in turn.
      alone: our path for each array that is not the weight or bias of a module.
    """

    block: re.Pattern[str]
    outside: Mapping[str, str]
    in_block: Mapping[str, str]
    scales: Sequence[str]
    alone: Mapping[str, str]


def from_layout(
    theirs: Mapping[str, np.ndarray], layout: Layout, *, source: str
) -> dict[str, np.ndarray]:
    """Returns arrays by our paths, layer scales beside the projections that they scale.

    A model without biases of query, key and value (`qkv_bias=False`) gets zeros.

    Args:
      theirs: by their name, without prefixes.
      layout: of these names.
      source: the file, named in errors.

    Raises:
      BadInputError: a part that our ViT does not have.
    """
    inside = param_names.torch_names(layout.in_block)
    inside |= dict(zip(layout.scales, itertools.cycle(SCALES), strict=False))
    names = param_names.torch_names(layout.outside) | layout.alone
    for match in filter(None, map(layout.block.match, theirs)):
        path = f"{param_names.ENCODER}/{param_names.block_part(int(match[1]), '')}"
        names |= {f"{match[0]}{name}": f"{path}{part}" for name, part in inside.items()}
    ours = param_names.from_torch(theirs, names, source=source, kind="ViT")
    for path in [p for p in ours if p.endswith(tuple(f"{name}/kernel" for name in QKV))]:
        bias = path.replace("/kernel", "/bias")
        ours.setdefault(bias, np.zeros(ours[path].shape[-1], np.float32))
    return ours


def fold_layer_scales(ours: dict[str, np.ndarray], *, source: str) -> None:
    """Multiplies the layer scales into the projections before them, in place.

    x + s * (h W + b) = x + h (W * s) + (b * s) for a scale s of each channel, so the function stays
    the same. Training differs: W changes in place of s.

    Raises:
      BadInputError: a scale has another width than its projection.
    """
    for path in [path for path in ours if path.endswith(SCALES)]:
        scale, module = ours.pop(path), path.removesuffix("/scale")
        for name in (f"{module}/kernel", f"{module}/bias"):
            fits = name in ours and ours[name].shape[-1:] == scale.shape
            refuse(source, (not fits, f"the scale of {module} does not fit; download it again"))
            ours[name] = ours[name] * scale
