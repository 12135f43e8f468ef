"""Exports text models in the layout of Hugging Face's transformers, with their tokenizers."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.text.weights.huggingface import to_huggingface_text
from widenet_jax.text.weights.huggingface_config import (
    check_has_counterpart,
    huggingface_config,
    kind_out,
)


def layout(model: Any, place: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns a BERT or ALBERT as transformers stores it: its arrays, and its JSON files by name.

    Args:
      model: an `inference.exported.Exported`.
      place: where it was read from, for messages.

    Raises:
      BadInputError: their library has no such model.
    """
    section = model.config["model"]
    check_has_counterpart(section, place)
    kind, shared = kind_out(section)
    params = jax.tree.map(np.asarray, model.params)
    arrays = to_huggingface_text(params, kind=kind, depth=section["depth"], shared=shared)
    config = huggingface_config(
        section,
        parts=params,
        vocab_size=len(params["embeddings"]["token"]),
        **special_ids(model.tokenizer),
        **labels(model.class_names),
    )
    files = tokenizer_files(model.tokenizer, section["num_positions"])
    return arrays, {**files, "config.json": config}


def labels(class_names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields of `config.json` that name the classes."""
    if not class_names:
        return {}
    return {
        "id2label": {str(label): name for label, name in enumerate(class_names)},
        "label2id": {name: label for label, name in enumerate(class_names)},
    }


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the fields of `config.json` that name special tokens."""
    return {
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
    }


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
    special = lambda token, segment: {"SpecialToken": {"id": token, "type_id": segment}}  # noqa: E731
    text = lambda name, segment: {"Sequence": {"id": name, "type_id": segment}}  # noqa: E731
    single = [special(cls, 0), text("A", 0), special(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(sep, 1)],
        "special_tokens": {
            token: {"id": token, "ids": [index], "tokens": [token]} for token, index in ids.items()
        },
    }
