"""The dense feed-forward layer, with all hidden units or the K largest of each token.

`ACTIVATIONS` has the activation functions by name; those in `GATED` act on a product of their own,
the gate, which multiplies the hidden units.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError, check_range
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.typing import Array, FfnOutput, Routing


class Mlp(nn.Module):
    """y = f(x W_i + b_i) W_o + b_o with dropout.

    With an activation in `GATED`, y = (f(x W_g + b_g) * (x W_i + b_i)) W_o + b_o (Shazeer 2020,
    arXiv:2002.05202).

    Attributes:
      mlp_dim: F.
      dropout: rate after the output layer and, with `hidden_dropout`, after the hidden layer.
      output_dropout: whether it acts after the output layer.
      activation: f, a name in `ACTIVATIONS`.
      output_activation: applies f to the output too, as the authors' released code does.
      use_bias: whether the layers have biases.
      kernel_init: initialisers of the stack.
      dtype: dtype of the computation; parameters stay float32.
    """

    mlp_dim: int
    dropout: float = 0.0
    hidden_dropout: bool = True
    activation: str = "gelu_tanh"
    output_activation: bool = False
    use_bias: bool = True
    output_dropout: bool = True
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
        """Ignores `mask` and `routing`, which belong to the feed-forward contract.

        Raises:
          BadInputError: `output_activation` with an activation in `GATED`.
        """
        del mask, routing
        check_activation(self.activation, self.output_activation)

        def dense(features: int, name: str) -> Dense:
            init, bias_init = self.kernel_init.kernel(), self.kernel_init.scheme.ffn_bias
            return Dense(features, self.dtype, init, bias_init, self.use_bias, name=name)

        inner = Dropout(self.dropout if self.hidden_dropout else 0.0)
        h = dense(self.mlp_dim, "wi")(x)  # [B, T, F]
        gate = dense(self.mlp_dim, "wg")(x) if self.activation in GATED else None
        h = inner(activate(self.activation, h, gate), train=train)
        y = dense(x.shape[-1], "wo")(self.select(h))  # [B, T, D]
        if self.output_activation:
            y = ACTIVATIONS[self.activation](y)
        outer = Dropout(self.dropout if self.output_dropout else 0.0)
        return FfnOutput(y=outer(y, train=train), aux={})

    def select(self, hidden: Array) -> Array:
        """Returns the hidden units [B, T, F] that the output layer sees: here all."""
        return hidden

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs of the two products, with a gate three."""
        return B * T * 2 * products(self.activation) * D * self.mlp_dim


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
        from widenet_jax.nn.selection import keep_largest  # most models do without

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
GATED = ("swiglu",)


def activate(activation: str, h: Array, gate: Array | None) -> Array:
    """Returns f(h), or with a gate f(gate) * h."""
    f = ACTIVATIONS[activation]
    return f(h) if gate is None else f(gate) * h


def products(activation: str) -> int:
    """Returns how many products of D times F a feed-forward has."""
    return 3 if activation in GATED else 2


def check_activation(activation: str, output_activation: bool) -> None:
    """Raises BadInputError where an output, which has no gate, would need one."""
    if output_activation and activation in GATED:
        raise BadInputError(
            f"config.model.ffn_output_activation=true: activation={activation} has a gate, and "
            "outputs have none; set ffn_output_activation=false, or activation=silu"
        )
