"""The dense feed-forward layer, with all hidden units or the K largest of each token.

`ACTIVATIONS` has the activation functions by name.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError, check_range
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.selection import keep_largest
from widenet_jax.typing import Array, FfnOutput, Routing


class Mlp(nn.Module):
    """y = f(x W_i + b_i) W_o + b_o with dropout.

    Attributes:
      mlp_dim: F.
      dropout: rate after the output layer and, with `hidden_dropout`, after the hidden layer.
      activation: f, a name in `ACTIVATIONS`.
      output_activation: applies f to the output too, as the authors' released code does.
      kernel_init: initialisers of the stack.
      dtype: dtype of the computation; parameters stay float32.
    """

    mlp_dim: int
    dropout: float = 0.0
    hidden_dropout: bool = True
    activation: str = "gelu_tanh"
    output_activation: bool = False
    kernel_init: KernelInit = KernelInit()
    dtype: jnp.dtype = jnp.float32

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
        f = ACTIVATIONS[self.activation]

        def dense(features: int, name: str) -> Dense:
            init, bias_init = self.kernel_init.kernel(), self.kernel_init.scheme.ffn_bias
            return Dense(features, self.dtype, init, bias_init, name=name)

        inner = Dropout(self.dropout if self.hidden_dropout else 0.0)
        h = inner(f(dense(self.mlp_dim, "wi")(x)), train=train)  # [B, T, F]
        y = dense(x.shape[-1], "wo")(self.select(h))  # [B, T, D]
        if self.output_activation:
            y = f(y)
        return FfnOutput(y=Dropout(self.dropout)(y, train=train), aux={})

    def select(self, hidden: Array) -> Array:
        """Returns the hidden units [B, T, F] that the output layer sees: here all."""
        return hidden

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs of the two products."""
        return B * T * 4 * D * self.mlp_dim


class TopKMlp(Mlp, kw_only=True):
    """y = keep_K(relu(x W_i + b_i)) W_o + b_o (Csordás et al. 2023, section 3.1).

    keep_K sets all but the K largest of a token's hidden units to 0, after the dropout of the
    hidden layer; of equal ones those with the lower index are kept, and the gradient passes through
    them alone. It costs as much as the dense layer: it shows how few units would do.
    As in the paper, the norms of W_o's rows do not weight the choice.

    Attributes:
      num_active: K, 1 to F; F is the dense layer.
      The rest: see `Mlp`; the activation must be "relu".
    """

    num_active: int

    def select(self, hidden: Array) -> Array:
        """Keeps the K largest of a token's hidden units."""
        section = "config.model.top_k_mlp"
        check_range(f"{section}.num_active", self.num_active, 1, self.mlp_dim)
        if self.activation != "relu":
            raise BadInputError(
                f"{section} keeps the largest of units that are not negative: set "
                f"{section}.activation=relu in place of {self.activation}"
            )
        return keep_largest(hidden, self.num_active)

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs: the output layer needs the K largest units only."""
        return B * T * 2 * D * (self.mlp_dim + self.num_active)


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
