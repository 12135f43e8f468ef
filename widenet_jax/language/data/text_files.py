"""Any text file as a source for a language model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from widenet_jax.corpus.inputs import Reading, passages, plan
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data.contract import Transform
from widenet_jax.language.data.token_files import HeldTokens
from widenet_jax.language.data.token_streams import Opened, TokenStream, window_transform
from widenet_jax.language.prepare.texts import Encoder, WordCount


def open_file(path: str, max_length: int, info: Mapping[str, Any]) -> tuple[TokenStream, Transform]:
    """Opens a whole file in a model's tokens, and the transform of its windows.

    Args:
      path: of a text, JSON lines or parquet, perhaps compressed; read into memory.
      max_length: T.
      info: of the stream that the model was trained on.

    Raises:
      BadInputError: it cannot be read, or is shorter than a window.
    """
    tokenizer = Tokenizer(info["tokenizer"]) if "tokenizer" in info else None
    encoder, words, size, tokens = Encoder(tokenizer), WordCount(), 0, []
    for unit in plan([path], Reading()):
        for source in unit:
            for passage in passages(source, Reading().column):
                tokens.append(encoder.tokens(passage))
                words.add(np.frombuffer(passage.text, np.uint8))
                size += len(passage.text)
    found = HeldTokens(np.concatenate(tokens) if tokens else np.zeros(0, np.uint8))
    counts = {"bytes": size, "words": words.words}
    opened = Opened(found, counts, info, path)
    return TokenStream(opened, max_length), window_transform
