"""Sequences of a fixed length: what the sources of texts to finetune on share.

A sequence is [CLS] A [SEP] B [SEP]: one or two texts.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.data.blocks import in_threads
from widenet_jax.data.contract import ArraySpec, Example, Transform
from widenet_jax.errors import BadInputError

TEXTS_AT_ONCE = 1024


def tokenizer_for(data: Mapping[str, Any], info: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer in the `info` of a trained model, else `config.data.tokenizer`.

    Raises:
      BadInputError: neither is there, or it cannot be read.
    """
    if "tokenizer" in info:
        return Tokenizer(info["tokenizer"])
    if not data["tokenizer"]:
        raise BadInputError(
            "config.data.tokenizer is empty: add --config.data.tokenizer=FILE, which "
            "`scripts/prepare_data.py tokenizer TEXTS --out FILE` makes, or start from a trained "
            "model, whose tokenizer is used: --config.init_from=DIR"
        )
    return load_tokenizer(data["tokenizer"])


def tokenizer_info(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns what a source's `info` says of the tokenizer."""
    return {"tokenizer": tokenizer.json, "vocab_size": tokenizer.vocab_size}


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text."""
    parts = [texts[i : i + TEXTS_AT_ONCE] for i in range(0, len(texts), TEXTS_AT_ONCE)]
    return [ids for part in in_threads(tokenizer.encode_all, parts) for ids in part]


def join(tokenizer: Tokenizer, text: np.ndarray, pair: np.ndarray | None, length: int) -> Example:
    """Joins the ids of one or two texts, cut to `length` tokens.

    Of two texts the longer loses its last token until both fit; of two equally long ones the
    second (BERT).

    Returns:
      {"tokens": int32 [n], "second": where token type 1 begins; n if there is no second text}.
    """
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    if pair is None:
        parts = [cls, text[: length - 2], sep]
    else:
        room = length - 3
        first = min(len(text), max(room - len(pair), (room + 1) // 2))
        parts = [cls, text[:first], sep, pair[: room - first], sep]
    return {"tokens": np.concatenate(parts).astype(np.int32), "second": sum(map(len, parts[:3]))}


def whole_length(*texts: Sequence[int] | np.ndarray | None) -> int:
    """Returns the tokens of an example of one or two texts before `join` cuts it."""
    return 1 + sum(len(text) + 1 for text in texts if text is not None)


def cut_text(wholes: Sequence[int], length: int) -> str:
    """Returns how many examples, of these whole lengths, `join` cuts to `length`; "" for none."""
    cut, limit = sum(whole > length for whole in wholes), f"config.data.max_length={length} tokens"
    more = f"{cut:,} of {len(wholes):,} texts are longer than {limit}, and lose their ends"
    return more if cut else ""


def padded(values: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """Returns int32 [size]: `values`, then `fill`."""
    out = np.full(size, fill, np.int32)
    out[: len(values)] = values
    return out


def sequence_row(
    example: Example, _: np.random.Generator | None = None, *, length: int
) -> dict[str, np.ndarray]:
    """Pads a sequence with zeros; the transform of sequences, which draws nothing.

    Args:
      example: as `join` makes it. Its further numbers and arrays, a value for each token, are in
        the row, too.
      length: T.

    Returns:
      {"tokens", "token_types": int32 [T], "length": int32, ...}.
    """
    tokens = example["tokens"]
    row = {
        "tokens": padded(tokens, length),
        "token_types": padded(np.arange(len(tokens)) >= example["second"], length),
        "length": np.int32(len(tokens)),
    }
    for name, value in example.items():
        if isinstance(value, np.ndarray) and name != "tokens":
            row[name] = padded(value, length).astype(value.dtype)
        elif isinstance(value, int | float) and name != "second":
            row[name] = (np.int32 if isinstance(value, int) else np.float32)(value)
    return row


def sequence_transforms(config: Any, _: Mapping[str, Any]) -> tuple[Transform, Transform]:
    """Returns the transform of training and of evaluation."""
    return (partial(sequence_row, length=config.data.max_length),) * 2


def sequence_spec(max_length: int) -> dict[str, ArraySpec]:
    """Returns the arrays of one sequence without further ones, as `sequence_row` makes them."""
    row = ArraySpec((max_length,), "int32")
    return {"tokens": row, "token_types": row, "length": ArraySpec((), "int32")}
