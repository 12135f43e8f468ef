"""Named language models as plain data: sizes, options and the rows of the paper's tables.

The paper is Csordás et al. 2023, arXiv:2310.10837. Configs import this module. It does not import
JAX, so that a mistyped variant is reported at once.
"""

from collections.abc import Mapping

from configs.feed_forward_sizes import FFNS, product_key_section, top_k_section
from configs.matching import (
    experts_parameters,
    matched_mlp_dim,
    matched_num_keys,
    values_for,
)
from configs.sizes import (
    ROUTER_LOSSES,
    ROUTERS,
    attention_section,
    experts_section,
    parse_options,
)
from widenet_jax.errors import BadInputError, choose_option, known_names

COLUMNS = (
    "embed_dim",  # D
    "depth",  # L
    "num_heads",  # N
    "head_dim",  # H
    "mlp_dim",  # F of the dense model; None: as many parameters as the experts
    "experts",  # E
    "width",  # G, of an expert
    "selected",  # K
    "expert_dropout",  # delta, the share of experts hidden in training
    "entropy",  # gamma, the weight of the entropy loss
    "dropout",
    "num_active",  # K of the top-K activation
    "key_heads",  # of product keys
    "knn",  # pairs that each of these heads reads
)
SIZES = {
    name: dict(zip(COLUMNS, row, strict=True))
    for name, row in {
        "wt_s": (412, 16, 10, 41, 2053, 16, 128, 4, 0.0, 1e-3, 0.1, 128, 4, 128),
        "wt_s_star": (412, 16, 10, 41, 16480, 128, 128, 4, 0.05, 1e-3, 0.1, 128, 4, 128),
        # Table 9 prints 0.2 for the expert dropout of the big models, which ran with 0.1.
        "wt_b": (1024, 18, 16, 64, 4110, 32, 128, 4, 0.1, 1e-3, 0.2, 128, 4, 128),
        "e8": (512, 12, 8, 64, 2053, 16, 128, 4, 0.05, 1e-4, 0.1, 128, 4, 128),
        "c4_s": (412, 16, 10, 41, 2053, 16, 128, 4, 0.0, 0.0, 0.1, 128, 4, 128),
        "c4_b": (1024, 18, 16, 64, 4110, 32, 128, 4, 0.1, 1e-3, 0.2, 128, 4, 128),
        "pes2o_s": (412, 16, 10, 41, 2053, 16, 128, 4, 0.0, 0.0, 0.1, 128, 4, 128),
        "pes2o_b": (1024, 18, 16, 64, 4110, 32, 128, 4, 0.1, 1e-3, 0.2, 128, 4, 128),
        # This project's: for experiments on a CPU, and for tests and a first run of minutes. Four
        # heads of product keys would leave byte_s 1% from the experts' count.
        "byte_s": (128, 3, 4, 32, None, 16, 32, 4, 0.05, 1e-3, 0.0, 64, 7, 32),
        "tiny": (96, 2, 4, 24, None, 8, 32, 2, 0.05, 1e-3, 0.0, 32, 4, 16),
    }.items()
}

# Options after the name, as in `wt_s,ffn=moe,router=sigmoid`.
OPTIONS = {
    "preset": str,  # a row of the paper's tables, see PRESETS
    "ffn": str,  # dense, moe, top_k, product_key
    "parameter_matched": bool,  # solve the width or the number of keys for the experts' count
    "depth": int,
    "dropout": float,
    "kernel_init": str,  # of the feed-forward
    "mlp_dim": int,  # F, or G of an expert
    "num_active": int,
    "router": str,
    "experts": int,
    "selected": int,
    "expert_dropout": float,
    "hidden_dropout": bool,  # dropout within the experts, the "standard dropout"
    "entropy": float,  # weight of the entropy loss
    "entropy_of": str,  # all experts, or those chosen
    "num_keys": int,
    "key_heads": int,
    "knn": int,
    "weights": str,
    "combine_heads": str,
    "query_dim": int,
    "table_init": str,
}
# Options of one feed-forward; an error for the others.
OPTIONS_OF = {
    "dense": ("parameter_matched", "mlp_dim"),
    "top_k": ("parameter_matched", "mlp_dim", "num_active"),
    "moe": (
        "mlp_dim",
        "router",
        "experts",
        "selected",
        "expert_dropout",
        "hidden_dropout",
        "entropy",
        "entropy_of",
    ),
    "product_key": (
        "parameter_matched",
        "num_keys",
        "key_heads",
        "knn",
        "weights",
        "combine_heads",
        "query_dim",
        "table_init",
    ),
}
# Option entropy_of -> the loss that has the weight of the entropy loss.
ENTROPY_OF = {"all": "entropy", "chosen": "entropy_of_chosen"}
# Options that take a whole number, and the least of each that makes a model; 1 for the others.
LEAST = {"query_dim": 0}

