"""Dropout: rate, scale, and that hashed masks look like independent draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.nn.dense import Dropout, draw_words, keep_mask

ROWS, COLUMNS = 2048, 1024


def centred(seed: int, rate: float = 0.1) -> np.ndarray:
    """Draws a mask, scaled to mean 0 and variance 1 if its entries are independent."""
    keep = np.asarray(keep_mask(draw_words(jax.random.key(seed), (ROWS,), COLUMNS), rate), float)
    return (keep - (1 - rate)) / np.sqrt(rate * (1 - rate))


def test_bfloat16_is_scaled_by_what_keeps_the_mean():
    """1 / 0.9 = 1.1111, not 1 / bfloat16(0.9) = 1.1130; over many values rounding averages out."""
    x = 1 + jnp.arange(2**14) / 2**14
    rounded = x.astype(jnp.bfloat16)
    dropped = Dropout(0.1).apply({}, rounded, train=True, rngs={"dropout": jax.random.key(0)})
    kept = np.float64(dropped) != 0
    assert dropped.dtype == jnp.bfloat16
    ratio = np.float64(dropped)[kept].sum() / np.float64(rounded)[kept].sum()
    assert ratio == pytest.approx(1 / 0.9, rel=3e-4)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_of_the_whole_of_rows_and_of_columns(rate: float):
    """Means are normal with variance 1/n: 5 sigma for the whole, 6 for the worst of thousands."""
    mask = centred(0, rate)
    assert abs(mask.mean()) < 5 / np.sqrt(mask.size)
    assert np.abs(mask.mean(axis=1)).max() < 6 / np.sqrt(COLUMNS)
    assert np.abs(mask.mean(axis=0)).max() < 6 / np.sqrt(ROWS)
    # The means vary as those of independent draws: a mask that is too even fails here.
    np.testing.assert_allclose(mask.mean(axis=1).var() * COLUMNS, 1, atol=6 * np.sqrt(2 / ROWS))
    np.testing.assert_allclose(mask.mean(axis=0).var() * ROWS, 1, atol=6 * np.sqrt(2 / COLUMNS))


def test_no_correlation_of_two_entries_or_of_four_in_a_rectangle():
    """Rows and columns share a word each, so that a weak hash would show in rectangles."""
    mask = centred(1)
    n = mask.size
    for shift in (1, 2, 64):
        across, down = np.roll(mask, shift, axis=1), np.roll(mask, shift, axis=0)
        both = np.roll(across, shift, axis=0)
        for product in (mask * across, mask * down, mask * both, mask * across * down * both):
            assert abs(product.mean()) < 5 * product.std() / np.sqrt(n)
    # All pairs of rows at once: the Gram matrix off its diagonal.
    gram = mask @ mask.T / np.sqrt(COLUMNS)
    off = gram[~np.eye(ROWS, dtype=bool)]
    np.testing.assert_allclose(off.var(), 1, atol=0.02)
    assert np.abs(off).max() < 8


def test_scale_and_evaluation():
    x = jnp.full((64, 64), 3.0)
    y = Dropout(0.25).apply({}, x, train=True, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_allclose(np.unique(y), [0, 4])
    assert Dropout(0.25).apply({}, x, train=False) is x
    assert Dropout(0.0).apply({}, x, train=True) is x
