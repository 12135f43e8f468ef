"""The option parser of all models: "widenet_b,share_norms=true,experts=8" to `config.model`.

A kind of models is a table of names and of options; `parse` reads them all.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from configs import sizes
from configs.sizes import (
    ATTENTION_FIELDS,
    ENTROPY_OF,
    FFNS,
    LANGUAGE_SIZES,
    NORMS,
    ROUTER_FIELDS,
    ROUTINGS,
    TIES,
)
from widenet_jax.errors import BadInputError, choose, known_names

# [PRELUDE+] (LAYERSxLOOPS of each group) [+CODA]; layers are a number, or letters in their order.
GROUP = r"(?:[1-9]\d*|[A-Z]+)x[1-9]\d*"
LOOP = re.compile(rf"(?:(\d+)\+)?({GROUP}(?:\+{GROUP})*)(?:\+(\d+))?")


def loop_of(text: str) -> dict:
    """Parses "2+8x2+2": prelude, (layers, loops) of each group, coda; to `config.model.loop`.

    Raises:
      ValueError: another text.
    """
    found = LOOP.fullmatch(text)
    if not found:
        raise ValueError(text)
    prelude, groups, coda = found.groups()
    core = [group.split("x") for group in groups.split("+")]
    return {
        "prelude": int(prelude or 0),
        "core": tuple((int(n) if n.isdigit() else n, int(loops)) for n, loops in core),
        "coda": int(coda or 0),
    }


# Option -> its type, or a table of its choices.
COMMON = {
    "ffn": FFNS,  # dense, moe, soft_moe, top_k, product_key
    "depth": int,
    "loop": loop_of,  # 3x3, 2+8x2+2, 1x6+1x6, ABCBAx1
    "tie": TIES,
    "routing": ROUTINGS,  # first: all loops take the experts that the first one chose
    "mlp_dim": int,  # F; of language models with ffn=moe, G of an expert
    "num_active": int,
    "num_keys": int,
    "router": ROUTER_FIELDS,
    "selected": int,
}
ENCODER = COMMON | {
    "share_attention": bool,
    "share_ffn": bool,
    "share_norms": bool,
    "capacity_factor": float,
    "routing_groups": int,
    "examples_per_group": int,
}
IMAGE_OPTIONS = ENCODER | {
    "share": bool,  # attention and feed-forward
    "moe": bool,  # false: the ablation without a mixture of experts, as ffn=dense
    "ffn_blocks": str,
    "experts": int,
    "patch_size": int,
    "image_size": int,
    "preset": {"paper": {}, "authors_code": {}},
    "source": str,  # of the images: array_record, image_folder or tfds
}
TEXT_OPTIONS = ENCODER | {"norm_position": str}  # post, pre
# Rows of the tables of Csordás et al. 2023 as options. Other numbers of experts follow as further
# options: "preset=sigma_moe,selected=8,mlp_dim=64" has twice as many experts of half the width.
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
LANGUAGE_OPTIONS = COMMON | {
    "preset": PRESETS,
    "attention": ATTENTION_FIELDS,
    "norms": NORMS,  # of loops; index and index_state: tied and conditioned
    "parameter_matched": bool,  # solve the width or the number of keys for the experts' count
    "dropout": float,
    "embed_dim": int,
    "kernel_init": str,  # of the feed-forward
    "experts": int,
    "expert_dropout": float,
    "hidden_dropout": bool,  # dropout within the experts, the "standard dropout"
    "entropy": float,  # weight of the entropy loss
    "entropy_of": ENTROPY_OF,
    "balance": float,  # weight of WideNet's balance loss, in place of the entropy loss
    "key_heads": int,
    "knn": int,
    "weights": str,
    "combine_heads": str,
    "query_dim": int,
    "table_init": str,
}
MAY_BE_ZERO = ("routing_groups", "query_dim")  # other whole numbers are at least 1
WANTED = {loop_of: "PRELUDE+LAYERSxLOOPS+CODA, such as 3x3, 2+8x2+2 or 1x6+1x6"}
WANTED |= {int: "a whole number", float: "a number", bool: "true or false", str: "text"}

# Option -> the feed-forwards on which it has an effect, if not on all.
OF_EXPERTS = ("experts", "selected", "capacity_factor", "router", "routing_groups")
OF_EXPERTS += ("examples_per_group", "expert_dropout", "hidden_dropout", "entropy", "entropy_of")
OF_EXPERTS += ("balance", "routing")
OF_KEYS = ("num_keys", "key_heads", "knn", "weights", "combine_heads", "query_dim", "table_init")
NEEDS = {
    **dict.fromkeys(OF_EXPERTS, ("moe",)),
    **dict.fromkeys(("experts", "capacity_factor"), ("moe", "soft_moe")),
    **dict.fromkeys(OF_KEYS, ("product_key",)),
    "num_active": ("top_k",),
    "ffn_blocks": ("moe", "soft_moe", "top_k", "product_key"),
    "parameter_matched": ("dense", "top_k", "product_key"),
}


class Kind(NamedTuple):
    """A kind of models.

    Attributes:
      title: in messages.
      names: name of a model -> its family and size.
      families: family -> its usual feed-forward as `ffn`, and more.
      options: option -> its type, or a table of its choices.
      needs: option -> the feed-forwards on which it has an effect, if not on all.
      section: makes `config.model` from family, size, feed-forward and options.
    """

    title: str
    names: Mapping[str, tuple[str, str]]
    families: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]
    needs: Mapping[str, tuple[str, ...]]
    section: Callable[[str, str, str, Mapping[str, Any]], dict]


class Variant(NamedTuple):
    """A model with its options.

    Attributes:
      family: a family of its kind.
      size: a size of its kind.
      options: by name; a preset's own are among them.
      section: its `config.model`.
    """

    family: str
    size: str
    options: dict[str, Any]
    section: dict[str, Any]


IMAGES = Kind(
    "model",
    {f"{family}_{s}": (family, s) for family in sizes.IMAGE_FAMILIES for s in sizes.IMAGE_SIZES},
    sizes.IMAGE_FAMILIES,
    IMAGE_OPTIONS,
    NEEDS,
    sizes.vision_model,
)
TEXTS = Kind(
    "text model",
    {
        f"{family}_{size}".rstrip("_"): (family, size)
        for size in sizes.TEXT_SIZES
        for family in sizes.TEXT_FAMILIES
    },
    sizes.TEXT_FAMILIES,
    TEXT_OPTIONS,
    NEEDS,
    sizes.text_model,
)
LANGUAGE = Kind(
    "language model",
    {size: ("looped" if size in sizes.LOOPED else "", size) for size in LANGUAGE_SIZES},
    sizes.LANGUAGE_FAMILIES,
    LANGUAGE_OPTIONS,
    NEEDS | {"mlp_dim": ("dense", "moe", "top_k")},
    lambda family, size, ffn, options: sizes.language_model(size, ffn, options),
)


def model_section(text: str) -> dict[str, Any]:
    """Returns `config.model` of a model of any kind: "widenet_b,experts=8", "albert", "wt_s".

    Raises:
      BadInputError: an unknown name, option or value.
    """
    name = text.partition(",")[0].strip()
    names = {name: kind for kind in (IMAGES, TEXTS, LANGUAGE) for name in kind.names}
    if name not in names:
        raise BadInputError(f"no model is named {name!r}; {known_names(name, names)}")
    return parse(text, names[name]).section


def parse(text: str, kind: Kind) -> Variant:
    """Parses "widenet_b,experts=8".

    Raises:
      BadInputError: an unknown name, option or value; the message lists the valid ones. Or an
        option without effect.
    """
    name, *pairs = [part.strip() for part in text.split(",")]
    if pairs and name == "pretrained":
        raise BadInputError("pretrained takes no options, where a config has it; set fields")
    if name not in kind.names:
        raise BadInputError(f"no {kind.title} is named {name!r}; {known_names(name, kind.names)}")
    family, size = kind.names[name]
    written: dict[str, Any] = {}
    for pair in pairs:
        key, value = parse_option(name, pair, kind.options)
        if key in written:
            raise BadInputError(f"{name}: give option {key} once, not twice")
        written[key] = value
    preset = kind.options.get("preset", {}).get(written.get("preset"), {})
    options = preset | written
    ffn = choose_ffn(name, kind.families[family], preset, options)
    check_effects(name, kind, ffn, written)
    if kind is LANGUAGE:
        check_language_options(name, options, written)
    section = kind.section(family, size, ffn, options)
    core = section["loop"]["core"]
    once = all(n == 1 and (type(of) is int or len(set(of)) == len(of)) for of, n in core)
    if "tie" in written and once:
        raise BadInputError(
            f"option tie has no effect on {name}, which runs each block once; give loop, such as "
            "loop=1x3"
        )
    return Variant(family, size, options, section)


def parse_option(name: str, pair: str, known: Mapping[str, Any]) -> tuple[str, Any]:
    """Parses "depth=3" of the model `name`; raises BadInputError for an unknown key or value."""
    key, _, value = pair.partition("=")
    if key not in known:
        raise BadInputError(
            f"{name} has no option {key!r}; {known_names(key, known)} (as key=value)"
        )
    wanted = known[key]
    if isinstance(wanted, Mapping):
        choose(sizes.routers() if wanted is ROUTER_FIELDS else wanted, value, field=key, flag="")
        return key, value
    try:
        found = {"true": True, "false": False}[value.lower()] if wanted is bool else wanted(value)
    except (KeyError, ValueError):
        raise BadInputError(f"option {key}={value!r} needs {WANTED[wanted]}") from None
    least = 0 if key in MAY_BE_ZERO else 1
    if wanted is int and found < least:
        raise BadInputError(f"option {key}={value} must be {least} or more")
    return key, found


def choose_ffn(name: str, family: Mapping, preset: Mapping, options: Mapping) -> str:
    """Returns the feed-forward of a variant; raises BadInputError where options disagree."""
    if "moe" in options and "ffn" in options:
        raise BadInputError(f"{name}: give option moe or ffn, not both")
    usual = family["ffn"]
    if "moe" in options:
        usual = "moe" if options["moe"] else "dense"
    ffn = options.get("ffn", usual)
    if preset.get("ffn", ffn) != ffn:
        chosen = f"preset={options['preset']} has ffn={preset['ffn']}"
        raise BadInputError(f"{chosen}; remove it, or ffn={ffn}")
    if ffn == "moe" and family.get("experts") == 0:
        raise BadInputError(f"{name} has no experts; widenet_4, for instance, has")
    return ffn


def check_effects(name: str, kind: Kind, ffn: str, written: Mapping[str, Any]) -> None:
    """Raises BadInputError at an option without effect on the model's feed-forward."""
    for key in written:
        needed = kind.needs.get(key, (ffn,))
        if ffn not in needed:
            instead = f", or add ffn={needed[0]}" if len(needed) == 1 else ""
            raise BadInputError(
                f"option {key} has no effect on {name} with ffn={ffn}; remove it{instead}"
            )
    share = ("share", "share_attention", "share_ffn")
    for other, beside in {"loop": ("depth", *share), "tie": share}.items():
        if other in written and (odd := [key for key in beside if key in written]):
            raise BadInputError(f"option {odd[0]} has no effect beside {other}; remove it")


