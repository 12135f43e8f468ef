"""Activations agree with JAX's in value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import equations_in

from widenet_jax.nn import mlp
from widenet_jax.nn.mlp import ACTIVATIONS, gelu_tanh

X = jnp.linspace(-12, 12, 4801)


def test_value_and_gradient_are_those_of_jax():
    dy = jnp.cos(X)
    ours, theirs = (jax.vjp(f, X) for f in (gelu_tanh, jax.nn.gelu))
    np.testing.assert_allclose(ours[0], theirs[0], atol=2e-6)
    np.testing.assert_allclose(ours[1](dy)[0], theirs[1](dy)[0], atol=5e-6)


def test_bfloat16_is_rounded_once():
    x = X.astype(jnp.bfloat16)
    y, pull = jax.vjp(gelu_tanh, x)
    exact, pull_exact = jax.vjp(jax.nn.gelu, x.astype(jnp.float32))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(y), exact, rtol=2**-8, atol=1e-5)
    (dx,), (dx_exact,) = pull(jnp.ones_like(x)), pull_exact(jnp.ones_like(exact))
    assert dx.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(dx), dx_exact, rtol=2**-8, atol=1e-5)


def test_on_gpus_the_gradient_hides_its_slope_and_itself(monkeypatch: pytest.MonkeyPatch):
    """Not the argument, which would then be stored apart from the product that it is made of."""
    x, dy = X.astype(jnp.bfloat16), jnp.cos(X).astype(jnp.bfloat16)

    def gradient() -> tuple[list, jax.Array]:
        def pull(x: jax.Array, dy: jax.Array) -> jax.Array:
            return jax.vjp(gelu_tanh, x)[1](dy)[0]

        every = equations_in(jax.make_jaxpr(pull)(x, dy).jaxpr)
        barriers = (one for one in every if one.primitive.name == "optimization_barrier")
        return [one.outvars[0].aval.shape for one in barriers], pull(x, dy)

    hidden, elsewhere = gradient()
    assert hidden == []
    monkeypatch.setattr(mlp, "platform", lambda: "gpu")
    hidden, ours = gradient()
    assert hidden == [(), x.shape]
    np.testing.assert_array_equal(ours, elsewhere)


def test_gelu_is_the_exact_form():
    """x Phi(x) by the error function; it differs from the tanh form by at most 4.7e-4."""
    phi = 0.5 * (1 + jax.scipy.special.erf(X / np.sqrt(2)))
    np.testing.assert_allclose(ACTIVATIONS["gelu"](X), X * phi, atol=1e-6)
    assert 4e-4 < np.abs(ACTIVATIONS["gelu"](X) - gelu_tanh(X)).max() < 5e-4
    assert ACTIVATIONS["gelu"](X.astype(jnp.bfloat16)).dtype == jnp.bfloat16
