"""Pretrained text encoders: in another length or vocabulary, and used as they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.errors import BadInputError
from widenet_jax.text.data.sequences import tokenizer_info

# Tables whose last rows a smaller model does without.
TABLES = ("embeddings/position", "embeddings/token", "mlm/bias")
MLM_HEAD = {"dense", "norm", "bias"}  # its output layer is the token embedding


def fit(name: str, value: np.ndarray, shape: tuple[int, ...], model: Mapping) -> np.ndarray:
    """Takes the first positions, and the first rows of a table that was padded beyond V.

    A larger table here fails the comparison of shapes. See `specs.ModelSpec`.
    """
    del model
    return value[: shape[0]] if name in TABLES else value


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
    if rows < tokenizer.vocab_size:
        raise BadInputError(
            f"--workdir={place}: its tokenizer has {tokenizer.vocab_size:,} tokens, and its "
            f"weights have {rows:,}; download both again, from the same model"
        )
    task = {"name": "masked_lm", "mask_fraction": 0.15, "max_predictions": 0}
    model, data = dict(fields, dtype="float32"), {"max_length": fields["num_positions"]}
    return ConfigDict({"task": task, "model": model, "data": data}), tokenizer_info(tokenizer)
