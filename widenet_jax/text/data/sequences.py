"""[CLS] A [SEP] B [SEP]: one or two texts as a sequence of the model's fixed length."""

from typing import NamedTuple

import numpy as np

from widenet_jax.corpus.tokenizer import Tokenizer


class Joined(NamedTuple):
    """A sequence without padding.

    Attributes:
      tokens: int32 [n].
      second: where segment 1 begins; n if there is one segment.
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
    """Pads with zeros: {"tokens", "segments": int32 [length], "length": int32}."""
    n = len(sequence.tokens)
    tokens, segments = np.zeros((2, length), np.int32)
    tokens[:n] = sequence.tokens
    segments[sequence.second : n] = 1
    return {"tokens": tokens, "segments": segments, "length": np.int32(n)}
