"""Hugging Face's BERT and ALBERT files as parameters of our text encoder, and back.

Reads the base models and those with heads (`ForPreTraining`, `ForMaskedLM`,
`ForSequenceClassification`, `ForQuestionAnswering`), with or without a pooler.

The decoder of the masked language model is the token embedding, in their models as in ours. Files
may have it a second time, as `decoder.weight` and `decoder.bias`.
Sources: modeling_bert.py and modeling_albert.py of transformers.
"""

import json
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np
from etils import epath
from ml_collections import ConfigDict
from tokenizers import processors

from widenet_jax import param_names
from widenet_jax.config.imports import configs_module
from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.errors import BadInputError, raise_first
from widenet_jax.files import read_object
from widenet_jax.text.data.sequences import tokenizer_info
from widenet_jax.text.weights.huggingface_config import (
    huggingface_config,
    kind_out,
    model_section,
    steps_of,
    without_counterpart,
)

# Our modules outside the blocks: BERT's name and ALBERT's. Modules of the backbone have the model's
# prefix in files.
KINDS = ("bert", "albert")
MODULES = {
    "embeddings/norm": ("embeddings.LayerNorm", "embeddings.LayerNorm"),
    "classifier": ("classifier", "classifier"),
    "span": ("qa_outputs", "qa_outputs"),
    "projection": ("", "encoder.embedding_hidden_mapping_in"),
    "pooler": ("pooler.dense", "pooler"),
    "mlm/dense": ("cls.predictions.transform.dense", "predictions.dense"),
    "mlm/norm": ("cls.predictions.transform.LayerNorm", "predictions.LayerNorm"),
    "order": ("cls.seq_relationship", "sop_classifier.classifier"),
}
# Arrays that are not the weight or bias of a module.
TOKENS = "embeddings.word_embeddings.weight"
ALONE = {
    TOKENS: "embeddings/token",
    "embeddings.token_type_embeddings.weight": "embeddings/token_type",
    "embeddings.position_embeddings.weight": "embeddings/position",
}
MLM = {"bert": "cls.predictions", "albert": "predictions"}
NEEDED = ("embeddings/", "projection/", f"{param_names.ENCODER}/")
# Their block number i, and our modules within a block.
BLOCKS = {"bert": "encoder.layer.{}", "albert": "encoder.albert_layer_groups.{}.albert_layers.0"}
IN_BLOCK = {
    "attention/query": ("attention.self.query", "attention.query"),
    "attention/key": ("attention.self.key", "attention.key"),
    "attention/value": ("attention.self.value", "attention.value"),
    "attention/out": ("attention.output.dense", "attention.dense"),
    "norm_attention": ("attention.output.LayerNorm", "attention.LayerNorm"),
    "mlp/wi": ("intermediate.dense", "ffn"),
    "mlp/wo": ("output.dense", "ffn_output"),
    "norm_ffn": ("output.LayerNorm", "full_layer_layer_norm"),
}
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # of PyTorch, no parameters
OLD_LEAVES = {"gamma": "weight", "beta": "bias"}  # in files converted from TensorFlow's


def from_huggingface_text(
    arrays: Mapping[str, np.ndarray], *, kind: str, depth: int, shared: bool, source: str
) -> dict:
    """Converts the arrays of Hugging Face's files to our parameter tree.

    A decoder that differs from the token embedding stays as mlm/decoder, which no model of ours
    has, without the rest of its head: so finetuning reports mlm as not used.

    Args:
      arrays: by their name in the file.
      kind: "bert" or "albert".
      depth: number of blocks.
      shared: whether all blocks share their weights.
      source: the files, named in errors.

    Raises:
      BadInputError: a part that our text encoder does not have, or one that is missing.
    """
    theirs = param_names.renamed(arrays, lambda name: modern_name(name, kind), source=source)
    theirs = {name: array for name, array in theirs.items() if name not in BUFFERS}
    untied = take_decoder(theirs, kind)
    names = parameter_names(kind, depth=depth, shared=shared)
    ours = param_names.from_torch(theirs, names, source=source, kind=f"{kind} of {depth} layers")
    if untied is not None:
        ours = {path: array for path, array in ours.items() if not path.startswith("mlm/")}
        ours["mlm/decoder"] = untied
    missing = (name for name, path in names.items() if path.startswith(NEEDED) and path not in ours)
    raise_first(f"{source}: {name} is missing; download it again" for name in missing)
    return flax.traverse_util.unflatten_dict(ours, sep="/")


