"""Scores of texts: the correlations against SciPy's, the loss, metrics without unreadable rows."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from widenet_jax.data.contract import DataInfo
from widenet_jax.text.regression import TextRegression, pearson, spearman

TASK = TextRegression.build(None, DataInfo(0, {}, {"vocab_size": 9}))


@pytest.mark.parametrize("n", [3, 10, 1500])
def test_correlations_are_scipys(n: int):
    """With ties in both, and far from 0."""
    rng = np.random.default_rng(n)
    x = rng.permutation(np.arange(n) % 6) / 2
    y = 100 + np.round(x + rng.normal(size=n), 1)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_where_no_correlation_is_defined():
    """0 of a model that gives one number; NaN, which ends a run, of numbers that are not finite."""
    x, same = np.array([1.0, 2.0, 4.0]), np.full(3, 0.1)
    for of in (pearson, spearman):
        assert of(same, x) == of(x, same) == of(x[:1], x[:1]) == 0
        assert of(x, x) == 1 and of(x, -x) == -1
        assert np.isnan(of(x, np.array([1.0, np.nan, 2.0])))


def test_the_task():
    """Scores 1, 2, 2, 9 for 1, 3, 2 and an unreadable row: squared errors of 0, 1, 0."""
    batch = {
        "tokens": np.zeros((4, 5), np.int32), "token_types": np.zeros((4, 5), np.int32),
        "length": np.full(4, 5, np.int32), "label": np.float32([1, 3, 2, 0]),
        "mask": np.array([True, True, True, False]),
    }  # fmt: skip
    logits = jnp.float32([[1], [2], [2], [9]])
    found = TASK.evaluate(lambda *_: (logits, {}), batch)
    metrics = TASK.summarize(found.sums, {k: np.asarray(v) for k, v in found.rows.items()}, None)
    assert metrics == {
        "spearman": pytest.approx(3**0.5 / 2),  # ranks 1, 2.5, 2.5 and 1, 3, 2
        "pearson": pytest.approx(3**0.5 / 2),
        "squared_error": pytest.approx(1 / 3),
        "examples": 3,
    }
    loss, means = TASK.loss(lambda *_: (logits, {}), batch, {})
    assert loss == means.means["squared_error"] == (0 + 1 + 0 + 81) / 4
