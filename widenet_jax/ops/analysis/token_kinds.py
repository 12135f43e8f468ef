"""Kinds of tokens: how frequent they are, which part of a word, punctuation, digits, special.

Kinds of bytes: letters, digits, white space, punctuation, parts of other characters.
"""

import string
import unicodedata

import numpy as np

from widenet_jax.corpus.tokenizer import WORD_MARKS, Tokenizer

# Ends of the bands of frequency, as ranks; the last band has no end.
BANDS = (10, 100, 1000, 10_000)


def token_kinds(tokenizer: Tokenizer, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Returns for each kind which tokens of the vocabulary are of it: {name: bool [V]}.

    An ordinary token belongs to a band of frequency, by its rank in the counted text, and is
    punctuation (with symbols), holds a digit, or else starts or continues a word. Each special
    token is a kind. Kinds that do not occur are left out.

    Args:
      tokenizer: of V tokens.
      counts: [V], how often each token occurs.
    """
    special = tokenizer.special
    ordinary = ~special & (counts > 0)
    rank = np.empty(len(counts), int)
    rank[np.argsort(-np.where(ordinary, counts, 0), kind="stable")] = np.arange(1, len(counts) + 1)
    kinds = {}
    for low, high in zip((0, *BANDS), (*BANDS, len(counts)), strict=True):
        name = f"rank {low + 1:,} to {high:,}" if high in BANDS else f"rank above {low:,}"
        kinds[name] = ordinary & (low < rank) & (rank <= high)
    texts = [text_of(tokenizer, token) for token in range(len(counts))]
    punctuation = np.array([bool(text) and all(map(is_punctuation, text)) for text in texts])
    digits = np.array([any(map(str.isdecimal, text)) for text in texts])
    word = ordinary & ~punctuation & ~digits
    kinds |= {
        "starts a word": word & tokenizer.starts_word,
        "continues a word": word & ~tokenizer.starts_word,
        "punctuation": ordinary & punctuation,
        "digits": ordinary & digits,
    }
    for token in np.flatnonzero(special & (counts > 0)):
        kinds[tokenizer.token(token)] = np.arange(len(counts)) == token
    return {name: members for name, members in kinds.items() if (members & (counts > 0)).any()}


def byte_kinds(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Returns for each kind which byte values are of it: {name: bool [256]}.

    Each value is of one kind; the bytes of a character outside ASCII, in UTF-8, are "other". Kinds
    that do not occur are left out.

    Args:
      counts: [256], how often each value occurs.
    """
    letters = {
        "small letters": string.ascii_lowercase,
        "capital letters": string.ascii_uppercase,
        "digits": string.digits,
        "white space": string.whitespace,
        "punctuation": string.punctuation,
    }
    values = np.arange(len(counts))
    kinds = {name: np.isin(values, list(text.encode())) for name, text in letters.items()}
    kinds["other"] = ~np.any(list(kinds.values()), axis=0)
    return {name: members for name, members in kinds.items() if counts[members].any()}


def text_of(tokenizer: Tokenizer, token: int) -> str:
    """Returns the characters of a token, without the marks of where a word begins."""
    return tokenizer.token(token).removeprefix("##").strip("".join(WORD_MARKS))


def is_punctuation(character: str) -> bool:
    """Tells whether a character is punctuation or a symbol, as Unicode has it."""
    return unicodedata.category(character)[0] in "PS"
