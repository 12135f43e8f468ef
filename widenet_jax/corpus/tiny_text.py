"""The embedded text: a novel of 460 kB that needs neither download nor preparation.

In chunks for pretraining (`TinyText`), or as a stream for language models, of bytes (`tiny_bytes`)
or of word pieces (`tiny_pieces`).
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.corpus.chunking import Chunk, Chunking, chunks_of
from widenet_jax.corpus.tokenizer import FILE, load_tokenizer
from widenet_jax.corpus.unigrams import unigram_entropy
from widenet_jax.data.splits import PLAIN_SPLITS, check_split
from widenet_jax.language.data.token_files import HeldTokens
from widenet_jax.language.data.token_streams import Opened, TokenStream, open_plain

FOLDER = Path(__file__).with_name("tiny")
TEXT = FOLDER / "persuasion.txt"
NOVEL = "the embedded novel"  # what messages call it
# Every run has the same validation chapters, whatever its seed.
VALID_PER_MILLE = 50
SEED = 0


class TinyText:
    """Jane Austen's Persuasion in chunks made when it is opened; one chapter is a document.

    As `TextRecords`: `source[i]` is {"sentences": [int32 [n], ...]}.

    Attributes:
      info: "tokenizer", "vocab_size" and "unigram_entropy".
    """

    def __init__(self, split: str, max_length: int):
        check_split(split, ("train", "valid"), "the embedded text")
        chunks, self.info = _read(max_length)
        self._chunks = chunks[split]
        self._split = split

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"sentences": self._chunks[index]}

    def describe(self, index: int) -> str:
        return f"embedded text, {self._split} sequence {index}"


@cache  # a run opens both splits
def _read(max_length: int) -> tuple[dict[str, list[Chunk]], dict[str, Any]]:
    """Returns the chunks of each split, and the source's `info`."""
    from widenet_jax.corpus.inputs import Input, documents

    tokenizer = load_tokenizer(str(FOLDER / FILE))
    rule = Chunking(max_length, SEED)
    chunks: dict[str, list[Chunk]] = {"train": [], "valid": []}
    for document in documents([Input(str(TEXT), TEXT.name, "titles")]):
        side = "valid" if document.validates(VALID_PER_MILLE) else "train"
        chunks[side] += chunks_of(document, tokenizer, rule)
    counts = np.bincount(np.concatenate([np.concatenate(chunk) for chunk in chunks["train"]]))
    return chunks, {
        "tokenizer": tokenizer.json,
        "vocab_size": tokenizer.vocab_size,
        "unigram_entropy": unigram_entropy(counts),
    }


def tiny_bytes(split: str, max_length: int) -> TokenStream:
    """Returns the novel as a stream of bytes: 90% "train", 5% "valid", 5% "test"."""
    return TokenStream(open_plain(str(TEXT), split)._replace(text=NOVEL), max_length)


def tiny_pieces(split: str, max_length: int) -> TokenStream:
    """Returns the novel as a stream of word pieces, line by line; splits as `tiny_bytes`."""
    check_split(split, tuple(PLAIN_SPLITS), "the embedded text")
    return TokenStream(_pieces()[split], max_length)


@cache  # a run opens both splits
def _pieces() -> dict[str, Opened]:
    tokenizer = load_tokenizer(str(FOLDER / FILE))
    lines = TEXT.read_text().splitlines(keepends=True)
    ends = np.cumsum([0, *(len(line.encode()) for line in lines)])
    opened, first = {}, 0
    for split, share in zip(PLAIN_SPLITS, np.cumsum([*PLAIN_SPLITS.values()]), strict=True):
        end = int(np.searchsorted(ends, ends[-1] * share // 100))  # whole lines
        text = "".join(lines[first:end])
        tokens = np.concatenate(tokenizer.encode_all(lines[first:end]))
        words = len(text.split()) + text.count("\n")
        counts = {"bytes": int(ends[end] - ends[first]), "words": words}
        info = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.json}
        opened[split] = Opened(HeldTokens(tokens), counts, info, NOVEL, split)
        first = end
    return opened
