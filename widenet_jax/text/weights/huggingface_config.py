"""Hugging Face's `config.json` of BERT and ALBERT as our `config.model`, and back; without JAX.

Sources: configuration_bert.py, configuration_albert.py and activations.py of transformers.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from widenet_jax.config.imports import configs_module
from widenet_jax.config.names import ACTIVATIONS, activation_of
from widenet_jax.errors import raise_first
from widenet_jax.nn.loop_settings import parse_loop

# Their numbers: our field of the same value (or None), and the defaults of `BertConfig` and
# `AlbertConfig` for files that leave it out (None: it has no such field).
NUMBERS = {
    "hidden_size": ("embed_dim", 768, 4096),
    "num_hidden_layers": (None, 12, 12),
    "intermediate_size": ("mlp_dim", 3072, 16384),
    "max_position_embeddings": ("num_positions", 512, 512),
    "type_vocab_size": ("num_token_types", 2, 2),
    "layer_norm_eps": ("norm_epsilon", 1e-12, 1e-12),
    "hidden_dropout_prob": ("dropout", 0.1, 0.0),
    "num_attention_heads": (None, 12, 64),
    "embedding_size": (None, None, 128),
    "num_hidden_groups": (None, None, 1),
}
RATES = ("layer_norm_eps", "hidden_dropout_prob")  # the others are whole
SAME = {theirs: ours for theirs, (ours, *_) in NUMBERS.items() if ours}
DEFAULTS = {
    "bert": {theirs: x for theirs, (_, x, _) in NUMBERS.items() if x is not None},
    "albert": {theirs: x for theirs, (*_, x) in NUMBERS.items()},
}
HIDDEN_ACT = {"bert": "gelu", "albert": "gelu_new"}
# Fields that may change what a BERT computes, with the only value that our blocks have.
ONLY = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "inner_group_num": 1,
}
# The values of `config.model` with which our models compute what theirs do.
COUNTERPART = {
    "ffn": ("mlp",),
    "norm": ("layer",),
    "norm_position": ("post",),
    "ffn_output_activation": (False,),
    "ffn_bias": (True,),
    "activation": tuple(ACTIVATIONS.values()),
    "attention.name": ("full",),
    "attention.head_dim": (0,),  # and the width of the model by its heads
    "attention.rope": (0,),
    "attention.qk_norm": (False,),
    "adapter.rank": (0,),
    "loop.inject": ("none",),
    "loop.condition": ("none",),
    "loop.embed": (False,),
    "loop.state_norm": (False,),
    "loop.residual_scale": ("1",),
}
# What a stored model is called in their library, by the head that it has.
CLASSES = {
    "mlm": "ForPreTraining",
    "classifier": "ForSequenceClassification",
    "span": "ForQuestionAnswering",
}


def text_kind(config: Mapping[str, Any]) -> str | None:
    """Returns "bert" or "albert" for the `config.json` of such a model; None for another.

    The oldest files do not give `model_type`.
    """
    kind = config.get("model_type")
    if kind is None and "vocab_size" in config and "hidden_size" in config:
        return "albert" if "embedding_size" in config else "bert"
    return kind if isinstance(kind, str) and kind in DEFAULTS else None


def model_section(config: Mapping[str, Any], *, source: str) -> dict[str, Any] | None:
    """Returns the section `config.model` of a BERT or ALBERT; None for another model.

    Args:
      config: the contents of `config.json`.
      source: the file, named in errors.

    Raises:
      BadInputError: a value that our models do not have.
    """
    kind = text_kind(config)
    if kind is None:
        return None
    theirs = {"hidden_act": HIDDEN_ACT[kind], **DEFAULTS[kind]}
    theirs |= {name: value for name, value in config.items() if value is not None}
    raise_first(f"{source}: {odd}" for odd in _mistakes(theirs, kind))
    # JSON may write a rate as 0.
    theirs |= {n: (float if n in RATES else int)(theirs[n]) for n in DEFAULTS[kind]}
    factorised = kind == "albert"
    shared = factorised and theirs["num_hidden_groups"] == 1
    fields = {ours: theirs[name] for name, ours in SAME.items()}
    fields |= {
        "embedding_dim": theirs["embedding_size" if factorised else "hidden_size"],
        "projection": factorised,
        "activation": activation_of(theirs, "", source=source),
        "norm": "layer",
        "norm_position": "post",
    }
    variant = f"{'albert' if shared else 'bert'},depth={theirs['num_hidden_layers']}"
    model = configs_module("variants").model_section(variant) | fields
    heads = {"num_heads": theirs["num_attention_heads"]}
    return model | {"attention": model["attention"] | heads}


def _mistakes(theirs: Mapping[str, Any], kind: str) -> Iterator[str]:
    """Yields the values of a `config.json`, completed by DEFAULTS, that our models do not have."""
    for name, value in ONLY.items():
        if theirs.get(name, value) != value:
            yield f"{name}={theirs[name]!r}, and our models have {value!r} only"
    for name in DEFAULTS[kind]:
        number, least = theirs[name], "" if name in RATES else " of at least 1"
        is_number = type(number) in (int, float) and 0 <= number < math.inf
        if not is_number or (least and (number != int(number) or number < 1)):
            yield f"{name}={number!r} is not a number{least}; download it again"
    layers, groups = (theirs.get(f"num_hidden_{name}") for name in ("layers", "groups"))
    if kind == "albert" and groups not in (1, layers):
        yield (
            f"num_hidden_groups={int(groups)} of {int(layers)} layers; in our models all blocks "
            f"share their weights (1), or none do ({int(layers)})"
        )


def without_counterpart(model: Mapping[str, Any]) -> str:
    """Returns a field of a stored `config.model` that Hugging Face's models lack; "" for none."""
    found = dict(model)
    for section in ("attention", "loop", "adapter"):
        found |= {f"{section}.{name}": value for name, value in model.get(section, {}).items()}
    usual = model["embed_dim"] / model["attention"].get("num_heads", 1)
    theirs = COUNTERPART | {"attention.head_dim": (0, usual)}
    steps = steps_of(model)
    if len(set(steps)) not in (len(steps), 1 if model["projection"] else len(steps)):
        return (
            f"config.model.loop.core={model['loop']['core']}, and in their BERT no blocks share "
            "their weights, in their ALBERT all or none"
        )
    for name, values in theirs.items():
        if found.get(name, values[0]) not in values:  # a run of before has not all fields
            return f"{name}={found[name]}, which their BERT and ALBERT do not have"
    return ""