def check_language_options(name: str, options: Mapping, written: Mapping) -> None:
    """Raises BadInputError at options of a language model that contradict each other."""
    size = LANGUAGE_SIZES[name]
    router = options.get("router", size.get("router", "sigmoid"))
    # Other routers' papers have no dropout of experts, or other losses.
    without = () if "expert_dropout" in sizes.router_fields(router) else ("expert_dropout",)
    if not sizes.router_losses(router, size).get("entropy"):
        without += ("entropy", "entropy_of", *([] if router == "top_k" else ["balance"]))
    if odd := [key for key in without if key in written]:
        raise BadInputError(
            f"option {odd[0]} has no effect on {name} with router={router}; remove it"
        )
    if "loop" in size and "depth" in written:
        raise BadInputError(f"option depth has no effect on {name}; give loop, such as loop=2x4")
    if odd := [key for key in ("entropy", "entropy_of") if key in written and "balance" in written]:
        raise BadInputError(f"option {odd[0]} has no effect beside balance; remove one of both")
    if "entropy_of" in written and not options.get("entropy", size["entropy"]):
        raise BadInputError(f"option entropy_of has no effect on {name} without entropy; give both")
    if "hidden_dropout" in options and not options.get("dropout", LANGUAGE_SIZES[name]["dropout"]):
        of_preset = "" if "hidden_dropout" in written else f" of preset={options['preset']}"
        raise BadInputError(
            f"option hidden_dropout{of_preset} has no effect on {name} without dropout; give "
            "dropout=0.1"
        )
    solved = [key for key in ("mlp_dim", "num_keys") if key in written]
    if solved and options.get("parameter_matched"):
        raise BadInputError(
            f"{solved[0]} is what parameter_matched=true solves; remove one of both"
        )


