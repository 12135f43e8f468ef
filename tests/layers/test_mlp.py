"""The dense feed-forward by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.layers.mlp import Mlp

# D = F = 1, all weights 1, biases 0: y = GELU(x), in its tanh form GELU(1) = 0.84119199.
PARAMS = {name: {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)} for name in ("wi", "wo")}


@pytest.mark.parametrize(
    ("output_gelu", "expected"),
    [
        (False, 0.84119199),
        (True, 0.67278),  # GELU(0.84119): 0.84119 / 2 * (1 + tanh(0.79788 * 0.867807))
    ],
)
def test_one_unit(output_gelu: bool, expected: float):
    layer = Mlp(1, output_gelu=output_gelu)
    out = layer.apply({"params": PARAMS}, jnp.ones((1, 1, 1)), train=False)
    np.testing.assert_allclose(out.y, expected, rtol=1e-4)
    assert out.aux == {}


def test_dropout_after_both_layers():
    """At rate 0.5 a quarter survives both, four times as large; the bias is 0."""
    layer = Mlp(1, dropout=0.5)
    rngs = {"dropout": jax.random.key(0)}
    y = layer.apply({"params": PARAMS}, jnp.ones((1, 4000, 1)), train=True, rngs=rngs).y
    values = np.asarray(y).ravel() / 0.84119199
    np.testing.assert_allclose(np.unique(values.round(4)), [0, 4])
    np.testing.assert_allclose((values > 0).mean(), 0.25, atol=0.03)