def kind_out(model: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns "albert" or "bert", and whether its layers share their weights, for a `config.model`.

    BERT has no projection, and ALBERT always has one.
    """
    kind = "albert" if model["projection"] else "bert"
    return kind, len(set(steps_of(model))) == 1


def steps_of(model: Mapping[str, Any]) -> list[tuple[tuple[str, str], ...]]:
    """Returns the scopes of the parameters of each block's parts, for a `config.model`."""
    from widenet_jax.nn.loop import steps_of  # with JAX, which a config is read without

    loop = parse_loop(model["loop"])
    return [step.scopes for step in steps_of(loop, [model["ffn"]] * loop.depth)]


def huggingface_config(
    model: Mapping[str, Any], *, parts: Mapping[str, Any], vocab_size: int, **more: Any
) -> dict[str, Any]:
    """Returns the `config.json` of one of our models.

    Args:
      model: a stored `config.model` that has a counterpart.
      parts: the parameters; only the first level of names is read.
      vocab_size: V.
      **more: further fields, such as label names and ids of special tokens.
    """
    kind, shared = kind_out(model)
    head = next((name for part, name in CLASSES.items() if part in parts), "Model")
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    own = {"classifier_dropout": 0.1}
    if kind == "albert":
        own = {
            "classifier_dropout_prob": 0.1,
            "embedding_size": model["embedding_dim"],
            "num_hidden_groups": 1 if shared else len(steps_of(model)),
            "inner_group_num": 1,
        }
    return {
        "model_type": kind,
        "architectures": [f"{kind.capitalize()}{head}"],
        "vocab_size": vocab_size,
        "num_attention_heads": model["attention"]["num_heads"],
        "num_hidden_layers": len(steps_of(model)),
        **{theirs: model[ours] for theirs, ours in SAME.items()},
        "hidden_act": names[model["activation"]],
        "attention_probs_dropout_prob": 0.0,  # ours have no dropout on attention weights
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        **own,
        **more,
    }
