"""The dense feed-forward, compared with values computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.nn.mlp import Mlp

# D = F = 1, all weights 1, biases 0: y = GELU(x), in its tanh form GELU(1) = 0.84119199.
PARAMS = {name: {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)} for name in ("wi", "wo")}


@pytest.mark.parametrize(
    ("output_activation", "expected"),
    [
        (False, 0.84119199),
        (True, 0.67278),  # GELU(0.84119): 0.84119 / 2 * (1 + tanh(0.79788 * 0.867807))
    ],
)
def test_one_unit(output_activation: bool, expected: float):
    layer = Mlp(1, output_activation=output_activation)
    out = layer.apply({"params": PARAMS}, jnp.ones((1, 1, 1)), train=False)
    np.testing.assert_allclose(out.y, expected, rtol=1e-4)
    assert out.aux == {}


def test_activation_by_name():
    """relu(-2 + 3) + 1 = 2; the exact GELU(1) is Phi(1) = 0.84134475."""
    params = {
        "wi": {"kernel": jnp.ones((1, 1)), "bias": 3 * jnp.ones(1)},
        "wo": {"kernel": jnp.ones((1, 1)), "bias": jnp.ones(1)},
    }

    def run(name: str) -> jax.Array:
        x = -2 * jnp.ones((1, 1, 1))
        return Mlp(1, activation=name).apply({"params": params}, x, train=False).y

    np.testing.assert_allclose(run("relu"), 2.0)
    np.testing.assert_allclose(run("gelu"), 1.84134475, rtol=1e-6)


def test_a_gate_by_hand():
    """silu(2) * 3 * 5 with x = 1: 2 / (1 + e^-2) = 1.76159416; without biases, of three kernels."""
    params = {
        k: {"kernel": jnp.full((1, 1), w)} for k, w in (("wg", 2.0), ("wi", 3.0), ("wo", 5.0))
    }
    layer, x = Mlp(1, activation="swiglu", use_bias=False), jnp.ones((1, 1, 1))
    np.testing.assert_allclose(layer.apply({"params": params}, x, train=False).y, 26.4239124)
    shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), x, train=False)["params"])
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
    assert layer.forward_flops(2, 3, 7) == 2 * 3 * 6 * 7


def test_kernels_are_initialised_by_name():
    """Two standard deviations of 0.02 are the largest entries; Glorot's would be 0.17."""
    x = jnp.ones((1, 1, 100))
    layer = Mlp(100, kernel_init="truncated_normal")
    params = layer.init(jax.random.key(0), x, train=False)
    for name in ("wi", "wo"):
        largest = jnp.abs(params["params"][name]["kernel"]).max()
        np.testing.assert_allclose(largest, 0.04, rtol=0.01)


@pytest.mark.parametrize(("hidden", "most", "share"), [(True, 4, 0.25), (False, 2, 0.5)])
def test_dropout_after_both_layers_or_the_output_alone(hidden: bool, most: int, share: float):
    """At rate 0.5 a quarter survives both, four times as large; the bias is 0."""
    layer = Mlp(1, dropout=0.5, hidden_dropout=hidden)
    rngs = {"dropout": jax.random.key(0)}
    y = layer.apply({"params": PARAMS}, jnp.ones((1, 4000, 1)), train=True, rngs=rngs).y
    values = np.asarray(y).ravel() / 0.84119199
    np.testing.assert_allclose(np.unique(values.round(4)), [0, most])
    np.testing.assert_allclose((values > 0).mean(), share, atol=0.03)
