"""What a tokenizer loses of a text: unknown tokens, and characters that do not come back.

Bits per byte and word perplexity divide by the bytes and words of the whole text, so that they are
too low for a text that lost a part of what makes it hard to predict.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from widenet_jax.corpus.tokenizer import Tokenizer

UNKNOWN, LOST = "unknown_token_share", "lost_character_share"  # in manifests and results
NOTICEABLE = 0.01  # a metric of a text that lost more says so
SAMPLED, LONGEST = 256, 1024  # texts of a sample, and characters of each


def count(tokenizer: Tokenizer, texts: Sequence[str], encoded: Sequence[np.ndarray]) -> np.ndarray:
    """Counts the tokens of some texts, the unknown ones, the characters and the lost ones.

    A character is lost where the decoded text has it fewer times than the text: a capital letter
    that comes back small, an accent, the second of two spaces.

    Args:
      tokenizer: of the texts.
      texts: the raw texts.
      encoded: ids of each.

    Returns:
      int64 [4], to be added up.
    """
    pairs = zip(texts, tokenizer.decode_all(encoded), strict=True)
    lost = sum((Counter(text) - Counter(back)).total() for text, back in pairs if text != back)
    unknown = sum(np.count_nonzero(ids == tokenizer.unk_id) for ids in encoded)
    return np.array([sum(map(len, encoded)), unknown, sum(map(len, texts)), lost])


def shares_of(counts: Sequence[int] | np.ndarray) -> dict[str, float]:
    """Returns the shares of sums of `count`; {} where nothing was counted: []."""
    if not len(counts):
        return {}
    tokens, unknown, characters, lost = map(int, counts)
    return {UNKNOWN: unknown / max(tokens, 1), LOST: lost / max(characters, 1)}


def describe(shares: Mapping[str, float]) -> str:
    """Returns a line on both shares, which may have others beside them; "" without them."""
    if LOST not in shares:
        return ""
    unknown, lost = f"{shares[UNKNOWN]:.2%} of the tokens", f"{shares[LOST]:.2%} of the characters"
    return f"{unknown} are unknown, {lost} do not come back when they are decoded"


def remark(shares: Mapping[str, float]) -> str:
    """Returns of which text a metric per byte or word is; "" where hardly anything was lost."""
    unknown, lost = shares.get(UNKNOWN, 0.0), shares.get(LOST, 0.0)
    if max(unknown, lost) <= NOTICEABLE:
        return ""
    text = f"of the text without the {lost:.2%} of its characters that the tokenizer loses"
    return text + f", {unknown:.2%} of the tokens unknown" * (unknown > NOTICEABLE)


def describe_sample(tokenizer: Tokenizer, texts: Sequence[str]) -> str:
    """Returns a line on the shares in at most 256 of the texts, from the first to the last."""
    sample = [text[:LONGEST] for text in texts[:: -(-len(texts) // SAMPLED) or 1]]
    counts = count(tokenizer, sample, tokenizer.encode_all(sample))
    size = f" (in {len(sample)} texts of {len(texts):,})" if len(sample) < len(texts) else ""
    return describe(shares_of(counts)) + size
