"""Layers fitted to few images: least squares against NumPy's, and the draws."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refuses

from widenet_jax.inference.few_shot import BIAS, draw, few_shot, fit
from widenet_jax.inference.trained import open_trained
from widenet_jax.vision.data.digits import Digits


@pytest.mark.parametrize(("n", "D"), [(60, 9), (10, 9), (9, 9), (8, 9), (8, 40)])
def test_least_squares(n: int, D: int):
    """NumPy solves the penalised problem as one without a penalty, of D + 1 more rows.

    The rows sqrt(l2) I with targets 0 add l2 times the squared weights, the bias's among them.
    """
    rng, V, l2 = np.random.default_rng(n), 4, 3.0
    x, y = rng.normal(2.0, rng.uniform(0.1, 3, D), (n, D)).astype(np.float32), np.arange(n) % V
    weights, biases = fit(x, y, V, l2)
    exact = x.astype(np.float64)
    scaled = (exact - exact.mean(0)) / (exact.std(0) + 1e-5)
    rows = np.concatenate([np.c_[scaled, np.full(n, BIAS)], np.sqrt(l2) * np.eye(D + 1)])
    targets = np.concatenate(
        [np.where(y[:, None] == np.arange(V), 1.0, -1.0), np.zeros((D + 1, V))]
    )
    solution = np.linalg.lstsq(rows, targets, rcond=None)[0]
    expected = rows[:n] @ solution
    np.testing.assert_allclose(exact @ weights + biases, expected, atol=1e-9)


def test_draws_have_so_many_of_each_class_in_random_order():
    """Also where labels must be read; the same seed draws the same images."""
    source = Digits("train")
    found = draw(source, 3, seed=0)
    assert len({*found.tolist()}) == 30
    assert np.bincount(source.record_labels[found]).tolist() == [3] * 10
    unread = SimpleNamespace(info=source.info, describe=source.describe)
    reading = type("Reading", (SimpleNamespace,), {
        "__len__": lambda self: len(source), "__getitem__": lambda self, index: source[index],
    })(**vars(unread))  # fmt: skip
    np.testing.assert_array_equal(draw(reading, 3, seed=0), found)
    assert {*draw(source, 3, seed=1).tolist()} != {*found.tolist()}
    refuses("--shots=150: there are fewer training images of ", draw, source, 150, 0)


def test_a_set_may_have_more_classes_than_the_model(digits_run):
    trained = open_trained(str(digits_run))
    fewer = dataclasses.replace(trained, info={**trained.info, "class_names": list("0123456")})
    found = few_shot(fewer, 20)
    assert [found[k] for k in ("fitted", "images", "classes")] == [200, 360, 10]