def parse_finetuning(text: str, sets: Mapping[str, object]) -> tuple[str, Variant | None]:
    """Parses "mnli,model=albert_s,depth=2" to "mnli" and the text model to train from scratch.

    Without a model, None: the model is the one of `config.init_from`.

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
    return name, parse(rest.removeprefix("model="), TEXTS) if comma else None


def finetuned_model(
    model: Variant | None, *, dropout: float, capacity_factor: float, balance: float
) -> dict[str, Any]:
    """Returns `config.model` of finetuning a text model.

    Args:
      model: to train from scratch; None for the model of `config.init_from`, whose other fields
        complete this section when the run starts.
      dropout: of the encoder. The head's own is not a field.
      capacity_factor: of experts.
      balance: weight of WideNet's balance loss, for routers that have it.
    """
    options = model.options if model else {}
    experts = {
        "capacity_factor": options.get("capacity_factor", capacity_factor),
        "examples_per_group": options.get("examples_per_group", 1),  # any batch, any devices
        "losses": {"load_balance": balance, "over": "group"},
    }
    if model is None:
        return {"name": "pretrained", "dropout": dropout, "moe": experts}
    moe = model.section["moe"]
    if moe:
        router = moe["router"]["name"]
        losses = experts["losses"] if sizes.has_balance_loss(router) else {}
        capacity = sizes.capacity_of_choice(router, options)
        moe = moe | experts | {"losses": moe["losses"] | losses} | capacity
    return model.section | {"dropout": dropout, "moe": moe}