def to_huggingface_text(
    params: Mapping, *, kind: str, depth: int, shared: bool
) -> dict[str, np.ndarray]:
    """Returns our parameters as the arrays of Hugging Face's files.

    Where `shared` is False, each layer gets a copy of the shared parameters.

    Args:
      params: host arrays.
      kind, depth, shared: as in `from_huggingface_text`.

    Raises:
      BadInputError: a parameter that their models do not have.
    """
    ours = flax.traverse_util.flatten_dict(params, sep="/")
    theirs, used = {}, set()
    for name, path in parameter_names(kind, depth=depth, shared=shared).items():
        stored = path if path in ours else without_block(path)
        if stored in ours:
            used.add(stored)
            array = np.asarray(ours[stored])
            prefix = f"{kind}." if name.startswith(("embeddings.", "encoder.", "pooler.")) else ""
            theirs[prefix + name] = array.T if path.endswith("/kernel") else array
    if left := sorted(ours.keys() - used):
        raise BadInputError(
            f"--format=huggingface: {left[0]} has no counterpart in their {kind.upper()}; export "
            "with --format=safetensors"
        )
    return theirs


def parameter_names(kind: str, *, depth: int, shared: bool) -> dict[str, str]:
    """Returns our path for the name of each of their parameters, without the model's prefix."""
    column = KINDS.index(kind)
    modules = {names[column]: ours for ours, names in MODULES.items() if names[column]}
    for i in range(1 if shared else depth):
        for ours, names in IN_BLOCK.items():
            place = ours if shared else param_names.block_part(i, ours)
            modules[f"{BLOCKS[kind].format(i)}.{names[column]}"] = f"{param_names.ENCODER}/{place}"
    return param_names.torch_names(modules) | ALONE | {f"{MLM[kind]}.bias": "mlm/bias"}


def without_block(path: str) -> str:
    """Returns the path of a shared part: "encoder/mlp/..." for "encoder/block_03_mlp/..."."""
    scope, *rest = path.split("/")
    return "/".join([scope, param_names.split_block_part(rest[0])[1], *rest[1:]]) if rest else path


def modern_name(name: str, kind: str) -> str:
    """Returns today's name of a parameter, without the model's prefix."""
    module, _, leaf = name.removeprefix(f"{kind}.").rpartition(".")
    return f"{module}.{OLD_LEAVES.get(leaf, leaf)}"


def take_decoder(theirs: dict[str, np.ndarray], kind: str) -> np.ndarray | None:
    """Removes the decoder, a second name of the token embedding; returns it where they differ.

    A file that has the embedding or the decoder's bias under this name only gets its usual name.
    """
    bias = theirs.pop(f"{MLM[kind]}.decoder.bias", None)
    if bias is not None:
        theirs.setdefault(f"{MLM[kind]}.bias", bias)
    weight = theirs.pop(f"{MLM[kind]}.decoder.weight", None)
    if weight is None or np.array_equal(weight, theirs.setdefault(TOKENS, weight)):
        return None
    return weight


def read_huggingface(
    arrays: Mapping[str, np.ndarray], directory: epath.Path, source: str
) -> tuple[dict, dict[str, Any], str] | None:
    """Reads a BERT or ALBERT; None for other arrays. See `specs.ModelSpec`."""
    file = directory / "config.json"
    config = read_object(file) if file.exists() else {}
    fields = model_section(config, source=str(file))
    if fields is None:
        return None
    kind, shared = kind_out(fields)
    how = {"kind": kind, "depth": len(steps_of(fields)), "shared": shared, "source": source}
    params = from_huggingface_text(arrays, **how)
    rows = len(params["embeddings"]["token"])
    if config.get("vocab_size", rows) != rows:
        raise BadInputError(
            f"{file}: vocab_size={config['vocab_size']!r}, and the weights have {rows:,} tokens; "
            "download both again, from the same model"
        )
    return params, fields, ""


# --- Exports