# Rows of Tables 1 and 3 to 6 as options. Other numbers of experts follow as further options:
# "preset=sigma_moe,selected=8,mlp_dim=64" has twice as many experts of half the width.
PRESETS = {
    "dense": {"ffn": "dense"},
    "top_k": {"ffn": "top_k"},
    "sigma_moe": {"ffn": "moe", "router": "sigmoid"},
    "standard_dropout": {"ffn": "moe", "expert_dropout": 0.0, "hidden_dropout": True},
    "softmax_renormalized": {"ffn": "moe", "router": "softmax_renormalized"},
    "softmax_renormalized_released": {
        "ffn": "moe",
        "router": "softmax_renormalized",
        "entropy_of": "chosen",
    },
    "softmax": {"ffn": "moe", "router": "softmax"},
    "standard_init": {"ffn": "moe", "kernel_init": "pre_norm_each_expert"},
    "unregularized": {"ffn": "moe", "entropy": 0.0, "expert_dropout": 0.0},
    "switch": {"ffn": "moe", "router": "switch"},
    "switch_no_dropout": {"ffn": "moe", "router": "switch", "hidden_dropout": False},
    "s_base": {"ffn": "moe", "router": "sinkhorn"},
    "s_base_released": {"ffn": "moe", "router": "sinkhorn_released"},
    "product_key": {"ffn": "product_key"},
    "product_key_softmax": {"ffn": "product_key", "weights": "softmax"},
    "product_key_init": {"ffn": "product_key", "table_init": "values_fan"},
    "product_key_values": {"ffn": "product_key", "parameter_matched": False},
    "product_key_values_softmax": {
        "ffn": "product_key",
        "parameter_matched": False,
        "weights": "softmax",
    },
}


def parse_language_variant(text: str) -> tuple[str, dict]:
    """Parses "wt_s,ffn=moe,selected=2" to ("wt_s", {"ffn": "moe", "selected": 2}).

    Options of a preset are among those returned; those of the text come before them.

    Raises:
      BadInputError: an unknown name, option or value; the message lists the valid ones.
    """
    name, *pairs = [part.strip() for part in text.split(",")]
    if name not in SIZES:
        raise BadInputError(f"no language model is named {name!r}; {known_names(name, SIZES)}")
    given = parse_options(name, pairs, OPTIONS)
    asked = given.pop("preset", "")
    preset = choose_option(PRESETS, asked, option="preset") if asked else {"ffn": "dense"}
    options = preset | given
    ffn = options["ffn"]
    choose_option(FFNS, ffn, option="ffn")
    if asked and ffn != preset["ffn"]:
        raise BadInputError(f"preset={asked} has ffn={preset['ffn']}; remove it, or ffn={ffn}")
    for key, value in given.items():
        if OPTIONS[key] is int and value < LEAST.get(key, 1):
            raise BadInputError(f"option {key}={value} must be {LEAST.get(key, 1)} or more")
    common = ("ffn", "depth", "dropout", "kernel_init")
    if odd := [key for key in given if key not in (*common, *OPTIONS_OF[ffn])]:
        raise BadInputError(f"option {odd[0]} has no effect on {name} with {ffn}; remove it")
    choose_option(ENTROPY_OF, options.get("entropy_of", "all"), option="entropy_of")
    router = options.get("router", "sigmoid")
    if odd := [key for key in without_effect(router) if key in given]:
        raise BadInputError(f"option {odd[0]} has no effect on router={router}; remove it")
    if "hidden_dropout" in options and not options.get("dropout", SIZES[name]["dropout"]):
        of_preset = "" if "hidden_dropout" in given else f" of preset={asked}"
        raise BadInputError(
            f"option hidden_dropout{of_preset} has no effect on {name} without dropout; give "
            "dropout=0.1"
        )
    fixed = [key for key in ("mlp_dim", "num_keys") if key in given]
    if ffn != "moe" and fixed and options.get("parameter_matched"):
        raise BadInputError(f"{fixed[0]} is what parameter_matched=true solves; remove one of both")
    return name, options


def without_effect(router: str) -> tuple[str, ...]:
    """Returns the options that have no effect on a router."""
    lacking = {
        "expert_dropout": "expert_dropout" not in ROUTERS[router],
        # Their papers have other losses.
        **dict.fromkeys(("entropy", "entropy_of"), router in ROUTER_LOSSES),
    }
    return tuple(name for name, lacks in lacking.items() if lacks)


