"""Names in stored configs: those of earlier versions become those of today.

Workdirs, checkpoints and exports keep their config as JSON. Whoever reads one calls `upgrade`
first, so that the rest of the code knows the present names only.
"""

from collections.abc import Mapping
from typing import Any

# Every model had this field before the names changed, and none has it since.
EARLIER = "ffn_output_gelu"
# Fields added to the optimizer, to the sections of image classification and to `config.model`, with
# the values that give what the code computed before.
NEW_IN_OPTIMIZER = {"layer_decay": 1.0, "freeze": "none", "ema_decay": 0.0}
NEW_IN_AUGMENT = {"exif_orientation": False, "color_jitter": 0.0, "random_erasing": 0.0}
NEW_IN_IMAGES = {
    "augment": NEW_IN_AUGMENT | {"cutmix_alpha": 0.0},
    "data": {"eval_fraction": 0.0},
    "task": {"class_weights": "none"},
}
NEW_IN_MODEL = {"norm_epsilon": 1e-6, "activation": "gelu_tanh", "kernel_init": "glorot_uniform"}
NEW_IN_MOE = {"activation": "gelu_tanh", "use_bias": True, "output_dropout": 0.0}
NEW_LOSSES = dict.fromkeys(
    ("switch", "importance", "load", "entropy", "entropy_of_chosen", "z"), 0.0
)
# Feed-forwards with which `routing_groups` had no effect; now it is refused.
WITHOUT_ROUTING = ("mlp", "top_k_mlp", "product_key")


def upgrade(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a stored config with today's fields; one that has them comes out equal.

    The argument is not changed. Fields that no version renamed are kept as they are.
    """
    config = dict(config)
    if isinstance(config.get("evaluation"), Mapping):
        config["evaluation"] = {"patience": 0} | dict(config["evaluation"])
    if isinstance(config.get("optimizer"), Mapping):
        config["optimizer"] = NEW_IN_OPTIMIZER | dict(config["optimizer"])
    data = config.get("data")
    if isinstance(data, Mapping) and data.get("source") == "tiny_stream":  # it read no path
        config["data"] = dict(data) | {"source": "token_stream", "path": ""}
    if "augment" in config:  # image classification
        for section, fields in NEW_IN_IMAGES.items():
            config[section] = fields | dict(config.get(section, {}))
    model = config.get("model")
    if not isinstance(model, Mapping):
        return config
    if EARLIER in model:
        model = upgrade_model(model)
    if "num_heads" in model:
        model = with_attention(model)
    if isinstance(model.get("moe"), Mapping):
        model = {**model, "moe": upgrade_moe(model["moe"])}
    if model.get("ffn") in WITHOUT_ROUTING and model.get("routing_groups"):
        model = {**model, "routing_groups": 0}
    return config | {"model": model}


def upgrade_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section `config.model` of an earlier version with today's names."""
    model = NEW_IN_MODEL | dict(model)
    moe = dict(model["moe"]) if model.get("moe") else None
    old = moe or {}
    model["ffn_output_activation"] = model.pop(EARLIER)
    model.setdefault("ffn", "moe" if moe else "mlp")
    model.setdefault("ffn_blocks", old.pop("blocks", "all"))
    model.setdefault("routing_groups", old.pop("routing_groups", 0))
    return model | {"moe": moe}


def with_attention(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section `config.model` with its fields of attention in a section of their own."""
    model = dict(model)
    usual = "relative" if model.get("name") == "language_model" else "full"
    own = {"name": model.pop("attention", usual), "num_heads": model.pop("num_heads")}
    return model | {"attention": own | {"head_dim": model.pop("head_dim", 0)}}


def upgrade_moe(moe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section `config.model.moe` with today's names."""
    moe = NEW_IN_MOE | dict(moe)
    for old, new in (("capacity", "capacity_rule"), ("images_per_group", "examples_per_group")):
        if old in moe:
            moe[new] = moe.pop(old)
    if not isinstance(moe.get("router"), Mapping):
        name, noise_std = moe.pop("router", "top_k"), moe.pop("noise_std", 0.0)
        moe["router"] = {"name": name, "noise_std": noise_std}
    if "losses" not in moe:
        moe["losses"] = {"load_balance": moe.pop("load_balance_weight", 0.0), "over": "group"}
    return moe | {"losses": NEW_LOSSES | dict(moe["losses"])}