def layout(model: Any, place: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns a BERT or ALBERT as transformers stores it: its arrays, and its JSON files by name.

    Args:
      model: a `trained.Stored`.
      place: where it was read from, for messages.

    Raises:
      BadInputError: their library has no such model.
    """
    section = model.config["model"]
    if odd := without_counterpart(section):
        raise BadInputError(
            f"--format=huggingface: {place} holds a model with {odd}; export it with "
            "--format=safetensors"
        )
    kind, shared = kind_out(section)
    depth = len(steps_of(section))
    arrays = to_huggingface_text(model.params, kind=kind, depth=depth, shared=shared)
    names, tokenizer = model.class_names, model.tokenizer
    labels = {
        "id2label": {str(label): name for label, name in enumerate(names)},
        "label2id": {name: label for label, name in enumerate(names)},
    }
    if not names:
        labels = {"num_labels": 1, "problem_type": "regression"}
    config = huggingface_config(
        section,
        parts=model.params,
        vocab_size=len(model.params["embeddings"]["token"]),
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.cls_id,
        eos_token_id=tokenizer.sep_id,
        **(labels if "classifier" in model.params else {}),
    )
    files = tokenizer_files(tokenizer, section["num_positions"])
    return arrays, {**files, "config.json": config}


def tokenizer_files(tokenizer: Tokenizer, max_length: int) -> dict[str, Any]:
    """Returns the tokenizer, which puts [CLS] and [SEP] around texts and pairs as our data does."""
    roles = ("cls", "sep", "mask", "pad", "unk")
    tokens = {f"{role}_token": tokenizer.token(getattr(tokenizer, f"{role}_id")) for role in roles}
    return {
        "tokenizer.json": {**tokenizer.json, "post_processor": pair_template(tokenizer)},
        "special_tokens_map.json": tokens,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            **tokens,
        },
    }


def pair_template(tokenizer: Tokenizer) -> Mapping[str, Any]:
    """Returns the post-processor of a tokenizer.json: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
    ids = {tokenizer.token(index): index for index in (tokenizer.cls_id, tokenizer.sep_id)}
    cls, sep = ids
    single = f"{cls} $A {sep}"
    template = processors.TemplateProcessing(single, f"{single} $B:1 {sep}:1", [*ids.items()])
    return json.loads(template.__getstate__())


# Tables whose last rows a smaller model does without.
TABLES = ("embeddings/position", "embeddings/token", "mlm/bias")
MLM_HEAD = {"dense", "norm", "bias"}  # its output layer is the token embedding
# Tables are padded to multiples of 8 to 1,024 rows; a tokenizer that lacks more tokens was cut, or
# a tenth of a small table.
LEAST_PADDING, MOST_PADDING = 7, 1023


def fit(name: str, value: np.ndarray, shape: tuple[int, ...], _: Mapping) -> np.ndarray:
    """Takes the first positions, and the first rows of a table that was padded beyond V.

    A larger table here fails the comparison of shapes. See `specs.ModelSpec`.

    Raises:
      BadInputError: the table has far more rows than the tokenizer has tokens.
    """
    if name not in TABLES:
        return value
    if name == ALONE[TOKENS] and len(value) > shape[0]:
        check_padding(len(value), shape[0], "config.init_from")
    return value[: shape[0]]


def check_padding(rows: int, tokens: int, place: str) -> None:
    """Raises BadInputError where a table has fewer rows than tokens, or far more."""
    if not 0 <= rows - tokens <= min(max(rows // 10, LEAST_PADDING), MOST_PADDING):
        raise BadInputError(
            f"{place}: its tokenizer has {tokens:,} tokens, and its weights have {rows:,}; "
            "download both again, from the same model"
        )


def usable(
    place: str, params: Mapping[str, Any], fields: Mapping[str, Any]
) -> tuple[ConfigDict, dict[str, Any]] | None:
    """Returns the config and `info` of such a model; None without a head for masked words.

    Raises:
      BadInputError: the tokenizer is missing, or has more tokens than the weights.
    """
    if params.get("mlm", {}).keys() != MLM_HEAD:
        return None
    tokenizer, rows = load_tokenizer(place), len(params["embeddings"]["token"])
    check_padding(rows, tokenizer.vocab_size, f"--workdir={place}")
    defaults = configs_module("defaults")
    config = defaults.get_config(dict(fields, dtype="float32"), task="masked_lm")
    config.data.max_length = fields["num_positions"]
    return config, tokenizer_info(tokenizer)
