"""The embedded novel in chunks for pretraining."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from widenet_jax.corpus.chunking import Chunk, Chunking, chunks_of
from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.corpus.tokenizer import FILE, load_tokenizer
from widenet_jax.data.sources import unigram_entropy
from widenet_jax.data.splits import check_split

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
    from widenet_jax.corpus.inputs import documents
    from widenet_jax.corpus.readers import Input

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


def open_tiny_text(data: Mapping[str, Any], split: str, info: Mapping[str, Any]) -> TinyText:
    """Opens a split of the novel; see `specs.SourceSpec`."""
    del info
    return TinyText(split, data["max_length"])
