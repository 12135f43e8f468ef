"""Hugging Face's `config.json` of BERT and ALBERT as our `config.model`, and back; without JAX.

Sources: configuration_bert.py, configuration_albert.py and activations.py of transformers.
"""

from collections.abc import Mapping
from typing import Any

from widenet_jax.config.files import configs_module
from widenet_jax.config.names import ACTIVATIONS, activation_of
from widenet_jax.errors import BadInputError

# Defaults of `BertConfig` and `AlbertConfig`, for fields that a file leaves out.
COMMON = {
    "num_hidden_layers": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
DEFAULTS = {
    "bert": COMMON
    | {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
    },
    "albert": COMMON
    | {
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "num_hidden_groups": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
    },
}
# Our field for each of theirs with the same value.
SAME = {
    "hidden_size": "embed_dim",
    "num_hidden_layers": "depth",
    "intermediate_size": "mlp_dim",
    "max_position_embeddings": "num_positions",
    "type_vocab_size": "num_token_types",
    "layer_norm_eps": "norm_epsilon",
    "hidden_dropout_prob": "dropout",
}
# Fields that may change what a BERT computes, with the only value that our blocks have.
ONLY = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "inner_group_num": 1,
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
    told = config.get("model_type")
    if told is None and "vocab_size" in config and "hidden_size" in config:
        return "albert" if "embedding_size" in config else "bert"
    return told if told in DEFAULTS else None


def model_section(config: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Returns the section `config.model` of a BERT or ALBERT.

    Args:
      config: the contents of `config.json`, for which `text_kind` is not None.
      source: the file, named in errors.

    Raises:
      BadInputError: a value that our models do not have.
    """
    kind = text_kind(config)
    theirs = DEFAULTS[kind] | {name: value for name, value in config.items() if value is not None}
    for name, value in ONLY.items():
        if theirs.get(name, value) != value:
            raise BadInputError(
                f"{source}: {name}={theirs[name]!r}, and our models have {value!r} only"
            )
    numbers = [name for name in DEFAULTS[kind] if name != "hidden_act"]
    if odd := [name for name in numbers if not is_number(theirs[name])]:
        raise BadInputError(
            f"{source}: {odd[0]}={theirs[odd[0]]!r} is not a number; download it again"
        )
    factorised = kind == "albert"
    shared = factorised and shares_all(theirs, source)
    fields = {ours: type_of(ours)(theirs[name]) for name, ours in SAME.items()}
    fields |= {
        "embedding_dim": theirs["embedding_size" if factorised else "hidden_size"],
        "projection": factorised,
        "activation": activation_of(theirs, "", source=source),
        "norm_position": "post",
    }
    model = configs_module("variants").model_section("albert" if shared else "bert") | fields
    heads = {"num_heads": int(theirs["num_attention_heads"])}
    return model | {"attention": model["attention"] | heads}


def type_of(field: str) -> type:
    """Returns the type of a number of `config.model`; JSON may write a rate as 0."""
    return float if field in ("norm_epsilon", "dropout") else int


def is_number(value: Any) -> bool:
    """Returns whether a value of a JSON file is a number, 0 or more."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def shares_all(config: Mapping[str, Any], source: str) -> bool:
    """Returns whether all layers of an ALBERT share their weights; if not, none do.

    Raises:
      BadInputError: some layers share their weights, and others do not.
    """
    groups, layers = config["num_hidden_groups"], config["num_hidden_layers"]
    if groups not in (1, layers):
        raise BadInputError(
            f"{source}: num_hidden_groups={groups} of {layers} layers; in our models all blocks "
            f"share their weights (1), or none do ({layers})"
        )
    return groups == 1


def check_has_counterpart(model: Mapping[str, Any], place: str) -> None:
    """Raises BadInputError unless Hugging Face's library has a model of the same function.

    Args:
      model: a stored `config.model`.
      place: where it was read from, for the message.
    """
    attention = model["attention"]
    if model["ffn"] != "mlp":
        what = f"a text model with experts (ffn={model['ffn']}), which their library does not have"
    elif model["norm_position"] != "post" or model["ffn_output_activation"]:
        field = "ffn_output_activation" if model["ffn_output_activation"] else "norm_position"
        what = f"a model with {field}={model[field]}, which their BERT and ALBERT do not have"
    elif attention["name"] != "full":
        what = f"a model with attention.name={attention['name']}, which their library does not have"
    elif attention["head_dim"] not in (0, model["embed_dim"] / attention["num_heads"]):
        what = (
            f"a model with attention.head_dim={attention['head_dim']}, which their BERT and ALBERT "
            "do not have"
        )
    else:
        return
    raise BadInputError(
        f"--format=huggingface: {place} holds {what}; export it with --format=safetensors"
    )


def kind_out(model: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns "albert" or "bert", and whether its layers share their weights, for a `config.model`.

    BERT has no projection, and ALBERT always has one.
    """
    kind = "albert" if model["projection"] else "bert"
    shares = all(model[f"share_{part}"] for part in ("attention", "ffn", "norms"))
    return kind, kind == "albert" and shares


def huggingface_config(
    model: Mapping[str, Any], *, parts: Mapping[str, Any], vocab_size: int, **facts: Any
) -> dict[str, Any]:
    """Returns the `config.json` of one of our models.

    Args:
      model: a stored `config.model` that has a counterpart.
      parts: the parameters; the first level of their names is read.
      vocab_size: V.
      **facts: further fields, such as label names and ids of special tokens.
    """
    kind, shared = kind_out(model)
    head = next((name for part, name in CLASSES.items() if part in parts), "Model")
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    own = {"classifier_dropout": 0.1}
    if kind == "albert":
        own = {
            "classifier_dropout_prob": 0.1,
            "embedding_size": model["embedding_dim"],
            "num_hidden_groups": 1 if shared else model["depth"],
            "inner_group_num": 1,
        }
    return {
        "model_type": kind,
        "architectures": [f"{kind.capitalize()}{head}"],
        "vocab_size": vocab_size,
        "num_attention_heads": model["attention"]["num_heads"],
        **{theirs: model[ours] for theirs, ours in SAME.items()},
        "hidden_act": names[model["activation"]],
        "attention_probs_dropout_prob": 0.0,  # ours have no dropout on attention weights
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        **own,
        **facts,
    }


def section_of(config: Mapping[str, Any], *, source: str) -> dict[str, Any] | None:
    """Returns the section `config.model` of a BERT or ALBERT; None for another `config.json`."""
    return model_section(config, source=source) if text_kind(config) else None
