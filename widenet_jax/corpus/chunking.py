"""A document to chunks: the text of one pretraining instance each.

These are functions of one document alone. The worker processes of `prepare_data.py text`, its
Apache Beam pipeline and the embedded text all call `chunks_of`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.sentences import split_sentences
from widenet_jax.corpus.tokenizer import Tokenizer

SPECIALS = 3  # [CLS] A [SEP] B [SEP]
FULL_SHARE = 0.9  # of documents whose chunks aim at the full length
LEAST_TOKENS = 2  # of a chunk: it is cut into two parts
MOST_TOKENS = 65_535  # of a sequence: a record holds lengths in 16 bits
_HASH_RANGE = 2.0**64

Chunk = list[np.ndarray]


@dataclass(frozen=True)
class Document:
    """A text and its place.

    Attributes:
      source: name of the input file, without its directory.
      index: place among the documents of that file.
      paragraphs: the text; or, if `split` is off, its sentences.
      split: whether the paragraphs are still to be split into sentences.
    """

    source: str
    index: int
    paragraphs: Sequence[str]
    split: bool = True

    def sentences(self) -> Iterator[str]:
        """Yields the sentences of the text."""
        for paragraph in self.paragraphs:
            yield from split_sentences(paragraph) if self.split else [paragraph]

    def validates(self, per_mille: int) -> bool:
        """Returns whether the document belongs to the validation split.

        A hash of the text decides, so that copies of a document are on the same side.
        """
        return _hashes("\n".join(self.paragraphs))[0] % 1000 < per_mille


@dataclass(frozen=True)
class Chunking:
    """The rule that makes chunks: "ALBERT's, one record a chunk".

    Attributes:
      max_length: T, tokens of a sequence with its three special tokens.
      seed: of the target lengths.
    """

    max_length: int
    seed: int

    @property
    def room(self) -> int:
        """Tokens of a sequence without its special ones: T' = T - 3."""
        return self.max_length - SPECIALS

    def target(self, document: Document) -> int:
        """Returns the length that the document's chunks aim at: T', or uniform in 2..T'.

        Draws from a hash of (seed, source, document), so that neither the order of the work nor
        its division among processes matters.
        """
        first, second = _hashes(f"{self.seed}\0{document.source}\0{document.index}")
        if first / _HASH_RANGE < FULL_SHARE:
            return self.room
        return LEAST_TOKENS + second % (self.room - LEAST_TOKENS + 1)

    def chunks(self, sentences: Sequence[np.ndarray], target: int) -> Iterator[Chunk]:
        """Groups the sentences of one document into chunks.

        Sentences are added until a chunk has `target` tokens or the document ends. The sentence
        that reaches the target belongs to the chunk, which so may be longer than T'; instances
        are cut when they are drawn. A sentence of more than T' tokens counts as several, so that
        text without stop marks is not lost. Chunks of fewer than two tokens are left out.

        Args:
          sentences: the ids of each.
          target: as `target` draws it.
        """
        chunk: Chunk = []
        length = 0
        for sentence in sentences:
            for first in range(0, len(sentence), self.room):
                part = sentence[first : first + self.room]
                chunk.append(part)
                length += len(part)
                if length >= target:
                    yield chunk
                    chunk, length = [], 0
        if length >= LEAST_TOKENS:
            yield chunk


def chunks_of(
    document: Document, tokenizer: Tokenizer, rule: Chunking
) -> tuple[list[Chunk], np.ndarray]:
    """Returns the chunks of one document, each the ids of its sentences, and `lost_text.count`."""
    texts = list(document.sentences())
    sentences = tokenizer.encode_all(texts)
    chunks = list(rule.chunks(sentences, rule.target(document)))
    return chunks, lost_text.count(tokenizer, texts, sentences)


def _hashes(text: str) -> tuple[int, int]:
    """Returns two 64-bit hashes of a text, the same on every machine."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
