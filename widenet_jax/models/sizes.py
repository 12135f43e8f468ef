"""Named vision models as plain data: sizes, families, and every row of the paper's tables.

Nothing here imports JAX: configs read it, and a typing mistake is answered at once.
"""

from widenet_jax.errors import BadInputError

# ViT (Dosovitskiy et al. 2021, table 1). "tiny" (8x8 digits) and "s" (32 to 64 pixels) are ours:
# the same shape at a size that a laptop's CPU trains.
SIZES = {
    "tiny": {"depth": 3, "embed_dim": 64, "num_heads": 4, "mlp_dim": 64, "patch_size": 2},
    "s": {"depth": 4, "embed_dim": 128, "num_heads": 4, "mlp_dim": 256, "patch_size": 8},
    "b": {"depth": 12, "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072, "patch_size": 16},
    "l": {"depth": 24, "embed_dim": 1024, "num_heads": 16, "mlp_dim": 4096, "patch_size": 16},
    "h": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_dim": 5120, "patch_size": 14},
}

SMALL_SIZES = ("tiny", "s")

# Images routed together: the paper's 16 a core, fewer where it is CPUs that pay for the dispatch.
IMAGES_PER_GROUP = {"tiny": 4, "s": 4}

# Small models are too shallow for an expert layer in every 6th block.
MOE_BLOCKS = {"tiny": "last_1", "s": "every_2"}

# Experts of size B are 4096 wide where ViT-B's dense layers are 3072: the text says so of
# WideNet-B, and ViT-MoE-B's printed 128M needs it too.
EXPERT_MLP_DIM = {"b": 4096}

FAMILIES = {
    "vit": {"moe": False, "share": False},
    "vit_moe": {"moe": True, "share": False},
    "widenet": {"moe": True, "share": True},
}

# Options after the name, as in `widenet_b,share_norms=true,experts=8`.
OPTIONS = {
    "share": bool,  # attention and feed-forward
    "share_attention": bool,
    "share_ffn": bool,
    "share_norms": bool,
    "moe": bool,  # false: the ablation without a mixture of experts
    "moe_blocks": str,
    "experts": int,
    "selected": int,
    "capacity_factor": float,
    "routing_groups": int,
    "images_per_group": int,
    "mlp_dim": int,
    "depth": int,
    "patch_size": int,
    "image_size": int,
    "preset": str,
    "source": str,  # of the images: array_record, image_folder or tfds
}
# Options of a mixture of experts; a dense model refuses them.
MOE_OPTIONS = (
    *("moe_blocks", "experts", "selected", "capacity_factor", "routing_groups"),
    "images_per_group",
)

PRESETS = ("paper", "authors_code")


def parse_variant(text: str) -> tuple[str, str, dict]:
    """ "widenet_b,experts=8" -> ("widenet", "b", {"experts": 8}).

    Raises:
      BadInputError: an unknown name, option or value; the message lists what there is.
    """
    name, *pairs = [part.strip() for part in text.split(",")]
    family, _, size = name.rpartition("_")
    if family not in FAMILIES or size not in SIZES:
        names = ", ".join(f"{f}_{s}" for f in FAMILIES for s in SIZES)
        raise BadInputError(f"no model is named {name!r}; there are {names}")
    options = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in OPTIONS:
            raise BadInputError(
                f"{name} has no option {key!r}; there are {', '.join(OPTIONS)} (as key=value)"
            )
        options[key] = parse_value(key, value)
    if not options.get("moe", FAMILIES[family]["moe"]):
        for key in (key for key in options if key in MOE_OPTIONS):
            raise BadInputError(
                f"{name} has no experts, so option {key} means nothing; leave it out"
            )
    if options.get("preset", "paper") not in PRESETS:
        raise BadInputError(f"preset={options['preset']!r} is not known; {' or '.join(PRESETS)}")
    return family, size, options


def parse_value(key: str, value: str) -> bool | int | float | str:
    """The value of option `key`, of the type `OPTIONS` gives it."""
    kind = OPTIONS[key]
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        return kind(value)
    except (KeyError, ValueError):
        wanted = "true or false" if kind is bool else f"a value of type {kind.__name__}"
        raise BadInputError(f"option {key}={value!r} wants {wanted}") from None


def vision_model(family: str, size: str, options: dict) -> dict:
    """The `config.model` section of a model at pretraining (PAPER section 3; Table 6).

    ViT reads a learned CLS token; the models with experts average all tokens. Without experts a
    WideNet keeps its average pooling, and size B its dense width 3072 (printed: 9M).
    """
    base, kind = SIZES[size], FAMILIES[family]
    has_moe = options.get("moe", kind["moe"])
    share = options.get("share", kind["share"])
    blocks = MOE_BLOCKS.get(size, "every_6") if family == "vit_moe" else "all"
    authors_code = options.get("preset") == "authors_code"
    pools_tokens = family != "vit"
    mlp_dim = options.get("mlp_dim", base["mlp_dim"])
    model = {
        "name": "vision_transformer",
        "patch_size": options.get("patch_size", base["patch_size"]),
        "embed_dim": base["embed_dim"],
        "depth": options.get("depth", base["depth"]),
        "num_heads": base["num_heads"],
        "mlp_dim": mlp_dim,
        "cls_token": ("zero" if authors_code else "none") if pools_tokens else "learned",
        "pool": "mean" if pools_tokens else "token",
        "representation": True,
        "dropout": 0.1,
        "dtype": "bfloat16",
        "share_attention": options.get("share_attention", share),
        "share_ffn": options.get("share_ffn", share),
        "share_norms": options.get("share_norms", False),
        "norm_position": "pre",
        "ffn_output_gelu": authors_code,
        "unroll": True,  # False: blocks in a loop; compiles sooner, runs slower
        "remat": "none",  # "block": less memory, a third more work
        "moe": None,
    }
    if has_moe:
        model["moe"] = {
            "blocks": options.get("moe_blocks", blocks),
            "routing_groups": options.get("routing_groups", 0),
            "mlp_dim": options.get("mlp_dim", EXPERT_MLP_DIM.get(size, base["mlp_dim"])),
            "num_experts": options.get("experts", 4),
            "num_selected_experts": options.get("selected", 2),
            "capacity_factor": options.get("capacity_factor", 1.2),
            "capacity_factor_eval": 1.2 if authors_code else 2.0,
            "capacity": "authors_code" if authors_code else "paper",
            "images_per_group": options.get("images_per_group", IMAGES_PER_GROUP.get(size, 16)),
            "priority": "token_order",
            "router": "top_k",
            "noise_std": 1.0,
            "load_balance_weight": 0.01,
            "dispatch": "auto",  # or einsum, gather, ragged: the same function at another price
        }
    return model


# Every row of the paper's vision tables: table, row, variant, printed millions (None: not printed).
IMAGENET_ROWS = (
    ("Table 1", "ViT-B", "vit_b", 87),
    ("Table 1", "ViT-L", "vit_l", 305),
    ("not printed", "ViT-H", "vit_h", None),
    ("Table 1", "ViT-MoE-B", "vit_moe_b", 128),
    ("Table 1", "ViT-MoE-L", "vit_moe_l", 406),
    ("Table 1", "WideNet-B", "widenet_b", 29),
    ("Table 1", "WideNet-L", "widenet_l", 40),
    ("Table 1", "WideNet-H", "widenet_h", 63),
    ("Table 3", "WideNet-B, shared LayerNorm", "widenet_b,share_norms=true", 29),
    ("Table 3", "WideNet-L, shared LayerNorm", "widenet_l,share_norms=true", 40),
    ("Table 3", "WideNet-H, shared LayerNorm", "widenet_h,share_norms=true", 63),
    ("Table 3", "WideNet-B without MoE", "widenet_b,moe=false", 9),
    ("Table 3", "WideNet-L without MoE", "widenet_l,moe=false", 15),
    ("Table 3", "WideNet-H without MoE", "widenet_h,moe=false", 23),
    ("Table 3", "WideNet-B without sharing", "vit_moe_b", 128),
    ("Table 3", "WideNet-L without sharing", "vit_moe_l", 406),
    ("Table 4", "ViT-L shared, FFN 4096", "vit_l,share=true", 15),
    ("Table 4", "ViT-L shared, FFN 8192", "vit_l,share=true,mlp_dim=8192", 24),
    ("Table 4", "WideNet-L, 12 blocks", "widenet_l,depth=12", 40),
)

# Table 5 is finetuning: 10 classes and no representation layer. Its ViT-L and WideNet-B are slips
# of the table: no setting that gives the other four rows gives them.
CIFAR10_ROWS = (
    ("Table 5", "ViT-B", "vit_b", 85),
    ("Table 5", "ViT-L", "vit_l", 305),
    ("Table 5", "ViT-MoE-B", "vit_moe_b", 126),
    ("Table 5", "ViT-MoE-L", "vit_moe_l", 404),
    ("Table 5", "WideNet-B", "widenet_b", 27),
    ("Table 5", "WideNet-L", "widenet_l", 38),
)
TABLE_5_SLIPS = ("vit_l", "widenet_b")
