"""The dense feed-forward layer."""

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.nn.activations import ACTIVATIONS
from widenet_jax.nn.dense import Dense
from widenet_jax.nn.dropout import Dropout
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.typing import Array, FfnOutput, Routing


class Mlp(nn.Module):
    """y = f(x W_i + b_i) W_o + b_o with dropout.

    Attributes:
      mlp_dim: F.
      dropout: rate after the output layer and, with `hidden_dropout`, after the hidden layer.
      activation: f, a name in `activations.ACTIVATIONS`.
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
            init, bias_init = self.kernel_init.kernel(), self.kernel_init.ffn_bias
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
