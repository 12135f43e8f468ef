"""Intervals of metrics, against values by hand and from the literature."""

import numpy as np
import pytest

from widenet_jax.run.intervals import (
    accuracy_interval,
    balanced_interval,
    bootstrap_mean,
    interval_text,
    mean_over_seeds,
    share_intervals,
    wilson,
)


def test_wilson():
    """Newcombe 1998, table I: 81 of 263, and 15 of 148; no error still leaves room for some."""
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(1.0, 20) == pytest.approx((0.8389, 1.0), abs=5e-5)
    assert interval_text(wilson(355 / 360, 360)) == " (95%: 96.79 to 99.41%)"


def test_of_a_result_and_of_the_mean_over_seeds():
    """Three seeds with s = 1: 4.303 standard errors of 3^-0.5 at two degrees of freedom."""
    result = {"test_accuracy": 81 / 263, "unit": "images", "test_images": 263}
    assert accuracy_interval(result) == wilson(81 / 263, 263)
    assert accuracy_interval({"test_accuracy": 0.5}) is None
    assert accuracy_interval({"test_mlm_loss": 6.0, "unit": "texts", "test_texts": 9}) is None
    found = share_intervals({"exact": 81 / 263, "questions": 263, "f1": 0.4, "order_accuracy": 0.5})
    assert found == {"exact": wilson(81 / 263, 263)}
    found = share_intervals({"f1": 0.9, "f1_se": 0.1})
    assert found == {"f1": (pytest.approx(0.704, abs=1e-3), 1.0)}
    assert mean_over_seeds([49.0, 50.0, 51.0]) == pytest.approx((47.516, 52.484), abs=1e-3)


def test_bootstrap():
    """The normal interval of a mean is 1.96 standard errors wide on each side."""
    values = np.random.default_rng(1).normal(2.0, 1.0, 400)
    low, high = bootstrap_mean(values)
    error = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - error, values.mean() + error), abs=0.015)
    assert interval_text((0.1, 0.25), percent=False) == " (95%: 0.1000 to 0.2500)"


def test_balanced_accuracy_of_few_examples():
    """2 of 2 right and 0 of 2: Wilson has 0.3424 to 1 and 0 to 0.6576, hence 1/2 +- 0.6576 / 2."""
    found = balanced_interval(np.array([2, 0]), np.array([2, 2]))
    assert found == pytest.approx((0.1712, 0.8288), abs=1e-4)
    # Two classes of 100 and 4 examples: the small one's share varies most.
    # Wilson: 0.8256 to 0.9448 and 0.1500 to 0.8500; below: 0.7 - hypot(0.0744, 0.35) / 2.
    found = balanced_interval(np.array([90, 2]), np.array([100, 4]))
    assert found == pytest.approx((0.5211, 0.8764), abs=1e-4)
    assert balanced_interval(np.array([7]), np.array([9])) == pytest.approx(wilson(7 / 9, 9))
