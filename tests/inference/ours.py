"""Our ViT at the size of `reference_vit`, applied to imported parameters."""

import jax
import numpy as np
from inference import reference_vit as reference

from configs.variants import model_section
from widenet_jax.nn.build import build_model


def our_vit(params: dict, **changes: object):
    """Builds the model of the parameters, with or without CLS token and `pre_logits`."""
    cls = "cls_token" in params["position"]
    fields = model_section("vit_tiny") | {
        "loop": {"core": ((reference.L, 1),)},
        "embed_dim": reference.D,
        "attention": {"name": "full", "num_heads": reference.N, "head_dim": 0},
        "mlp_dim": reference.F,
        "patch_size": reference.P,
        "cls_token": "learned" if cls else "none",
        "pool": "token" if cls else "mean",
        "pre_logits": "pre_logits" in params,
        "dtype": "float32",
    }
    return build_model(fields | changes, num_classes=len(params["head"]["bias"]))


def our_logits(params: dict, images: np.ndarray, **changes: object) -> np.ndarray:
    model = our_vit(params, **changes)
    apply = jax.jit(lambda p, x: model.apply({"params": p}, {"image": x}, train=False)[0])
    return np.asarray(apply(params, images))
