"""Named text models as plain data: sizes, families and options.

Configs import this module. It does not import JAX, so that a mistyped variant is reported at once.
"""

from collections.abc import Mapping

from configs import feed_forward_sizes
from configs.feed_forward_sizes import FFNS, choose_ffn, ffn_sections
from configs.sizes import (
    attention_section,
    experts_section,
    has_balance_loss,
    parse_options,
)
from widenet_jax.errors import BadInputError, known_names

# "": ALBERT base (Lan et al. 2020) and the paper's. "s" is meant for experiments on a CPU, "tiny"
# for a first run of minutes.
SIZES = {
    "": {"depth": 12, "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072, "embedding_dim": 128},
    "s": {"depth": 4, "embed_dim": 128, "num_heads": 4, "mlp_dim": 512, "embedding_dim": 64},
    "tiny": {"depth": 3, "embed_dim": 64, "num_heads": 4, "mlp_dim": 256, "embedding_dim": 32},
}

# experts, and what the blocks share. WideNet has norms of each block's own.
FAMILIES = {
    "albert": {"experts": 0, "share": True, "share_norms": True},
    "bert": {"experts": 0, "share": False, "share_norms": False},  # with factorised embeddings
    "widenet_4": {"experts": 4, "share": True, "share_norms": False},
    "widenet_8": {"experts": 8, "share": True, "share_norms": False},
    "widenet_16": {"experts": 16, "share": True, "share_norms": False},
}
NAMES = tuple(f"{family}_{size}".rstrip("_") for size in SIZES for family in FAMILIES)

# Options after the name, as in `widenet_4,examples_per_group=1`.
OPTIONS = {
    "share_attention": bool,
    "share_ffn": bool,
    "share_norms": bool,
    "norm_position": str,  # post, pre
    "depth": int,
    "mlp_dim": int,
    "selected": int,
    "capacity_factor": float,
    "router": str,  # see ROUTERS in sizes.py
    "routing_groups": int,
    "examples_per_group": int,
    **feed_forward_sizes.OPTIONS,  # ffn: dense, moe, top_k, product_key
}
# Options of a mixture of experts; an error for a dense model.
MOE_OPTIONS = ("selected", "capacity_factor", "router", "routing_groups", "examples_per_group")


def parse_text_variant(text: str) -> tuple[str, str, dict]:
    """Parses "widenet_4_s,capacity_factor=2.0" to ("widenet_4", "s", {"capacity_factor": 2.0}).

    Raises:
      BadInputError: an unknown name, option or value; the message lists the valid ones.
    """
    name, *pairs = [part.strip() for part in text.split(",")]
    family, size = name, ""
    if family not in FAMILIES:
        family, _, size = name.rpartition("_")
    if family not in FAMILIES or size not in SIZES:
        raise BadInputError(f"no text model is named {name!r}; {known_names(name, NAMES)}")
    options = parse_options(name, pairs, OPTIONS)
    choose_ffn(name, options, usual=usual_ffn(family), of_experts=MOE_OPTIONS)
    if options.get("ffn") == "moe" and not FAMILIES[family]["experts"]:
        raise BadInputError(f"{name} has no experts; widenet_4, for instance, has")
    return family, size, options


def usual_ffn(family: str) -> str:
    """Returns the feed-forward of a variant without option ffn."""
    return "moe" if FAMILIES[family]["experts"] else "dense"


def text_model(family: str, size: str, options: dict) -> dict:
    """Returns the section `config.model` of a text model for pretraining.

    The paper states neither the position of the norms nor the dropout of its text models: both are
    ALBERT's, whose runs its baselines are.
    """
    base, kind = SIZES[size], FAMILIES[family]
    ffn = options.get("ffn", usual_ffn(family))
    mlp_dim = options.get("mlp_dim", base["mlp_dim"])
    model = {
        "name": "text_encoder",
        "embed_dim": base["embed_dim"],
        "embedding_dim": base["embedding_dim"],  # width of the embeddings
        "projection": True,  # from embedding_dim to embed_dim
        "num_positions": 128 if size else 512,  # the longest sequence
        "num_segments": 2,  # texts of a sequence
        "depth": options.get("depth", base["depth"]),
        "attention": attention_section("full", num_heads=base["num_heads"]),
        "mlp_dim": mlp_dim,
        "dropout": 0.0 if size else 0.1,
        "ffn_dropout": False,  # whether it acts within the feed-forward, too
        "dtype": "float32" if size else "bfloat16",
        "share_attention": options.get("share_attention", kind["share"]),
        "share_ffn": options.get("share_ffn", kind["share"]),
        "share_norms": options.get("share_norms", kind["share_norms"]),
        "norm_position": options.get("norm_position", "post"),
        "norm_epsilon": 1e-12,
        "activation": "gelu_tanh",
        "kernel_init": "truncated_normal",
        "ffn_output_activation": False,
        "unroll": True,
        "remat": "none",
        "ffn": FFNS[ffn],
        "ffn_blocks": "all",
        "routing_groups": options.get("routing_groups", 0),
        "moe": None,
        **ffn_sections(ffn, options, embed_dim=base["embed_dim"], mlp_dim=mlp_dim),
    }
    if ffn == "moe":
        model["moe"] = experts_section(
            options | {"experts": kind["experts"]},
            mlp_dim=mlp_dim,
            examples_per_group=4 if size else 16,
        )
    return model


def parse_finetuning(text: str, sets: Mapping[str, object]) -> tuple[str, str, str, dict]:
    """Parses "mnli,model=albert_s,depth=2" to ("mnli", "albert", "s", {"depth": 2}).

    Without a model, family and size are empty: the model is that of `config.init_from`.

    Raises:
      BadInputError: an unknown set, model or option; the message lists the valid ones.
    """
    name, comma, rest = (part.strip() for part in text.partition(","))
    if name not in sets or (comma and not rest.startswith("model=")):
        examples = f"{name if name in sets else next(iter(sets))},model=albert_s"
        raise BadInputError(
            f"no variant is named {text!r}; {known_names(name, sets)}, "
            f"with a model to train from scratch such as {examples}"
        )
    return name, *(parse_text_variant(rest.removeprefix("model=")) if comma else ("", "", {}))


def finetuned_model(
    family: str, size: str, options: dict, *, dropout: float, capacity_factor: float, balance: float
) -> dict:
    """Returns the section `config.model` of finetuning.

    Args:
      family, size, options: of a model to train from scratch; an empty family stands for the model
        of `config.init_from`, whose fields are those of this section and the pretrained ones.
      dropout: of the encoder. The head's own is not a field.
      capacity_factor, balance: of experts, the latter the weight of the load-balance loss, for
        routers that go with it. `inference.pretrained_config` leaves it out for other routers.
    """
    experts = {
        "capacity_factor": options.get("capacity_factor", capacity_factor),
        "examples_per_group": options.get("examples_per_group", 1),  # any batch, any devices
        "losses": {"load_balance": balance, "over": "group"},
    }
    if not family:
        return {"name": "pretrained", "dropout": dropout, "moe": experts}
    model = text_model(family, size, options) | {"dropout": dropout}
    if model["moe"]:
        given = experts["losses"] if has_balance_loss(model["moe"]["router"]["name"]) else {}
        model["moe"].update(experts, losses=model["moe"]["losses"] | given)
    return model
