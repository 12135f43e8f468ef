"""Intervals of metrics, against values by hand and from the literature."""

import numpy as np
import pytest

from widenet_jax.run.intervals import (
    accuracy_interval,
    balanced_interval,
    bootstrap_mean,
    correlation_interval,
    interval_text,
    metric_intervals,
    wilson,
)
from widenet_jax.text.regression import pearson, spearman


def test_wilson():
    """Newcombe 1998, table I: 81 of 263, and 15 of 148; no error still leaves room for some."""
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(1.0, 20) == pytest.approx((0.8389, 1.0), abs=5e-5)
    assert interval_text(wilson(355 / 360, 360)) == " (95%: 96.79 to 99.41%)"


def test_of_a_result():
    result = {"test_accuracy": 81 / 263, "unit": "images", "test_images": 263}
    assert accuracy_interval(result) == wilson(81 / 263, 263)
    assert accuracy_interval({"test_accuracy": 0.5}) is None
    assert accuracy_interval({"test_mlm_loss": 6.0, "unit": "texts", "test_texts": 9}) is None
    found = metric_intervals(
        {"exact": 81 / 263, "questions": 263, "f1": 0.4, "order_accuracy": 0.5}
    )
    assert found == {"exact": wilson(81 / 263, 263)}
    found = metric_intervals({"f1": 0.9, "f1_se": 0.1})
    assert found == {"f1": (pytest.approx(0.704, abs=1e-3), 1.0)}


def test_bootstrap():
    """The normal interval of a mean is 1.96 standard errors wide on each side."""
    values = np.random.default_rng(1).normal(2.0, 1.0, 400)
    low, high = bootstrap_mean(values)
    error = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - error, values.mean() + error), abs=0.015)
    assert interval_text((0.1, 0.25), percent=False) == " (95%: 0.1000 to 0.2500)"


def test_no_interval_without_spread():
    assert bootstrap_mean(np.full(9, 0.7)) is None and interval_text(None) == ""
    assert metric_intervals({"f1": 1.0, "f1_se": 0.0}) == {}


def test_correlation():
    """r = 0.5 of 28: arctanh(0.5) = 0.5493, -+ 1.96 / 5, for ranks -+ 1.96 sqrt(1.125) / 5."""
    found = correlation_interval("pearson", 0.5, 28)
    assert found == pytest.approx(
        (np.tanh(0.54931 - 0.39199), np.tanh(0.54931 + 0.39199)), abs=1e-5
    )
    found = correlation_interval("spearman", -0.5, 28)
    assert found == pytest.approx((np.tanh(-0.54931 - 0.41577), np.tanh(-0.13354)), abs=1e-5)
    metrics = {"spearman": -0.5, "pearson": 0.0, "examples": 28}
    assert metric_intervals(metrics) == {"spearman": found}
    assert metric_intervals({"spearman": 0.5}) == {}
    for name, r, count in (("f1", 0.5, 28), ("pearson", 1.0, 28), ("pearson", 0.5, 3)):
        assert correlation_interval(name, r, count) is None


def test_correlations_are_covered():
    """Of 95% 93.5 to 96.5: 2,000 sets of 200 normal pairs; Spearman's is 6 / pi asin(r / 2)."""
    r, covered = 0.7, {"pearson": 0, "spearman": 0}
    truth = {"pearson": r, "spearman": 6 / np.pi * np.arcsin(r / 2)}
    draws = np.random.default_rng(0).multivariate_normal([0, 0], [[1, r], [r, 1]], (2000, 200))
    for x, y in np.moveaxis(draws, 2, 1):
        for name, of in (("pearson", pearson), ("spearman", spearman)):
            low, high = correlation_interval(name, of(x, y), 200)
            covered[name] += low <= truth[name] <= high
    assert all(0.935 <= count / 2000 <= 0.965 for count in covered.values()), covered


# (classes, examples of each, share of right ones) -> whether more than 97.5% may be covered:
# Wilson's own interval covers too much of so few examples, or classes differ in their shares.
BALANCED = {
    ((100, 20, 0.97),): False,
    ((37, 10, 0.99),): False,
    ((20, 3, 0.95),): False,
    ((10, 30, 0.97),): False,
    ((100, 100, 0.9),): False,
    ((1000, 50, 0.8),): False,
    ((2, 10, 0.5), (8, 500, 0.95)): True,
    ((50, 5, 0.6), (50, 200, 0.99)): True,
}


@pytest.mark.parametrize(("parts", "wider"), BALANCED.items())
def test_balanced_accuracy_is_covered(parts, wider: bool):
    """Of 95% at least 92.5: the shares of drawn sets whose interval has the true mean."""
    classes, examples, shares = np.transpose(parts)
    shares, counts = (np.repeat(of, classes.astype(int)) for of in (shares, examples.astype(int)))
    draws = 1_000_000 // len(shares)
    right = np.random.default_rng(0).binomial(counts, shares, (min(draws, 20_000), len(shares)))
    low, high = balanced_interval(right, counts)
    covered = ((low <= shares.mean()) & (shares.mean() <= high)).mean()
    assert 0.925 <= covered <= (1.0 if wider else 0.975)


def test_balanced_accuracy_of_few_examples():
    """Where all classes are as large and right as often, Wilson's interval of all examples."""
    one, alike = np.array([7]), np.full(10, 9)
    assert balanced_interval(one, np.array([9])) == pytest.approx(wilson(7 / 9, 9))
    assert balanced_interval(alike, np.full(10, 10)) == pytest.approx(wilson(0.9, 100))
    for right in (0, 10):  # none and all
        found = balanced_interval(np.full(3, right), np.full(3, 10))
        assert found == pytest.approx(wilson(right / 10, 30))
    # 90 of 100 and 2 of 4: b = 0.7; drawn towards it 91.4 / 102 and 3.4 / 6, so that V is
    # (0.000930 + 0.061389) / 4 = 0.015580, and b (1 - b) / V = 13.479; 4 / (1/100 + 1/4) is 15.4.
    found = balanced_interval(np.array([90, 2]), np.array([100, 4]))
    assert found == pytest.approx(wilson(0.7, 13.479), abs=1e-4)


def test_balanced_accuracy_of_equal_classes_is_wilson_s_of_all_examples_however_many():
    """One of 30 million examples is wrong: a variance below 1e-12."""
    counts = np.full(100, 300_000)
    right = counts - (np.arange(100) == 0)
    ends = balanced_interval(right, counts)
    np.testing.assert_allclose(ends, wilson(right.sum() / counts.sum(), counts.sum()), rtol=1e-12)