def language_model(size: str, options: Mapping) -> dict:
    """Returns the section `config.model` of a language model.

    Args:
      size: a key of `SIZES`.
      options: as `parse_language_variant` returns them.
    """
    base, ffn = SIZES[size], FFNS[options["ffn"]]
    dropout = options.get("dropout", base["dropout"])
    model = {
        "name": "language_model",
        "embed_dim": base["embed_dim"],
        "depth": options.get("depth", base["depth"]),
        "attention": attention_section(
            "relative", num_heads=base["num_heads"], head_dim=base["head_dim"]
        ),
        "mlp_dim": dense_width(base, options),
        "dropout": dropout,
        "ffn_dropout": True,
        "dtype": "float32" if size in ("byte_s", "tiny") else "bfloat16",
        "share_attention": False,
        "share_ffn": False,
        "share_norms": False,
        "norm_position": "pre",
        "norm_epsilon": 1e-5,
        "activation": "relu",
        "kernel_init": "pre_norm",
        "ffn_output_activation": False,
        "unroll": True,
        "remat": "none",
        "ffn": ffn,
        "ffn_blocks": "all",
        "routing_groups": 0,
        "moe": None,
        "top_k_mlp": None,  # the section of ffn=top_k_mlp
        "product_key": None,  # the section of ffn=product_key
    }
    if ffn == "mlp":
        model["kernel_init"] = options.get("kernel_init", "pre_norm")
    elif ffn == "moe":
        model["moe"] = moe_section(base, options, dropout)
    else:
        section = keys_section if ffn == "product_key" else units_section
        model[ffn] = section(base, options)
        model[ffn]["kernel_init"] = options.get("kernel_init", "pre_norm")
    return model


def budget(base: Mapping) -> int:
    """Returns the parameters of the sigma-MoE layer of a size."""
    return experts_parameters(base["embed_dim"], base["experts"], base["width"])


def dense_width(base: Mapping, options: Mapping) -> int:
    """Returns F: the option's, the paper's, or with parameter_matched=true the solved one."""
    if options["ffn"] in ("dense", "top_k") and "mlp_dim" in options:
        return options["mlp_dim"]
    matched = options["ffn"] in ("dense", "top_k") and options.get("parameter_matched")
    if base["mlp_dim"] is None or matched:
        return matched_mlp_dim(budget(base), base["embed_dim"])
    return base["mlp_dim"]


def units_section(base: Mapping, options: Mapping) -> dict:
    """Returns the section `config.model.top_k_mlp`."""
    width = dense_width(base, options)
    return top_k_section(options, mlp_dim=width, num_active=base["num_active"])


def moe_section(base: Mapping, options: Mapping, dropout: float) -> dict:
    """Returns the section `config.model.moe`: nothing dropped, no biases, losses over the batch.

    Switch has a quarter of the experts, four times as wide, of which each token sees one.
    """
    switch = options.get("router") == "switch"
    width = options.get("mlp_dim", base["width"] * (4 if switch else 1))
    experts = options.get("experts", max(1, base["experts"] * base["width"] // width))
    selected = options.get("selected", 1 if switch else base["selected"])
    router = options.get("router", "sigmoid")
    section = experts_section(
        {"experts": experts, "selected": selected, "router": router},
        mlp_dim=width,
        examples_per_group=1,
    )
    if "expert_dropout" in section["router"]:
        delta = options.get("expert_dropout", base["expert_dropout"])
        section["router"]["expert_dropout"] = delta
    if section["losses"]["entropy"]:
        loss = ENTROPY_OF[options.get("entropy_of", "all")]
        section["losses"] |= {"entropy": 0.0, loss: options.get("entropy", base["entropy"])}
    within = dropout if hidden_dropout(options) else 0.0
    return section | {
        "capacity_rule": "unlimited",
        "activation": "relu",
        "use_bias": False,
        "dropout": within,  # after the hidden layer of an expert
        "output_dropout": dropout,
        "kernel_init": options.get("kernel_init", "switch" if switch else "pre_norm"),
    }


def hidden_dropout(options: Mapping) -> bool:
    """Returns whether dropout acts within the experts, too: by default in Switch alone."""
    return options.get("hidden_dropout", options.get("router") == "switch")


def keys_section(base: Mapping, options: Mapping) -> dict:
    """Returns the section `config.model.product_key`."""
    heads = options.get("key_heads", base["key_heads"])
    num_keys = matched_num_keys(budget(base), base["embed_dim"], heads)
    if not options.get("parameter_matched", True):
        num_keys = values_for(base["experts"] * base["width"])
    return product_key_section(options, num_keys=num_keys, key_heads=heads, knn=base["knn"])
