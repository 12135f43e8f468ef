"""Comparisons over seeds by hand: intervals, pairs, Holm, equality within a margin, verdicts."""

import math

import numpy as np
import pytest

from widenet_jax.ops.sweep.seeds import Found, compare, holm, mean_over_seeds, p_of, paired

A, B = {0: 2.0, 1: 3.0, 2: 5.0}, {0: 1.0, 1: 1.5, 2: 3.0, 3: 9.0}
C = {0: 0.5, 1: 0.5, 2: math.nan}


def test_the_mean_over_seeds():
    """Three seeds with s = 1: 4.303 standard errors of 3^-0.5 at two degrees of freedom.

    One seed, equal seeds and sums that differ by rounding (0.1 + 0.2 is 0.3 and 4e-17 more) have
    no interval.
    """
    assert mean_over_seeds([49.0, 50.0, 51.0]) == pytest.approx((47.516, 52.484), abs=1e-3)
    for alike in ([0.224], [0.224, 0.224], [0.1 + 0.2, 0.3], [0.1 + 0.2 - 0.3, 0.0]):
        assert mean_over_seeds(alike) is None and math.isnan(p_of(alike, 0.0, "two-sided"))


def test_seeds_are_paired():
    """A - B is 1, 1.5 and 2; (A + C) - (B + B) is 2 + .5 - 2 and 3 + .5 - 3; seed 2 diverged."""
    (one,) = compare({"a - b": paired([A], [B])})
    assert one.values == (1.0, 1.5, 2.0) and one.mean == 1.5
    # t of two degrees of freedom at 97.5%: 4.303; the standard error is 0.5 / sqrt(3).
    np.testing.assert_allclose(one.interval, (1.5 - 1.2421, 1.5 + 1.2421), atol=1e-3)
    assert paired([A, C], [B, B]) == (0.5, 0.5)
    (missing,) = compare({"lost": paired([A], [{}])})
    assert (missing.values, missing.verdict) == ((), "undecided")


def test_p_values_are_corrected():
    """0.01 of four becomes 0.04, 0.02 of three 0.06, 0.03 of two at least what those before are."""
    corrected = [0.06, 0.04, math.nan, 0.06]
    assert holm([0.03, 0.01, math.nan, 0.02]) == pytest.approx(corrected, nan_ok=True)
    assert holm([0.6, 0.7]) == [1.0, 1.0]


NONE = math.nan


@pytest.mark.parametrize(
    ("values", "p", "p_equal", "paper", "verdict"),
    [
        ((1.0, 1.1, 0.9), 0.01, 1.0, 0, "above 0"),
        ((-1.0, -1.1), 0.01, 1.0, 0, "below 0"),
        ((0.01, -0.01), 0.9, 0.01, 0, "equal"),
        ((0.01, -0.01), 0.9, 0.2, 0, "undecided"),
        ((0.01, 0.011), 0.01, 0.01, 0, "above 0, equal"),
        ((1.0, 1.1, 0.9), 0.01, 1.0, 1, "above 0: confirmed"),
        ((1.0, 1.2, 0.9), 0.01, 1.0, -1, "above 0: refuted"),
        ((-1.0, -1.1), 0.01, 1.0, -1, "below 0: confirmed"),
        ((0.1, -0.1, 0.2), 0.9, 1.0, -1, "undecided"),
        # Without spread there is no test; a difference that rounding alone leaves is 0.
        ((0.5, 0.5), NONE, NONE, 0, "no spread over 2 seeds"),
        ((0.05, 0.05), NONE, NONE, 0, "equal"),
        ((0.1 + 0.2 - 0.3, 0.0), NONE, NONE, 0, "equal"),
        ((0.5,), NONE, NONE, 0, "undecided"),
    ],
)
def test_verdicts(values: tuple, p: float, p_equal: float, paper: int, verdict: str):
    """Within a margin of 0.1."""
    assert Found("", values, p, p_equal, 0.1, paper).verdict == verdict


def test_equality_needs_both_sides():
    """0.01 with a standard error of 0.001 is within 0.1, and not within 0.005."""
    values = {"n": (0.009, 0.011, 0.01, 0.01)}
    (wide,), (narrow,) = (compare(values, margin) for margin in (0.1, 0.005))
    assert wide.p_equal < 1e-4 < 0.9 < narrow.p_equal
