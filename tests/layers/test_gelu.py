"""GELU: JAX's own in value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.layers.gelu import gelu

X = jnp.linspace(-12, 12, 4801)


def test_value_and_gradient_are_those_of_jax():
    dy = jnp.cos(X)
    ours, theirs = (jax.vjp(f, X) for f in (gelu, jax.nn.gelu))
    np.testing.assert_allclose(ours[0], theirs[0], atol=2e-6)
    np.testing.assert_allclose(ours[1](dy)[0], theirs[1](dy)[0], atol=5e-6)


def test_bfloat16_is_rounded_once():
    x = X.astype(jnp.bfloat16)
    y, pull = jax.vjp(gelu, x)
    exact, pull_exact = jax.vjp(jax.nn.gelu, x.astype(jnp.float32))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(y), exact, rtol=2**-8, atol=1e-5)
    (dx,), (dx_exact,) = pull(jnp.ones_like(x)), pull_exact(jnp.ones_like(exact))
    assert dx.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(dx), dx_exact, rtol=2**-8, atol=1e-5)
