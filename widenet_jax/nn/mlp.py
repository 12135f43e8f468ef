"""The dense feed-forward layer, with all hidden units or the K largest of each token.

`ACTIVATIONS` has the activation functions by name; those in `GATED` act on a product of their own,
the gate, which multiplies the hidden units.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.module import Module
from widenet_jax.nn.rules import GATED
from widenet_jax.nn.settings import MlpSettings, TopKMlpSettings
from widenet_jax.sharding import platform
from widenet_jax.typing import Array, FfnOutput, Routing


class Mlp(Module):
    """y = f(x W_i + b_i) W_o + b_o with dropout.

    With an activation in `GATED`, y = (f(x W_g + b_g) * (x W_i + b_i)) W_o + b_o (Shazeer 2020,
    arXiv:2002.05202).
    """

    settings: MlpSettings

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        mask: Array | None = None,
        train: bool,
        routing: Routing | None = None,
    ) -> FfnOutput:
        """Ignores `mask` and `routing`, which belong to the feed-forward contract."""
        del mask, routing
        s, init = self.settings, self.kernels

        def dense(features: int, name: str) -> Dense:
            bias_init = init.scheme.ffn_bias
            return Dense(features, self.dtype, init.kernel(), bias_init, s.use_bias, name=name)

        inner = Dropout(s.dropout if s.hidden_dropout else 0.0)
        h = dense(s.mlp_dim, "wi")(x)  # [B, T, F]
        gate = dense(s.mlp_dim, "wg")(x) if s.activation in GATED else None
        h = inner(activate(s.activation, h, gate), train=train)
        y = dense(x.shape[-1], "wo")(self.select(h))  # [B, T, D]
        if s.output_activation:
            y = ACTIVATIONS[s.activation](y)
        outer = Dropout(s.dropout if s.output_dropout else 0.0)
        return FfnOutput(y=outer(y, train=train), aux={})

    def select(self, hidden: Array) -> Array:
        """Returns the hidden units [B, T, F] that the output layer sees: here all."""
        return hidden


class TopKMlp(Mlp):
    """y = keep_K(relu(x W_i + b_i)) W_o + b_o (Csordás et al. 2023, section 3.1).

    keep_K sets all but the K largest of a token's hidden units to 0, after the dropout of the
    hidden layer; of equal ones those with the lower index are kept, and the gradient passes through
    them alone. It costs as much as the dense layer: it shows how few units would do.
    As in the paper, the norms of W_o's rows do not weight the choice.
    """

    settings: TopKMlpSettings

    def select(self, hidden: Array) -> Array:
        """Keeps the K largest of a token's hidden units."""
        from widenet_jax.nn.selection import keep_largest  # most models do without

        return keep_largest(hidden, self.settings.num_active)


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
    z, inner = _inner(x, apart(SLOPE))
    t = jnp.tanh(inner)
    steepness = 1.5 * inner - SLOPE * z  # z/2 times the derivative of `inner`
    slope = (1 + t) * (0.5 + steepness * (1 - t))
    return (apart((dy.astype(jnp.float32) * slope).astype(x.dtype)),)


def apart(x: Array | float) -> Array | float:
    """Hides the source of x from a GPU's compiler, so that it stores no float32 array.

    It would store the tanh of the forward pass for the gradient, which computes it from the same
    constant, and the gradient unrounded for the bias's sum (docs/log/plans_gpu.md).
    """
    return jax.lax.optimization_barrier(x) if platform() == "gpu" else x


def _inner(x: Array, slope: Array | float = SLOPE) -> tuple[Array, Array]:
    """Returns x in float32, and the argument of the tanh."""
    z = x.astype(jnp.float32)
    return z, z * (slope + (SLOPE * CUBE) * (z * z))


gelu_tanh.defvjp(_forward, _backward)


def gelu_erf(x: Array) -> Array:
    """Computes GELU exactly, x Phi(x), as torch and Hugging Face call "gelu"."""
    return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)


def silu(x: Array) -> Array:
    """Computes x sigmoid(x) in float32; the result has x's dtype."""
    return jax.nn.silu(x.astype(jnp.float32)).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu_tanh": gelu_tanh,
    "gelu": gelu_erf,
    "relu": jax.nn.relu,
    "silu": silu,
    "swiglu": silu,  # outside feed-forwards, where nothing is gated, the same
}


def activate(activation: str, h: Array, gate: Array | None) -> Array:
    """Returns f(h), or with a gate f(gate) * h."""
    f = ACTIVATIONS[activation]
    return f(h) if gate is None else f(gate) * h
