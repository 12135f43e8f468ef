"""Kinds of tokens, of both kinds of tokenizers."""

from pathlib import Path

import numpy as np

from widenet_jax.corpus.novel import FOLDER
from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.ops.analysis.usage import byte_kinds, token_kinds

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def kinds_of(tokenizer: Tokenizer, counts: np.ndarray) -> dict[str, list[str]]:
    """Returns the tokens of each kind."""
    kinds = token_kinds(tokenizer, counts)
    return {
        name: [tokenizer.token(k) for k in np.flatnonzero(members)]
        for name, members in kinds.items()
    }


def test_by_hand(tmp_path: Path):
    """Tokens that do not occur, such as "x" and [PAD], are of no kind."""
    words = ["the", "play", "##ing", ".", "##-", "1817", "##7th", "x", "\N{POUND SIGN}"]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *words]))
    tokenizer = load_tokenizer(str(tmp_path / "vocab.txt"))
    counts = np.array([0, 0, 2, 2, 1, 9, 3, 2, 5, 1, 1, 1, 0, 1])
    occurring = [word for word in words if word != "x"]
    assert kinds_of(tokenizer, counts) == {
        "rank 1 to 10": occurring,
        "starts a word": ["the", "play"],
        "continues a word": ["##ing"],
        "punctuation": [".", "##-", "\N{POUND SIGN}"],
        "digits": ["1817", "##7th"],
        "[CLS]": ["[CLS]"],
        "[SEP]": ["[SEP]"],
        "[MASK]": ["[MASK]"],
    }


def test_bands_of_frequency():
    """Of 2,000 tokens, the least frequent first; special ones have no rank."""
    tokenizer = load_tokenizer(str(FOLDER))
    counts = np.arange(tokenizer.vocab_size)
    counts[tokenizer.special] = 10**6
    kinds = token_kinds(tokenizer, counts)
    bands = {name: members for name, members in kinds.items() if name.startswith("rank")}
    ranks = ("1 to 10", "11 to 100", "101 to 1,000", "1,001 to 10,000")
    assert list(bands) == [f"rank {rank}" for rank in ranks]
    assert [band.sum() for band in bands.values()][:3] == [10, 90, 900]
    np.testing.assert_array_equal(np.flatnonzero(bands["rank 1 to 10"]), np.arange(1990, 2000))
    assert np.sum(list(bands.values()), axis=0).max() == 1


def test_bytes():
    """Each value is of one kind; "\u00e9" is two bytes, and there are no digits."""
    counts = np.bincount(list("Caf\u00e9 <b>\n".encode()), minlength=256)
    kinds = {name: np.flatnonzero(members) for name, members in byte_kinds(counts).items()}
    names = ["small letters", "capital letters", "white space", "punctuation", "other"]
    assert list(kinds) == names
    assert ord("b") in kinds["small letters"] and ord("<") in kinds["punctuation"]
    assert {0xC3, 0xA9} <= set(kinds["other"]) and len(kinds["other"]) > 128
    assert sum(map(len, kinds.values())) == 256 - 10  # digits do not occur
