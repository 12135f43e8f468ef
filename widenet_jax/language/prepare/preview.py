"""Training examples of language models as text."""

from typing import Any

from widenet_jax.config.parser import Options
from widenet_jax.corpus.tokenizer import Tokenizer, printable
from widenet_jax.data.sources import build_source


def print_windows(config: Any, options: Options) -> None:
    """Prints the first windows of a config's stream, and the token after each."""
    source = build_source(config.data, config.data.train_split)
    tokenizer = Tokenizer(source.info["tokenizer"]) if "tokenizer" in source.info else None
    for index in range(min(options.num, len(source))):
        *tokens, following = source[index]["tokens"].tolist()
        shown = [printable(part, tokenizer) for part in (tokens, [following])]
        print(f"\n{source.describe(index)}\n    {shown[0]!r} then {shown[1]!r}")
