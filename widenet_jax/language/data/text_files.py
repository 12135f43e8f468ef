"""Any text file as a source for a language model."""

import numpy as np

from widenet_jax.corpus.inputs import Reading, plan
from widenet_jax.data.contract import Transform
from widenet_jax.inference.trained import Trained
from widenet_jax.language.data.token_files import HeldTokens
from widenet_jax.language.data.token_streams import Opened, TokenStream, segment_transform
from widenet_jax.language.prepare.texts import Encoder, WordCount, blocks


def open_file(trained: Trained, path: str) -> tuple[TokenStream, Transform]:
    """Opens a whole file in the model's tokens, and the transform of its segments.

    Args:
      trained: a language model.
      path: of a text, JSON lines or parquet, perhaps compressed; read into memory.

    Raises:
      BadInputError: it cannot be read, or is shorter than a segment.
    """
    encoder, words, size, tokens = Encoder(trained.tokenizer), WordCount(), 0, []
    for unit in plan([path], Reading()):
        for source in unit:
            for block in blocks(source, Reading().column):
                tokens.append(encoder.tokens(block))
                words.add(np.frombuffer(block.text, np.uint8))
                size += len(block.text)
    found = HeldTokens(np.concatenate(tokens) if tokens else np.zeros(0, np.uint8))
    counts = {"bytes": size, "words": words.words}
    opened = Opened(found, counts, trained.info, path)
    return TokenStream(opened, trained.config.data.max_length), segment_transform
