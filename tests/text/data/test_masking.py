"""Cutting, truncating and masking: an example by hand, and the shares of what is drawn."""

import numpy as np
import pytest

from widenet_jax.text.data.masking import (
    MaskingRules,
    choose_words,
    cut,
    draw_visits,
    find_words,
    mask,
    truncate,
    visit,
)

CLS, SEP, MASK, V = 2, 3, 4, 1000
SPECIAL = np.arange(V) < 5
STARTS_WORD = np.arange(V) % 9 != 0  # one piece in nine continues a word: 1.125 pieces a word


def rules(max_predictions: int = 20) -> MaskingRules:
    return MaskingRules(STARTS_WORD, SPECIAL, MASK, 0.15, max_predictions, max_ngram=3)


def sequence(rng: np.random.Generator, length: int) -> np.ndarray:
    tokens = rng.integers(5, V, length)
    tokens[[0, length // 2, -1]] = CLS, SEP, SEP
    return tokens


# Words of the example in TEXT order: tokens 0, 11 and 19 are special, and so in no word. Its words
# by name: W4 = 6-8, W5 = 9, W6 = 10, W7 = 12-13. Bounds count the 17 tokens that are not special.
WORDS = {0: 1, 1: 2, 2: 3, 3: 4, 4: 6, 5: 9, 6: 10, 7: 12, 8: 14, 9: 15, 10: 16, 11: 17, 12: 18}


def example_tokens() -> np.ndarray:
    """Twenty tokens whose words begin where `WORDS` says."""
    tokens = np.full(20, 9)  # 9 continues a word
    tokens[list(WORDS.values())] = 10
    tokens[[0, 11, 19]] = CLS, SEP, SEP
    return tokens


class Scripted:
    """A generator that gives the visits of the example: words 7, 4, 6 with n = 1, 1, 2."""

    def permutation(self, count: int) -> np.ndarray:
        first = [7, 4, 6]
        return np.array(first + [word for word in range(count) if word not in first])

    def random(self, count: int) -> np.ndarray:
        return np.array([0.1, 0.1, 0.6] + [0.1] * (count - 3))  # below 6/11: 1; below 9/11: 2


def test_the_worked_example():
    """Budget 3 of 20 tokens. W7 is taken; W4 has 3 pieces; of W6 and W7 only W6 fits: 10, 12, 13.

    W6 is a word of the first part and W7 of the second: n-grams may cross [SEP].
    """
    assert rules().budget(20) == 3
    assert choose_words(example_tokens(), rules(), Scripted()).tolist() == [10, 12, 13]


@pytest.mark.parametrize(
    ("order", "sizes", "budget", "spans"),
    [
        ([0, 1, 2], [1, 1, 1], 9, [(0, 2), (2, 3), (3, 6)]),
        ([1, 0, 2], [2, 1, 1], 9, [(2, 6), (0, 2)]),  # word 2 is taken already
        ([2, 0, 1], [3, 3, 3], 9, [(3, 6)]),  # n ends with the text; then a word is taken
        ([2, 0, 1], [1, 1, 1], 2, [(0, 2)]),  # the first is too long
        ([0, 1, 2], [1, 1, 1], 0, []),
    ],
)
def test_visits_by_hand(order: list, sizes: list, budget: int, spans: list):
    """Three words of 2, 1 and 3 tokens."""
    assert visit([0, 2, 3, 6], order, sizes, budget) == spans


def test_budget():
    """0.15 * 10 = 1.5 and 0.15 * 30 = 4.5 round to the even number, as in Python."""
    for length, budget in ((512, 20), (128, 19), (3, 1), (10, 2), (30, 4)):
        assert rules(20).budget(length) == budget
    assert rules(77).budget(512) == 77


@pytest.mark.parametrize(
    ("length", "most", "shares"),
    [(512, 20, (0.577, 0.269, 0.154)), (128, 20, (0.590, 0.264, 0.146))],
)
def test_budget_is_spent_and_ngrams_have_their_shares(length: int, most: int, shares: tuple):
    """The shares were measured on 600 sequences of real text with 1.13 pieces a word."""
    rng, found, full = np.random.default_rng(0), [], 0
    for _ in range(600):
        tokens = sequence(rng, length)
        _, bounds = find_words(tokens, rules(most))
        budget = rules(most).budget(length)
        spans = visit(bounds, *draw_visits(len(bounds) - 1, rules(most), rng), budget)
        full += sum(end - first for first, end in spans) == budget
        found += [bounds.index(end) - bounds.index(first) for first, end in spans]
    assert full >= 0.99 * 600
    for n, share in enumerate(shares, 1):
        # Both numbers are estimates from 600 sequences.
        error = np.sqrt(2 * share * (1 - share) / len(found))
        assert abs(np.mean(np.equal(found, n)) - share) < 3 * error


def test_eighty_ten_ten():
    """A random token is the original with probability 1 of 995, which counts as kept."""
    rng, masked, kept, total = np.random.default_rng(1), 0, 0, 0
    for _ in range(400):
        tokens = sequence(rng, 512)
        after, positions, labels = mask(tokens, rules(77), rng)
        assert after.dtype == labels.dtype == np.int32
        assert np.array_equal(tokens[positions], labels) and not SPECIAL[labels].any()
        assert np.isin(np.flatnonzero(after != tokens), positions).all()
        now = after[positions]
        assert not SPECIAL[now[now != MASK]].any()
        masked, total = masked + (now == MASK).sum(), total + len(now)
        kept += (now == labels).sum()
    for count, share in ((masked, 0.8), (kept, 0.1 + 0.1 / 995)):
        assert abs(count / total - share) < 3 * np.sqrt(share * (1 - share) / total)


def test_words_are_masked_whole():
    """Tokens come in words of three: every word is chosen whole or not at all."""
    tokens = np.tile([10, 9, 9], 40)
    found = choose_words(tokens, rules(max_predictions=19), np.random.default_rng(0))
    assert len(found) == 18 and set(np.bincount(found // 3)) == {0, 3}
    special, positions, _ = mask(np.array([CLS, SEP, SEP]), rules(), np.random.default_rng(0))
    assert special.tolist() == [CLS, SEP, SEP] and len(positions) == 0


def test_cut_between_sentences():
    sentences = [np.array([10, 11]), np.array([12]), np.array([13, 14, 15]), np.array([16])]
    rng, places = np.random.default_rng(0), []
    for _ in range(900):
        a, b = cut(sentences, STARTS_WORD, rng)
        assert np.concatenate([a, b]).tolist() == list(range(10, 17))
        places.append(len(a))
    counts = [places.count(place) for place in (2, 3, 6)]
    assert sum(counts) == 900
    assert all(abs(count - 300) < 3 * np.sqrt(900 * 2 / 9) for count in counts)


def test_a_single_sentence_is_cut_before_a_word():
    rng = np.random.default_rng(0)
    sentence = np.array([10, 11, 9, 18, 12, 9])  # 9 and 18 continue words
    assert {len(cut([sentence], STARTS_WORD, rng)[0]) for _ in range(50)} == {1, 4}
    one_word = np.array([10, 9, 9])
    assert {len(cut([one_word], STARTS_WORD, rng)[0]) for _ in range(50)} == {1, 2}
    a, b = cut([np.array([10])], STARTS_WORD, rng)
    assert a.tolist() == [10] and len(b) == 0


def test_truncation_drops_from_the_longer():
    rng = np.random.default_rng(0)
    for limit in np.repeat([2, 7, 8, 19, 20, 30], 50):
        a, b = rng.integers(0, 20, 2)
        short = truncate(np.arange(a), np.arange(b), limit, rng)
        while a + b > limit:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        assert tuple(map(len, short)) == (a, b)
        assert all((np.diff(x) == 1).all() for x in short)  # a piece of the part


def test_truncation_takes_both_ends_alike():
    rng = np.random.default_rng(0)
    fronts = [truncate(np.arange(30), np.arange(5), 15, rng)[0][0] for _ in range(2000)]
    error = np.sqrt(20 / 4 / 2000)
    assert abs(np.mean(fronts) - 10) < 3 * error
    assert abs(np.var(fronts) - 5) < 3 * 5 * np.sqrt(2 / 2000)
