"""Pretraining instances from sentences: cut, swap, truncate, mask. Pure functions of a generator.

The rules are ALBERT's (Lan et al. 2020, arXiv:1909.11942, sections 3.1 and 4.1; the authors'
`create_pretraining_data.py`), drawn again in every epoch instead of stored.

Differs from the authors' code: both parts always come from the same document, where the code
takes the second part of a single-sentence chunk from another one.
"""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np

MASKED, KEPT = 0.8, 0.1  # shares of the chosen tokens; the rest become random tokens


@dataclasses.dataclass(frozen=True, eq=False)
class MaskingRules:
    """What masking needs to know of a vocabulary, and how much is masked.

    Attributes:
      starts_word: bool [V], True for pieces that begin a word.
      special: bool [V], True for [CLS], [SEP], [PAD], ...: never masked, never a random token.
      mask_id: of [MASK].
      mask_fraction: of a sequence's tokens, special ones included.
      max_predictions: P, the most tokens of a sequence that are masked.
      max_ngram: the most words masked together; n words have a probability proportional to 1/n.
    """

    starts_word: np.ndarray
    special: np.ndarray
    mask_id: int
    mask_fraction: float
    max_predictions: int
    max_ngram: int

    @cached_property
    def ordinary(self) -> np.ndarray:
        """Ids that are not special: the random tokens."""
        return np.flatnonzero(~self.special)

    @cached_property
    def ngram_thresholds(self) -> np.ndarray:
        """Cumulative probabilities of n = 1, 2, ..., max_ngram - 1."""
        shares = 1 / np.arange(1, self.max_ngram + 1)
        return np.cumsum(shares / shares.sum())[:-1]

    def budget(self, length: int) -> int:
        """Returns how many tokens of a sequence of `length` tokens are masked."""
        return min(self.max_predictions, max(1, round(self.mask_fraction * length)))


def cut(
    sentences: Sequence[np.ndarray], starts_word: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a chunk into two consecutive parts.

    The cut is after a random sentence but the last. A single sentence is cut before a random word
    but the first; a single word anywhere inside, and a single token is followed by nothing.
    """
    if len(sentences) > 1:
        place = sum(map(len, sentences[: rng.integers(1, len(sentences))]))
        tokens = np.concatenate(sentences)
    else:
        tokens = sentences[0]
        words = np.flatnonzero(starts_word[tokens[1:]]) + 1
        if len(words):
            place = words[rng.integers(len(words))]
        else:
            place = rng.integers(1, len(tokens)) if len(tokens) > 1 else len(tokens)
    return tokens[:place], tokens[place:]


def truncate(
    a: np.ndarray, b: np.ndarray, limit: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Drops single tokens of the longer part until both together have at most `limit`.

    Of parts of equal length, `b` loses the token. Each token is dropped at the front or the
    back with probability 1/2, so that the number dropped at the front is binomial.
    """
    excess = len(a) + len(b) - limit
    if excess <= 0:
        return a, b
    lead = len(a) - len(b)
    first = min(excess, abs(lead))  # until the lengths are equal
    rest = excess - first
    from_a = rest // 2 + (first if lead > 0 else 0)
    return _shorten(a, from_a, rng), _shorten(b, excess - from_a, rng)


def _shorten(tokens: np.ndarray, dropped: int, rng: np.random.Generator) -> np.ndarray:
    front = rng.binomial(dropped, 0.5) if dropped else 0
    return tokens[front : len(tokens) - dropped + front]


def mask(
    tokens: np.ndarray, rules: MaskingRules, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks whole words of a sequence; of the chosen tokens 80% become [MASK], 10% random tokens.

    Args:
      tokens: int [T], special tokens included.
      rules: of the vocabulary.
      rng: draws the words, and what replaces each token.

    Returns:
      The masked tokens, int32 [T]; the positions to predict, int64 [k], sorted; and their original
      ids, int32 [k].
    """
    positions = choose_words(tokens, rules, rng)
    labels = tokens[positions].astype(np.int32)
    chance = rng.random(len(positions))
    random = rules.ordinary[rng.integers(len(rules.ordinary), size=len(positions))]
    masked = tokens.astype(np.int32)
    masked[positions] = np.where(
        chance < MASKED, rules.mask_id, np.where(chance < MASKED + KEPT, labels, random)
    )
    return masked, positions, labels


def choose_words(tokens: np.ndarray, rules: MaskingRules, rng: np.random.Generator) -> np.ndarray:
    """Draws the positions to predict: int64 [k], sorted, k at most the budget."""
    places, bounds = find_words(tokens, rules)
    spans = visit(bounds, *draw_visits(len(bounds) - 1, rules, rng), rules.budget(len(tokens)))
    if not spans:
        return places[:0]
    return places[np.sort(np.concatenate([np.arange(*span) for span in spans]))]


def find_words(tokens: np.ndarray, rules: MaskingRules) -> tuple[np.ndarray, list[int]]:
    """Finds the words of a sequence: a word begins at a piece with a word start.

    Returns:
      The positions of tokens that are not special, and the bounds [W + 1] of the words among them.
    """
    places = np.flatnonzero(~rules.special[tokens])
    begins = rules.starts_word[tokens[places]]
    begins[:1] = True
    begins[1:] |= np.diff(places) > 1
    return places, [*np.flatnonzero(begins).tolist(), len(places)]


def draw_visits(
    num_words: int, rules: MaskingRules, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Draws a random order of the words, and of how many words each visit tries to take."""
    order = rng.permutation(num_words)
    sizes = np.searchsorted(rules.ngram_thresholds, rng.random(num_words), side="right") + 1
    return order.tolist(), sizes.tolist()


def visit(
    bounds: Sequence[int], order: Sequence[int], sizes: Sequence[int], budget: int
) -> list[tuple[int, int]]:
    """Takes n-grams of words until the budget is spent or all words were visited.

    Args:
      bounds: [W + 1], word w has the tokens bounds[w]..bounds[w + 1] - 1.
      order: [W], the words in the order of the visits; each begins an n-gram.
      sizes: [W], n of each visit. n shrinks to what the budget and the end of the text leave.
      budget: tokens that may be taken.

    Returns:
      The tokens taken, as spans (first, end). No word is taken twice.
    """
    num_words = len(order)
    taken = bytearray(num_words)
    spans = []
    for word, size in zip(order, sizes, strict=True):
        first, end = bounds[word], min(word + size, num_words)
        while end > word and bounds[end] - first > budget:
            end -= 1
        if end == word or any(taken[word:end]):
            continue
        taken[word:end] = b"\1" * (end - word)
        spans.append((first, bounds[end]))
        budget -= bounds[end] - first
        if not budget:
            break
    return spans
