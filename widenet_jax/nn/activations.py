"""Activation functions by name. Each computes in float32 and returns the dtype of its input."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from widenet_jax.typing import Array

# Constants of the tanh form (Hendrycks & Gimpel 2016): x/2 (1 + tanh(SLOPE (x + CUBE x^3))).
SLOPE, CUBE = 0.7978845608028654, 0.044715


@jax.custom_vjp
def gelu_tanh(x: Array) -> Array:
    """Computes GELU in its tanh form, in float32; the result has x's dtype.

    The derivative is written out because it runs in the epilogue of a matrix product, where on a
    TPU the epilogue takes longer than the product: JAX's own derivative has half as many
    operations again.
    """
    return _forward(x)[0]


def _forward(x: Array) -> tuple[Array, Array]:
    z, inner = _inner(x)
    return (z * (0.5 + 0.5 * jnp.tanh(inner))).astype(x.dtype), x


def _backward(x: Array, dy: Array) -> tuple[Array]:
    z, inner = _inner(x)
    t = jnp.tanh(inner)
    steepness = 1.5 * inner - SLOPE * z  # z/2 times the derivative of `inner`
    slope = (1 + t) * (0.5 + steepness * (1 - t))
    return ((dy.astype(jnp.float32) * slope).astype(x.dtype),)


def _inner(x: Array) -> tuple[Array, Array]:
    """Returns x in float32, and the argument of the tanh."""
    z = x.astype(jnp.float32)
    return z, z * (SLOPE + (SLOPE * CUBE) * (z * z))


gelu_tanh.defvjp(_forward, _backward)


def gelu_erf(x: Array) -> Array:
    """Computes GELU exactly, x Phi(x), as torch and Hugging Face call "gelu"."""
    return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu_tanh": gelu_tanh,
    "gelu": gelu_erf,
    "relu": jax.nn.relu,
}
