"""Tokens of a stream as text to show."""

from collections.abc import Sequence

import numpy as np

from widenet_jax.corpus.tokenizer import Tokenizer

_SHOWN_CONTROLS = "\n\t"


def text_of(tokens: Sequence[int] | np.ndarray, tokenizer: Tokenizer | None) -> str:
    """Returns the text of tokens, safe to print.

    Bytes that are no UTF-8, and control characters but line breaks and tabs, are shown as \\xNN, so
    that no model can send commands to a terminal.

    Args:
      tokens: ids.
      tokenizer: None for bytes.
    """
    if tokenizer:
        text = tokenizer.decode(tokens)
    else:
        text = bytes(bytearray(map(int, tokens))).decode(errors="backslashreplace")
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or character in _SHOWN_CONTROLS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
