"""What the sources of texts to finetune on share: a tokenizer, and sequences of a fixed length.

A sequence is [CLS] A [SEP] B [SEP]: one or two texts.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.data.contract import ArraySpec
from widenet_jax.errors import BadInputError

TEXTS_AT_ONCE = 1024


def tokenizer_of(data: Mapping[str, Any]) -> Tokenizer:
    """Loads the tokenizer of `config.data.tokenizer`.

    Raises:
      BadInputError: none is named, or it cannot be read.
    """
    if not data["tokenizer"]:
        raise BadInputError(
            "config.data.tokenizer is empty: add --config.data.tokenizer=FILE, or start from a "
            "trained model, whose tokenizer is used: --config.init_from=DIR"
        )
    return load_tokenizer(data["tokenizer"])


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text."""
    parts = [texts[i : i + TEXTS_AT_ONCE] for i in range(0, len(texts), TEXTS_AT_ONCE)]
    return [ids for part in in_threads(tokenizer.encode_all, parts) for ids in part]


def in_threads(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Maps a function that releases the GIL, as the tokenizer does, over items in threads."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def tokenizer_info(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns what a source's `info` says of the tokenizer."""
    return {"tokenizer": tokenizer.json, "vocab_size": tokenizer.vocab_size}


def tokenizer_in(info: Mapping[str, Any]) -> Tokenizer | None:
    """Returns the tokenizer in the `info` of a source or a trained model; None for none."""
    return Tokenizer(info["tokenizer"]) if "tokenizer" in info else None


class Joined(NamedTuple):
    """A sequence without padding.

    Attributes:
      tokens: int32 [n].
      second: where token type 1 begins; n if there is none.
    """

    tokens: np.ndarray
    second: int


def join(tokenizer: Tokenizer, text: np.ndarray, pair: np.ndarray | None, length: int) -> Joined:
    """Joins the ids of one or two texts, cut to `length` tokens.

    Of two texts the longer loses its last token until both fit; of two equally long ones the
    second (BERT).
    """
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    if pair is None:
        tokens = np.concatenate([cls, text[: length - 2], sep])
        return Joined(tokens.astype(np.int32), len(tokens))
    room = length - 3
    first = min(len(text), max(room - len(pair), (room + 1) // 2))
    parts = [cls, text[:first], sep, pair[: room - first], sep]
    return Joined(np.concatenate(parts).astype(np.int32), first + 2)


def padded(sequence: Joined, length: int) -> dict[str, np.ndarray]:
    """Pads with zeros: {"tokens", "token_types": int32 [length], "length": int32}."""
    n = len(sequence.tokens)
    tokens, token_types = np.zeros((2, length), np.int32)
    tokens[:n] = sequence.tokens
    token_types[sequence.second : n] = 1
    return {"tokens": tokens, "token_types": token_types, "length": np.int32(n)}


def sequence_spec(max_length: int) -> dict[str, ArraySpec]:
    """Returns the arrays of one sequence, as `padded` makes them."""
    row = ArraySpec((max_length,), "int32")
    return {"tokens": row, "token_types": row, "length": ArraySpec((), "int32")}
