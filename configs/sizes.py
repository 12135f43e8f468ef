"""Named vision models as plain data: sizes, families and options.

Configs import this module. It does not import JAX, so that a mistyped variant is reported at once.
"""

from collections.abc import Mapping, Sequence

from configs import feed_forward_sizes
from configs.feed_forward_sizes import FFNS, choose_ffn, ffn_sections
from widenet_jax.errors import BadInputError, choose_option, known_names

# ViT (Dosovitskiy et al. 2021, table 1). "tiny" (8x8 digits) and "s" (32 to 64 pixels) are this
# project's: the same architecture, small enough to train on a laptop's CPU.
SIZES = {
    "tiny": {"depth": 3, "embed_dim": 64, "num_heads": 4, "mlp_dim": 64, "patch_size": 2},
    "s": {"depth": 4, "embed_dim": 128, "num_heads": 4, "mlp_dim": 256, "patch_size": 8},
    "b": {"depth": 12, "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072, "patch_size": 16},
    "l": {"depth": 24, "embed_dim": 1024, "num_heads": 16, "mlp_dim": 4096, "patch_size": 16},
    "h": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_dim": 5120, "patch_size": 14},
}

SMALL_SIZES = ("tiny", "s")

# Examples routed together: 16 per core in the paper; fewer for the sizes meant for CPUs.
EXAMPLES_PER_GROUP = {"tiny": 4, "s": 4}

# Small models are too shallow for an expert layer in every 6th block.
FFN_BLOCKS = {"tiny": "last_1", "s": "every_2"}

# Experts of size B have width 4096, while ViT-B's dense layers have 3072: the paper states it for
# WideNet-B, and the printed size of ViT-MoE-B (128M) implies it.
EXPERT_MLP_DIM = {"b": 4096}

FAMILIES = {
    "vit": {"moe": False, "share": False},
    "vit_moe": {"moe": True, "share": False},
    "widenet": {"moe": True, "share": True},
}
NAMES = tuple(f"{family}_{size}" for family in FAMILIES for size in SIZES)

# Options after the name, as in `widenet_b,share_norms=true,experts=8`.
OPTIONS = {
    "share": bool,  # attention and feed-forward
    "share_attention": bool,
    "share_ffn": bool,
    "share_norms": bool,
    "moe": bool,  # false: the ablation without a mixture of experts, as ffn=dense
    "ffn_blocks": str,
    "experts": int,
    "selected": int,
    "capacity_factor": float,
    "router": str,  # see ROUTERS
    "routing_groups": int,
    "examples_per_group": int,
    "mlp_dim": int,
    "depth": int,
    "patch_size": int,
    "image_size": int,
    "preset": str,
    "source": str,  # of the images: array_record, image_folder or tfds
    **feed_forward_sizes.OPTIONS,  # ffn: dense, moe, top_k, product_key
}
# Options of a mixture of experts; an error for a dense model.
MOE_OPTIONS = (
    "experts",
    "selected",
    "capacity_factor",
    "router",
    "routing_groups",
    "examples_per_group",
)

PRESETS = ("paper", "authors_code")


def finetuning_rate(embed_dim: int) -> float:
    """Returns AdamW's learning rate for a model of this width on one's own photos."""
    return 1e-3 if embed_dim < SIZES["b"]["embed_dim"] else 1e-4


def parse_variant(text: str) -> tuple[str, str, dict]:
    """Parses "widenet_b,experts=8" to ("widenet", "b", {"experts": 8}).

    Raises:
      BadInputError: an unknown name, option or value; the message lists the valid ones.
    """
    name, *pairs = [part.strip() for part in text.split(",")]
    family, _, size = name.rpartition("_")
    if family not in FAMILIES or size not in SIZES:
        raise BadInputError(f"no model is named {name!r}; {known_names(name, NAMES)}")
    options = parse_options(name, pairs, OPTIONS)
    if "moe" in options and "ffn" in options:
        raise BadInputError(f"{name}: give option moe or ffn, not both")
    ffn = choose_ffn(name, options, usual=usual_ffn(family, options), of_experts=MOE_OPTIONS)
    if ffn == "dense" and "ffn_blocks" in options:
        raise BadInputError(f"{name} has no experts, so option ffn_blocks has no effect; remove it")
    if options.get("preset", "paper") not in PRESETS:
        raise BadInputError(f"preset={options['preset']!r} is not known; {' or '.join(PRESETS)}")
    return family, size, options


def parse_options(name: str, pairs: Sequence[str], known: Mapping[str, type]) -> dict:
    """Parses "key=value" pairs of the model `name` by the types of `known`.

    Raises:
      BadInputError: an unknown key or router, or a value of another type.
    """
    options = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in known:
            raise BadInputError(
                f"{name} has no option {key!r}; {known_names(key, known)} (as key=value)"
            )
        options[key] = parse_value(key, value, known[key])
    choose_option(ROUTERS, options.get("router", "top_k"), option="router")
    return options


def parse_value(key: str, value: str, kind: type) -> bool | int | float | str:
    """Converts an option's value to the type `kind`."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        return kind(value)
    except (KeyError, ValueError):
        wanted = "true or false" if kind is bool else f"a value of type {kind.__name__}"
        raise BadInputError(f"option {key}={value!r} needs {wanted}") from None


def usual_ffn(family: str, options: Mapping) -> str:
    """Returns the feed-forward of a variant without option ffn."""
    return "moe" if options.get("moe", FAMILIES[family]["moe"]) else "dense"


def vision_model(family: str, size: str, options: dict) -> dict:
    """Returns the section `config.model` of a model for pretraining (the paper's Table 6).

    ViT classifies from a learned CLS token; ViT-MoE and WideNet average all tokens. A WideNet
    without experts also averages, and at size B has the dense width 3072 (printed size: 9M).
    """
    base, kind = SIZES[size], FAMILIES[family]
    ffn = options.get("ffn", usual_ffn(family, options))
    share = options.get("share", kind["share"])
    blocks = FFN_BLOCKS.get(size, "every_6") if family == "vit_moe" else "all"
    authors_code = options.get("preset") == "authors_code"
    pools_tokens = family != "vit"
    mlp_dim = options.get("mlp_dim", base["mlp_dim"])
    model = {
        "name": "vision_transformer",  # the kind of model; the config file chooses it
        "patch_size": options.get("patch_size", base["patch_size"]),  # pixels a side of a token
        "embed_dim": base["embed_dim"],  # D, width of a token
        "depth": options.get("depth", base["depth"]),  # L, blocks
        "attention": attention_section("full", num_heads=base["num_heads"]),
        "mlp_dim": mlp_dim,  # F, hidden width of the dense feed-forward
        # learned, none, or zero: a constant token whose position is learned
        "cls_token": ("zero" if authors_code else "none") if pools_tokens else "learned",
        "pool": "mean" if pools_tokens else "token",  # of all tokens, or the CLS token
        "representation": True,  # a tanh layer before the classifier
        "dropout": 0.1,  # rate after attention and in the feed-forward
        "dtype": "bfloat16",  # of the computation: bfloat16, float32; parameters are float32
        "share_attention": options.get("share_attention", share),  # one for all blocks
        "share_ffn": options.get("share_ffn", share),  # one for all blocks, with its router
        "share_norms": options.get("share_norms", False),  # the same for all blocks
        "norm_position": "pre",  # pre: x + f(norm(x)); post: norm(x + f(x))
        "norm_epsilon": 1e-6,  # added to the variance in LayerNorm
        "activation": "gelu_tanh",  # gelu_tanh, gelu (the exact form), relu
        # glorot_uniform, truncated_normal, pre_norm, pre_norm_each_expert, switch
        "kernel_init": "glorot_uniform",
        "ffn_output_activation": authors_code,  # a second activation, after the feed-forward
        "unroll": True,  # false: blocks in a loop; compiles faster, runs slower
        "remat": "none",  # none, block: less memory, a third more work
        "ffn": FFNS[ffn],  # mlp, moe, top_k_mlp, product_key; in the blocks of ffn_blocks
        # all, every_6 (blocks 5, 11, ...), last_2
        "ffn_blocks": "all" if ffn == "dense" else options.get("ffn_blocks", blocks),
        "routing_groups": options.get("routing_groups", 0),  # of blocks; 0: each block routes
        "moe": None,  # the section of ffn=moe
        **ffn_sections(ffn, options, embed_dim=base["embed_dim"], mlp_dim=mlp_dim),
    }
    if ffn == "moe":
        expert_mlp_dim = EXPERT_MLP_DIM.get(size, base["mlp_dim"])
        group = EXAMPLES_PER_GROUP.get(size, 16)
        model["moe"] = experts_section(options, mlp_dim=expert_mlp_dim, examples_per_group=group)
        if authors_code:
            model["moe"].update(capacity_factor_eval=1.2, capacity_rule="authors_code")
    return model


def attention_section(name: str, *, num_heads: int, head_dim: int = 0) -> dict:
    """Returns the section `config.model.attention`: a layer and its own fields."""
    return {
        "name": name,  # full; relative: by distance, to a memory and earlier tokens
        "num_heads": num_heads,  # N
        "head_dim": head_dim,  # H, of each of the N heads; 0: D / N
    }


def experts_section(options: dict, *, mlp_dim: int, examples_per_group: int) -> dict:
    """Returns the section `config.model.moe`, of images and texts alike.

    Args:
      options: of the variant; they come before the other arguments.
      mlp_dim: width of an expert.
      examples_per_group: examples routed together.
    """
    router, experts, selected = (
        options.get(name, usual)
        for name, usual in (("router", "top_k"), ("experts", 4), ("selected", 2))
    )
    return {
        "mlp_dim": options.get("mlp_dim", mlp_dim),  # hidden width of an expert
        "num_experts": experts,  # E
        "num_selected_experts": selected,  # K, that see each token
        "capacity_factor": options.get("capacity_factor", 1.2),  # slots for each choice of a token
        "capacity_factor_eval": 2.0,  # as capacity_factor, in evaluation
        "capacity_rule": "paper",  # paper, literal, authors_code, unlimited: no token is dropped
        # that are routed together, whatever the devices
        "examples_per_group": options.get("examples_per_group", examples_per_group),
        "priority": "token_order",  # token_order, first_choice_first, batch_prioritized
        "router": router_section(router, experts=experts, selected=selected),
        "losses": losses_section(router),
        "dispatch": "auto",  # auto, einsum, gather, ragged, masked: the same at another cost
        "activation": "gelu_tanh",
        "use_bias": True,  # in both layers of an expert
        "output_dropout": 0.0,  # after the weighted sum of the experts
    }


# Routers and their own fields, see widenet_jax/moe/routers; `hierarchical` has more.
NOISE = {"noise_std": 1.0}  # of the scores in training, in units of 1 / E
EXPERT_DROPOUT = {"expert_dropout": 0.0}  # share of the experts hidden from a token in training
ROUTERS = {
    "top_k": NOISE,  # WideNet
    "softmax": EXPERT_DROPOUT,
    "softmax_renormalized": EXPERT_DROPOUT,
    "noisy_top_k": {},  # Shazeer et al. 2017
    "switch": {},  # Fedus et al. 2021
    "sigmoid": EXPERT_DROPOUT,  # sigma-MoE
    "sinkhorn": EXPERT_DROPOUT,  # S-BASE
    "sinkhorn_released": EXPERT_DROPOUT,  # as Csordás et al. released it
    "hierarchical": {},  # Shazeer et al. 2017, appendix B
}

# Losses of a router's paper with their weights there, and what their statistics are over.
ROUTER_LOSSES = {
    "top_k": {"load_balance": 0.01, "over": "group"},
    "noisy_top_k": {"importance": 0.1, "load": 0.1},
    "hierarchical": {"importance": 0.1, "load": 0.1},
    "switch": {"switch": 0.01},
}


def has_balance_loss(router: str) -> bool:
    """Returns whether a router goes with WideNet's balance loss, which recipes of finetuning set.

    Other routers keep the losses of their papers.
    """
    return "load_balance" in ROUTER_LOSSES.get(router, {})


def router_section(name: str, *, experts: int, selected: int) -> dict:
    """Returns the section `config.model.moe.router`.

    The groups of `hierarchical` are nearly as many as the experts in each; two are chosen, unless
    that does not divide the selected experts.
    """
    section = {
        "name": name,  # a name in ROUTERS; the router's own fields stand beside it
        **ROUTERS[name],
    }
    if name == "hierarchical":
        fits = [n for n in range(1, experts + 1) if experts % n == 0 and n * n <= experts]
        groups = max(fits, default=1)  # no experts: the layer refuses it
        section["groups"] = groups  # of experts
        section["selected_groups"] = 2 if groups > 1 and selected % 2 == 0 else 1  # for each token
    return section


def losses_section(router: str) -> dict:
    """Returns the section `config.model.moe.losses`: a weight for every loss, most of them 0."""
    weights = {
        "load_balance": 0.0,  # WideNet, eqs. 3-5
        "switch": 0.0,  # Fedus et al. 2021
        "importance": 0.0,  # variation of the experts' gates, Shazeer et al. 2017
        "load": 0.0,  # variation of their smooth counts; routers with learned noise
        "entropy": 0.0,  # negative entropy of the mean choice, Csordás et al. 2023
        "entropy_of_chosen": 0.0,  # entropy as released for softmax_renormalized
        "z": 0.0,  # squared logsumexp of the scores, Zoph et al. 2022
        "over": "batch",  # statistics are over: batch, group
    }
    return weights | ROUTER_LOSSES.get(router, {"entropy": 0.001})  # Csordás et al. 2023
