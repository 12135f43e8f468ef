"""A document to chunks: the text of one pretraining instance each.

These are functions of one document alone. The worker processes of `prepare_data.py text`, its
Apache Beam pipeline and the embedded text all call `chunks_of`.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

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


def chunks_of(document: Document, tokenizer: Tokenizer, rule: Chunking) -> list[Chunk]:
    """Returns the chunks of one document: for each the ids of its sentences."""
    texts: Sequence[str] = document.paragraphs
    if document.split:
        texts = [part for paragraph in texts for part in split_sentences(paragraph)]
    sentences = tokenizer.encode_all(texts)
    return list(rule.chunks(sentences, rule.target(document)))


def _hashes(text: str) -> tuple[int, int]:
    """Returns two 64-bit hashes of a text, the same on every machine."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


# Words with a full stop that rarely end a sentence; compared in lower case, without the stop.
_ABBREVIATIONS = """
mr mrs ms dr prof rev hon st sr jr gen col lt capt sgt maj adm gov sen rep pres messrs mme mt ft
no nos vol pp fig figs eq sec ch art ed eds cf vs al ca approx dept univ inc ltd co corp bros
e.g i.e b.c a.d a.m p.m jan feb mar apr jun jul aug sept sep oct nov dec
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
# A stop, any closing quotes or brackets, then either space before a capital, digit or opening mark,
# or (in scripts without spaces) nothing. A search from each mark of a long run would be quadratic.
_BOUNDARY = re.compile(
    r"""(?<![.!?…])(?P<stop>[.!?…]+)[\"'”’»)\]]*(?P<space>\s+)(?=[\"'“‘«(\[¿¡]*[^\W_a-zß-öø-ÿ])"""
    r"|[。！？]+[」』”）]*"
)
_LAST_WORD = re.compile(r"[\w.]*\w$")


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences, without the space around them.

    A sentence ends at stop marks and closing quotes or brackets, if after a space a capital letter,
    a digit or an opening quote or bracket follows. It does not end at a single full stop after an
    abbreviation or an initial ("Dr. Who", "J. S. Bach").
    """
    sentences, start = [], 0
    for found in _BOUNDARY.finditer(paragraph):
        if found["stop"] == "." and _abbreviates(paragraph[start : found.start()]):
            continue
        sentences.append(paragraph[start : found.end()].strip())
        start = found.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _abbreviates(before: str) -> bool:
    """Returns whether the text before a full stop ends with an abbreviation or an initial."""
    found = _LAST_WORD.search(before[-24:])
    if not found:
        return False
    word = found[0]
    initial = len(word) == 1 and word.isalpha() and word.isupper() and word != "I"
    return initial or word.lower() in ABBREVIATIONS


def paragraphs_of(text: str) -> list[str]:
    """Splits a text at its line breaks; where it has blank lines, at those alone.

    Text with blank lines between its paragraphs may be wrapped, so its other line breaks count as
    spaces.
    """
    blank = re.split(r"\n[ \t\r]*\n", text.strip())
    parts = blank if len(blank) > 1 else text.split("\n")
    joined = (" ".join(part.split()) for part in parts)
    return [part for part in joined if part]
