"""LayerNorm against float64."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize(("mean", "error"), [(0.0, 5e-6), (1.0, 1e-5), (100.0, 6e-3)])
def test_the_error_of_one_pass_is_as_documented(mean: float, error: float):
    """Deviation 1, float32: docs/why/numerics.md says what one pass costs in accuracy."""
    x = np.float32(mean + np.random.default_rng(0).normal(size=(256, 768)))
    norm = nn.LayerNorm(epsilon=1e-6, dtype=jnp.float32, name="norm")
    params = norm.init(jax.random.key(0), x)
    exact = np.float64(x)
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(norm.apply(params, x), exact, atol=error)


def test_statistics_of_bfloat16_are_float32():
    x = jnp.float32(5 + np.random.default_rng(0).normal(size=(4, 512))).astype(jnp.bfloat16)
    norm = nn.LayerNorm(epsilon=1e-6, dtype=jnp.bfloat16, name="norm")
    y = norm.apply(norm.init(jax.random.key(0), x), x)
    assert y.dtype == jnp.bfloat16
    exact = np.float64(x)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(np.float64(y), exact, atol=2e-2)
