"""Public vision transformers as models that predict without finetuning."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from widenet_jax import param_names
from widenet_jax.config.imports import configs_module
from widenet_jax.errors import refuse
from widenet_jax.vision.weights.huggingface import square_side


def usable(
    place: str, params: Mapping[str, Any], fields: Mapping[str, Any]
) -> tuple[ConfigDict, dict[str, Any]]:
    """Returns the config and `info` of public weights; see `specs.ModelSpec`.

    The shapes decide the sizes. Images have the size of the positions, and are resized whole.
    Classes are named by their numbers. Without a head there is one class without a name, of which
    no prediction is made (`trained.classifier`); features can be read.

    Raises:
      BadInputError: a part of the model is missing.
    """
    mlp, encoder = param_names.block_part(0, "mlp"), params.get(param_names.ENCODER, {})
    there = {"embed": params, "position": params, mlp: encoder}
    lacks = "is missing from the weights; download all of their files"
    refuse(place, *((part not in parts, f"{part} {lacks}") for part, parts in there.items()))
    kernel = params["embed"]["projection"]["kernel"]
    blocks = {param_names.split_block_part(name)[0] for name in encoder} - {None}
    has_token, rows = "cls_token" in params["position"], params["position"]["position_embedding"]
    model = configs_module("variants").model_section("vit_b") | fields
    model["loop"] = model["loop"] | {"core": ((len(blocks), 1),)}
    model |= {
        "embed_dim": kernel.shape[-1],
        "mlp_dim": encoder[mlp]["wi"]["kernel"].shape[-1],
        "patch_size": len(kernel),
        "cls_token": "learned" if has_token else "none",
        "pool": "token" if has_token else "mean",
        "pre_logits": params.keys() >= {"pre_logits", "head"},
        "dtype": "float32",
    }
    config = configs_module("defaults").get_config(model)
    config.data.image_size = square_side(rows.shape[1] - has_token) * len(kernel)
    names = [str(k) for k in range(len(params.get("head", {}).get("bias", ())))]
    return config, {"class_names": names or [""]}
