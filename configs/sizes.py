"""The models by name as plain tables: ViT-B, WideNet-L, ALBERT, WT-S and all others.

`widenet_l` is size "l" of IMAGE_SIZES with family "widenet" of IMAGE_FAMILIES, `albert` is size ""
of TEXT_SIZES with family "albert" of TEXT_FAMILIES, and `wt_s` a row of LANGUAGE_SIZES. The
functions make `config.model` of them; what they leave out keeps its default of defaults.py.
variants.py parses names and options.
"""

import math
from collections.abc import Mapping
from typing import Any

from configs import defaults
from configs.defaults import values
from widenet_jax.nn.stack_settings import ATTENTION_FIELDS, ROUTER_FIELDS
from widenet_jax.specs import added, own_fields

# ViT (Dosovitskiy et al. 2021, Table 1). "tiny" (8x8 digits), "mini" (as deep as "b") and "s" (both
# for 32 to 64 pixels) are this project's: the same architecture, small enough to train on a
# laptop's CPU.
IMAGE_SIZES = {
    "tiny": {"depth": 3, "embed_dim": 64, "num_heads": 4, "mlp_dim": 64, "patch_size": 2},
    "mini": {"depth": 12, "embed_dim": 64, "num_heads": 4, "mlp_dim": 256, "patch_size": 8},
    "s": {"depth": 4, "embed_dim": 128, "num_heads": 4, "mlp_dim": 256, "patch_size": 8},
    "b": {"depth": 12, "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072, "patch_size": 16},
    "l": {"depth": 24, "embed_dim": 1024, "num_heads": 16, "mlp_dim": 4096, "patch_size": 16},
    "h": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_dim": 5120, "patch_size": 14},
}
SMALL_SIZES = ("tiny", "mini", "s")
# The feed-forward, and whether all blocks share attention and feed-forward, and norms.
IMAGE_FAMILIES = {
    "vit": {"ffn": "dense", "share": False, "share_norms": False},
    "bvit": {"ffn": "dense", "share": True, "share_norms": True},  # arXiv:2605.10661
    "vit_moe": {"ffn": "moe", "share": False, "share_norms": False},  # in every 6th block
    "widenet": {"ffn": "moe", "share": True, "share_norms": False},  # in all blocks
}
# Most small models are too shallow for experts in every 6th block.
VIT_MOE_BLOCKS = {"tiny": "last_1", "mini": "every_2", "s": "every_2"}
# Experts of size B have width 4096, while ViT-B's dense layers have 3072: the paper states it for
# WideNet-B, and the printed size of ViT-MoE-B (128M) implies it.
EXPERT_MLP_DIM = {"b": 4096}
SMALL_GROUP = 4  # examples routed together on a CPU; 16, as on a TPU core in the paper, otherwise

# "": ALBERT base (Lan et al. 2020) and the paper's. "s" is for experiments on a CPU, "tiny" for a
# first run of minutes.
TEXT_SIZES = {
    "": {"depth": 12, "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072, "embedding_dim": 128},
    "s": {"depth": 4, "embed_dim": 128, "num_heads": 4, "mlp_dim": 512, "embedding_dim": 64},
    "tiny": {"depth": 3, "embed_dim": 64, "num_heads": 4, "mlp_dim": 256, "embedding_dim": 32},
}
# Each block of WideNet has its own norms. BERT has factorised embeddings here.
TEXT_FAMILIES = {
    "albert": {"ffn": "dense", "experts": 0, "share": True, "share_norms": True},
    "bert": {"ffn": "dense", "experts": 0, "share": False, "share_norms": False},
    "widenet_4": {"ffn": "moe", "experts": 4, "share": True, "share_norms": False},
    "widenet_8": {"ffn": "moe", "experts": 8, "share": True, "share_norms": False},
    "widenet_16": {"ffn": "moe", "experts": 16, "share": True, "share_norms": False},
}

# Csordás et al. 2023, arXiv:2310.10837.
WT_S = {
    "embed_dim": 412,  # D
    "depth": 16,  # L
    "num_heads": 10,  # N
    "head_dim": 41,  # H
    "mlp_dim": 2053,  # F of the dense model; None: as many parameters as the experts
    "experts": 16,  # E
    "width": 128,  # G, of an expert
    "selected": 4,  # K
    "expert_dropout": 0.0,  # delta, the share of experts hidden in training
    "entropy": 1e-3,  # gamma, the weight of the entropy loss
    "dropout": 0.1,
    "num_active": 128,  # K of the top-K activation
    "key_heads": 4,  # of product keys
    "knn": 128,  # pairs that each of these heads reads
}
WT_B = WT_S | {
    "embed_dim": 1024,
    "depth": 18,
    "num_heads": 16,
    "head_dim": 64,
    "mlp_dim": 4110,
    "experts": 32,
    "expert_dropout": 0.1,  # as run; the paper's Table 9 prints 0.2
    "dropout": 0.2,
}
# This project's: for experiments on a CPU, and for tests and a first run of minutes. Four heads of
# product keys would leave byte_s 1% from the experts' count.
CPU = {"mlp_dim": None, "width": 32, "expert_dropout": 0.05, "dropout": 0.0}
BYTE_S = {"embed_dim": 128, "depth": 3, "num_heads": 4, "head_dim": 32, "num_active": 64}
BYTE_S |= {"key_heads": 7, "knn": 32}
# For comparisons of loops: K G = F, so that dense layers and experts cost the same, and slots for
# each expert, so that a step with many experts takes no longer.
LOOP_S = {"embed_dim": 64, "depth": 9, "num_heads": 4, "head_dim": 0, "num_active": 64, "knn": 16}
LOOP_S |= {"attention": {"name": "full", "rope": 1.0}, "router": "top_k"}
LOOP_S |= {"mlp_dim": 256, "experts": 8, "width": 128, "selected": 2, "dropout": 0.0}
LOOP_S |= {
    "slots": {
        "capacity_rule": "paper",
        "capacity_factor": 2.0,
        "capacity_factor_eval": 4.0,
        "examples_per_group": 8,
        "dispatch": "gather",
    }
}
TINY = {"embed_dim": 96, "depth": 2, "num_heads": 4, "head_dim": 24, "num_active": 32}
TINY |= {"experts": 8, "selected": 2, "knn": 16}
LANGUAGE_SIZES = {
    "wt_s": WT_S,
    "wt_s_star": WT_S | {"mlp_dim": 16480, "experts": 128, "expert_dropout": 0.05},
    "wt_b": WT_B,
    "e8": WT_S
    | {"embed_dim": 512, "depth": 12, "num_heads": 8, "head_dim": 64}
    | {"expert_dropout": 0.05, "entropy": 1e-4},
    "c4_s": WT_S | {"entropy": 0.0},
    "c4_b": WT_B,
    "pes2o_s": WT_S | {"entropy": 0.0},
    "pes2o_b": WT_B,
    "byte_s": WT_S | CPU | BYTE_S,
    "loop_s": WT_S | LOOP_S,
    "tiny": WT_S | CPU | TINY,
}
LANGUAGE_FAMILIES = {"": {"ffn": "dense"}, "looped": {"ffn": "moe"}}

# MoEUT (Csordás et al. 2024, arXiv:2405.16039): D, L, N, H, E, A, K, and G, layers of its group.
MOEUT = {
    "moeut_44m": (412, 16, 4, 82, 155, 8, 12, 2),
    "moeut_126m": (768, 18, 4, 96, 254, 10, 12, 2),
    "moeut_244m": (1024, 18, 4, 128, 387, 10, 16, 2),
    "moeut_244m_g3": (1024, 18, 4, 128, 260, 6, 16, 3),
    "moeut_318m": (1024, 24, 4, 128, 338, 10, 16, 3),
    "moeut_727m": (1280, 36, 5, 128, 467, 13, 20, 4),
    "moeut_1b": (1536, 36, 6, 128, 565, 12, 24, 4),
}
for _name, (_d, _l, _n, _h, _e, _a, _k, _g) in MOEUT.items():
    LANGUAGE_SIZES[_name] = WT_S | {
        **{"embed_dim": _d, "depth": _l, "num_heads": _n, "head_dim": _h, "experts": _e},
        **{"selected": _k, "entropy": 0.01, "dropout": 0.0, "mlp_dim": None, "share_norms": True},
        "attention": {"name": "switch_head", "num_experts": _a, "rope": 0.5, "entropy": 0.001},
        "loop": {"core": ((_g, _l // _g),)},
        "model": {"norm_position": "peri"},
        # Differs from the paper, whose p is averaged over the loops of a layer, too.
        "losses": {"over": "group"},
        "mean_over": "loops",
    }
# The models of "Tying the Loop" (arXiv:2606.16825), whose topologies are the options loop and tie.
# Its code's initial values are not ours (configs/language_model.py).
LANGUAGE_SIZES["tying"] = WT_S | {
    **{"embed_dim": 512, "depth": 32, "num_heads": 8, "head_dim": 64, "experts": 32, "width": 256},
    **{"selected": 8, "dropout": 0.0, "mlp_dim": None, "router": "softmax_renormalized"},
    "attention": {"name": "full", "rope": 1.0, "qk_norm": True, "use_bias": False},
    "model": {"norm": "rms", "norm_epsilon": 1e-6, "tied_output": True, "ffn_bias": False},
    "expert_activation": "swiglu",
    "losses": {"entropy": 0.0, "first_choice": 0.01, "z": 1e-4},
    "mean_over": "steps",
}
LOOPED = (*MOEUT, "tying")


# Ties of expert tying (arXiv:2606.16825); all have norms of their own. As an option, `tie`.
TIES = {
    "alltie": {"attention": "loops", "experts": "loops", "router": "experts", "norms": "none"},
    "attntie": {"attention": "loops", "experts": "loops", "router": "none", "norms": "none"},
    "experttie": {"attention": "none", "experts": "loops", "router": "none", "norms": "none"},
}

# Option norms -> the tie of the core's norms, and what conditions them.
NORMS = {"own": ("none", "none"), "tied": ("loops", "none")}
NORMS |= {name: ("loops", name) for name in ("index", "index_state")}
ROUTINGS = dict.fromkeys(("own", "first"))  # option routing: as `config.model.loop.routing`

# Option ffn -> config.model.ffn.
FFNS = {"dense": "mlp", "moe": "moe", "soft_moe": "soft_moe", "top_k": "top_k_mlp"}
FFNS |= {"product_key": "product_key"}
# The losses of a router's paper with their weights there; other routers have SIGMA_MOE_LOSSES and
# the size's own.
ROUTER_LOSSES = {
    "top_k": {"load_balance": 0.01, "over": "group"},
    "noisy_top_k": {"importance": 0.1, "load": 0.1},
    "hierarchical": {"importance": 0.1, "load": 0.1},
    "switch": {"switch": 0.01},
    "expert_choice": {},
}
SIGMA_MOE_LOSSES = {"entropy": 0.001}  # Csordás et al. 2023
# Option entropy_of of language models -> the loss that has the weight of the entropy loss.
ENTROPY_OF = {"all": "entropy", "chosen": "entropy_of_chosen"}


def vision_model(family: str, size: str, ffn: str, options: Mapping) -> dict:
    """Returns `config.model` of an image model for pretraining (the WideNet paper's Table 6).

    ViT and bViT classify from a learned CLS token; ViT-MoE and WideNet average all tokens. A
    WideNet without experts also averages, and at size B has the dense width 3072 (printed: 9M).
    """
    authors_code = options.get("preset") == "authors_code"
    blocks = VIT_MOE_BLOCKS.get(size, "every_6") if family == "vit_moe" else "all"
    model = of_size(defaults.MODEL | defaults.IMAGE_MODEL, IMAGE_SIZES[size])
    model |= {
        "name": "vision_transformer",
        "loop": loop_section(IMAGE_SIZES[size]["depth"], IMAGE_FAMILIES[family], options),
        "ffn": FFNS[ffn],
        "ffn_blocks": "all" if ffn == "dense" else blocks,
        "ffn_output_activation": authors_code,
    }
    if family == "bvit":
        model["pre_logits"] = False
    elif family != "vit":
        model |= {"cls_token": "zero" if authors_code else "none", "pool": "mean"}
    model |= chosen(options, "mlp_dim", "patch_size", "ffn_blocks", "routing_groups")
    if ffn == "moe":
        usual = {
            "mlp_dim": EXPERT_MLP_DIM.get(size, IMAGE_SIZES[size]["mlp_dim"]),
            "examples_per_group": SMALL_GROUP if size in SMALL_SIZES else 16,
        }
        model["moe"] = experts_section(usual | options)
        if authors_code:
            model["moe"].update(
                capacity_factor_eval=model["moe"]["capacity_factor"], capacity_rule="authors_code"
            )
    return model | ffn_sections(model, options)


def text_model(family: str, size: str, ffn: str, options: Mapping) -> dict:
    """Returns `config.model` of a text model for pretraining.

    The WideNet paper states neither the position of the norms nor the dropout of its text models:
    both are ALBERT's, whose runs its baselines are.
    """
    kind = TEXT_FAMILIES[family]
    model = of_size(defaults.MODEL | defaults.TEXT_MODEL, TEXT_SIZES[size])
    model |= {
        "name": "text_encoder",
        "loop": loop_section(TEXT_SIZES[size]["depth"], kind, options),
        "norm_position": "post",
        "norm_epsilon": 1e-12,
        "kernel_init": "truncated_normal",
        "ffn": FFNS[ffn],
    }
    if size:
        model |= {"num_positions": 128, "dropout": 0.0, "dtype": "float32"}
    model |= chosen(options, "mlp_dim", "norm_position", "routing_groups")
    if ffn == "moe":
        usual = {"mlp_dim": model["mlp_dim"], "experts": kind["experts"]}
        usual["examples_per_group"] = SMALL_GROUP if size else 16
        model["moe"] = experts_section(usual | options)
    return model | ffn_sections(model, options)


def language_model(size: str, ffn: str, options: Mapping) -> dict:
    """Returns `config.model` of a language model, as Csordás et al. 2023 compare them."""
    base = LANGUAGE_SIZES[size] | chosen(options, "embed_dim")
    init = options.get("kernel_init", "pre_norm")
    loop = loop_section(base["depth"], chosen(base, "loop", "share_norms"), options)
    base = with_mean_losses(base, loop)
    model = of_size(defaults.MODEL | defaults.LANGUAGE_MODEL, base) | {
        "name": "language_model",
        "loop": loop,
        **chosen(base | options, "dropout"),
        "mlp_dim": dense_width(base, ffn, options),
        "norm_epsilon": 1e-5,
        "activation": "relu",
        "kernel_init": init if ffn == "dense" else "pre_norm",
        "ffn": FFNS[ffn],
        **base.get("model", {}),
    }
    usual = base.get("attention", {"name": "relative"})
    attention = options.get("attention", usual["name"])
    own = chosen(values(defaults.ATTENTION), *ATTENTION_FIELDS[attention])
    model["attention"] |= {"name": attention} | own | (usual if usual["name"] == attention else {})
    if size in ("byte_s", "loop_s", "tiny"):
        model["dtype"] = "float32"
    if ffn == "moe":
        model["moe"] = sigma_moe_section(base, options, model["dropout"])
    elif ffn == "soft_moe":
        own = chosen(options, "kernel_init")
        model["soft_moe"] = soft_moe_section(base["width"], base | options) | own
    elif ffn == "top_k":
        names = {"mlp_dim": model["mlp_dim"], "num_active": base["num_active"]}
        model["top_k_mlp"] = names | chosen(options, "num_active") | {"kernel_init": init}
    elif ffn == "product_key":
        heads = options.get("key_heads", base["key_heads"])
        num_keys = matched_num_keys(budget(base), base["embed_dim"], heads)
        if not options.get("parameter_matched", True):
            num_keys = values_for(base["experts"] * base["width"])
        usual = {"num_keys": num_keys, "key_heads": heads, "knn": base["knn"]}
        model["product_key"] = product_key_section(usual | options) | {"kernel_init": init}
    return model


def sigma_moe_section(base: Mapping, options: Mapping, dropout: float) -> dict:
    """Returns `config.model.moe`: no token dropped, no biases, losses over the batch.

    Switch has a quarter of the experts, four times as wide, and each token sees one of them.
    """
    switch = options.get("router") == "switch"
    width = options.get("mlp_dim", base["width"] * (4 if switch else 1))
    usual = {
        "experts": max(1, base["experts"] * base["width"] // width),
        "selected": 1 if switch else base["selected"],
        "router": base.get("router", "sigmoid"),
        "like": base.get("router", "sigmoid"),
        "examples_per_group": 1,
    }
    section = experts_section(usual | options | {"mlp_dim": width} | chosen(base, "losses"))
    if "expert_dropout" in section["router"]:
        section["router"] |= chosen(base | options, "expert_dropout")
    if section["losses"]["entropy"]:
        loss = ENTROPY_OF[options.get("entropy_of", "all")]
        section["losses"] |= {"entropy": 0.0, loss: options.get("entropy", base["entropy"])}
    if "balance" in options:
        balance = {"entropy": 0.0, "load_balance": options["balance"]}
        section["losses"] |= ROUTER_LOSSES["top_k"] | balance
    section |= base.get("slots", {"capacity_rule": "unlimited"})
    section |= capacity_of_choice(section["router"]["name"], options) | {
        "activation": base.get("expert_activation", "relu"),
        "use_bias": False,
        "dropout": dropout if hidden_dropout(options) else 0.0,
        "output_dropout": dropout,
        "kernel_init": options.get("kernel_init", "switch" if switch else "pre_norm"),
    }
    return section


def with_mean_losses(base: Mapping, loop: Mapping) -> dict:
    """Returns a size whose own losses, sums over the steps here, are means as in its paper.

    Args:
      base: of LANGUAGE_SIZES. Its `mean_over` is "steps", all of them, or "loops", of a layer.
      loop: its `config.model.loop`.
    """
    if "mean_over" not in base:
        return dict(base)
    orders = [(range(one) if type(one) is int else one, loops) for one, loops in loop["core"]]
    number = loop["prelude"] + loop["coda"] + sum(len(order) * loops for order, loops in orders)
    if base["mean_over"] == "loops":
        number /= loop["prelude"] + loop["coda"] + sum(len(set(order)) for order, _ in orders)

    def divided(weights: Mapping) -> dict:
        return {k: w if isinstance(w, str) else w / number for k, w in weights.items()}

    attention = base["attention"] | divided(chosen(base["attention"], "entropy"))
    own = {"losses": divided(base["losses"]), "attention": attention}
    return base | own | divided(chosen(base, "entropy"))


def hidden_dropout(options: Mapping) -> bool:
    """Returns whether dropout also acts within the experts: by default in Switch alone."""
    return options.get("hidden_dropout", options.get("router") == "switch")


def of_size(rows: Mapping, size: Mapping) -> dict:
    """Returns `config.model` with the defaults of its rows and the fields of a size."""
    attention = values(defaults.ATTENTION) | chosen(size, "num_heads", "head_dim")
    attention = chosen(attention, "name", "num_heads", "head_dim", "implementation")
    sections = {"attention": attention, "adapter": values(defaults.ADAPTER)}
    return values(rows) | chosen(size, *rows) | sections


def loop_section(depth: int, family: Mapping, options: Mapping) -> dict:
    """Returns `config.model.loop`.

    Args:
      depth: of the size.
      family: `share`, `share_norms` and `loop` of the family; False or none where left out.
      options: loop, tie, norms, routing; or depth, share, share_attention, share_ffn, share_norms.
    """
    given = family | options
    norms = given.get("share_norms", False)
    tie = values(defaults.TIE) | {"norms": "loops" if norms else "none"}
    section = values(defaults.LOOP) | {"tie": tie, "counts": values(defaults.COUNTS)}
    section["exit"] = values(defaults.EXIT)
    if "loop" in given:
        section |= given["loop"]
    else:
        depth = options.get("depth", depth)
        share = given.get("share", False)
        shared = {
            "attention": given.get("share_attention", share),
            "experts": given.get("share_ffn", share),
            "norms": norms,
        }
        section["core"] = ((1, depth),) if any(shared.values()) else ((depth, 1),)
        if any(shared.values()):
            tie |= {part: "loops" if one else "none" for part, one in shared.items()}
    section["tie"] = tie | TIES.get(options.get("tie"), {})
    if "share_norms" in options:
        section["tie"]["norms"] = "loops" if norms else "none"
    if "norms" in options:
        section["tie"]["norms"], section["condition"] = NORMS[options["norms"]]
    return section | chosen(options, "routing")


def experts_section(options: Mapping) -> dict:
    """Returns `config.model.moe`. Options are mlp_dim, experts, selected, router, ..."""
    section = values(defaults.EXPERTS)
    router = options.get("router", "top_k")
    section |= chosen(options, "mlp_dim", "capacity_factor", "examples_per_group")
    section |= capacity_of_choice(router, options)
    section["num_experts"] = options.get("experts", section["num_experts"])
    section["num_selected_experts"] = options.get("selected", section["num_selected_experts"])
    experts, selected = section["num_experts"], section["num_selected_experts"]
    section["router"] = router_section(router, experts=experts, selected=selected)
    losses = router_losses(router, options, like=options.get("like", "top_k"))
    section["losses"] = values(defaults.LOSSES) | losses
    return section


def capacity_of_choice(router: str, options: Mapping) -> dict:
    """Returns the fields of the capacity of experts that choose tokens; {} for other routers.

    It is part of their function: 1, by default, is K experts for a token on average.
    """
    if router != "expert_choice" and not getattr(routers().get(router), "mixes", False):
        return {}
    names = ("capacity_factor", "capacity_factor_eval")
    return {"capacity_rule": "paper"} | dict.fromkeys(names, options.get("capacity_factor", 1.0))


def router_losses(router: str, size: Mapping, *, like: str = "sigmoid") -> dict:
    """Returns the weights of the losses of a router's paper, or else of the size.

    A router of an imported file has the fields of `like`, the router that it replaces.
    """
    known = router if router in ROUTER_FIELDS else like
    return ROUTER_LOSSES.get(known, SIGMA_MOE_LOSSES | size.get("losses", {}))


def router_section(name: str, *, experts: int, selected: int) -> dict:
    """Returns `config.model.moe.router`.

    The groups of `hierarchical` are nearly as many as the experts in each; two are chosen, unless
    that does not divide the selected experts.
    """
    section = {"name": name} | router_fields(name)
    if name == "hierarchical":
        groups = max(n for n in range(1, experts + 1) if experts % n == 0 and n * n <= experts)
        pairs = groups > 1 and selected % 2 == 0
        section |= {"groups": groups, "selected_groups": 2 if pairs else 1}
    return section


def routers() -> dict[str, Any]:
    """Returns all routers by name: this project's, and those that imported files have added."""
    return ROUTER_FIELDS | added("widenet_jax.nn.moe.routers", "ROUTERS", ROUTER_FIELDS)


def router_fields(name: str) -> dict:
    """Returns a router's own fields with their defaults."""
    if name in ROUTER_FIELDS:
        return chosen(values(defaults.ROUTER), *ROUTER_FIELDS[name])
    decided = ("num_experts", "num_selected_experts", "kernel_init")
    return own_fields(routers()[name], place=f"router={name}", decided=decided)


def has_balance_loss(router: str) -> bool:
    """Returns whether a router goes with WideNet's balance loss, which recipes of finetuning set.

    Other routers keep the losses of their papers.
    """
    return "load_balance" in ROUTER_LOSSES.get(router, {})


def ffn_sections(model: Mapping, options: Mapping) -> dict[str, dict]:
    """Returns the section of a feed-forward that replaces a dense one, by its name; {} for others.

    Product keys have as many parameters as the dense feed-forward.
    """
    width = model["mlp_dim"]
    if model["ffn"] == "top_k_mlp":
        usual = {"mlp_dim": width, "num_active": max(1, width // 8), "activation": "relu"}
        return {"top_k_mlp": usual | chosen(options, "num_active")}
    if model["ffn"] == "soft_moe":
        return {"soft_moe": soft_moe_section(width, options)}
    if model["ffn"] == "product_key":
        parameters = dense_parameters(model["embed_dim"], width)
        num_keys = matched_num_keys(parameters, model["embed_dim"], 4)
        return {"product_key": product_key_section({"num_keys": num_keys} | options)}
    return {}


def soft_moe_section(width: int, options: Mapping) -> dict:
    """Returns `config.model.soft_moe`."""
    section = values(defaults.SOFT_MOE) | {"mlp_dim": width} | chosen(options, "capacity_factor")
    return section | {"num_experts": options.get("experts", section["num_experts"])}


def product_key_section(options: Mapping) -> dict:
    """Returns `config.model.product_key`."""
    section = values(defaults.PRODUCT_KEY)
    names = ("num_keys", "weights", "combine_heads", "query_dim", "table_init")
    section |= chosen(options, *names)
    section["num_heads"] = options.get("key_heads", section["num_heads"])
    section["knn"] = min(options.get("knn", section["knn"]), section["num_keys"] ** 2)
    return section


def chosen(options: Mapping, *names: str) -> dict:
    """Returns the options with these names, without the names that are missing."""
    return {name: options[name] for name in names if name in options}


def finetuning_rate(embed_dim: int) -> float:
    """Returns AdamW's learning rate to finetune a model of this width on your photos."""
    return 1e-3 if embed_dim < IMAGE_SIZES["b"]["embed_dim"] else 1e-4


# Csordás et al. 2023 compare models of equal size: a dense layer has as many parameters as the
# experts without biases in its place, with their router.


def budget(base: Mapping) -> int:
    """Returns the parameters of the sigma-MoE layer of a row of LANGUAGE_SIZES."""
    return experts_parameters(base["embed_dim"], base["experts"], base["width"])


def dense_width(base: Mapping, ffn: str, options: Mapping) -> int:
    """Returns F of a language model: the option's, the paper's, or the solved one."""
    dense = ffn in ("dense", "top_k")
    if dense and "mlp_dim" in options:
        return options["mlp_dim"]
    if base["mlp_dim"] is None or (dense and options.get("parameter_matched")):
        return matched_mlp_dim(budget(base), base["embed_dim"])
    return base["mlp_dim"]


def experts_parameters(embed_dim: int, num_experts: int, width: int) -> int:
    """Counts E experts of width G without biases, and their router: 2 D E G + D E."""
    return embed_dim * num_experts * (2 * width + 1)


def dense_parameters(embed_dim: int, mlp_dim: int) -> int:
    """Counts a dense layer of width F with biases: 2 D F + F + D."""
    return 2 * embed_dim * mlp_dim + mlp_dim + embed_dim


def product_key_parameters(embed_dim: int, num_keys: int, num_heads: int) -> int:
    """Counts a product-key memory of n sub-keys without projection: n^2 D + h n D."""
    return embed_dim * num_keys * (num_keys + num_heads)


def matched_mlp_dim(parameters: int, embed_dim: int) -> int:
    """Returns the width F of the dense layer with the nearest number of parameters."""
    return max(1, round((parameters - embed_dim) / (2 * embed_dim + 1)))


def matched_num_keys(parameters: int, embed_dim: int, num_heads: int) -> int:
    """Returns the number n of sub-keys of the memory with the nearest number of parameters."""
    return max(1, round(math.sqrt(num_heads**2 / 4 + parameters / embed_dim) - num_heads / 2))


def values_for(units: int) -> int:
    """Returns the least n with n^2 values for `units` hidden units (Table 6, "equal values")."""
    return math.isqrt(units - 1) + 1
