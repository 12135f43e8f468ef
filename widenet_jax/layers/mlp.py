"""The dense feed-forward layer."""

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.layers.dense import Dense
from widenet_jax.layers.dropout import Dropout
from widenet_jax.layers.gelu import gelu
from widenet_jax.typing import Array, FfnOutput, Routing

# Released code of WideNet: biases of both feed-forward layers start as N(0, 1e-6).
BIAS_INIT = nn.initializers.normal(1e-6)


class Mlp(nn.Module):
    """y = GELU(x W_i + b_i) W_o + b_o with dropout after both layers; GELU in its tanh form.

    Attributes:
      mlp_dim: F.
      dropout: rate after the hidden and after the output layer.
      output_gelu: a second GELU on the output, as the authors' released code has it.
      dtype: of the computation; parameters stay float32.
    """

    mlp_dim: int
    dropout: float = 0.0
    output_gelu: bool = False
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
        """`mask` and `routing` belong to the feed-forward contract; a dense layer needs neither."""
        del mask, routing
        h = Dense(self.mlp_dim, self.dtype, bias_init=BIAS_INIT, name="wi")(x)  # [B, T, F]
        h = Dropout(self.dropout)(gelu(h), train=train)
        y = Dense(x.shape[-1], self.dtype, bias_init=BIAS_INIT, name="wo")(h)  # [B, T, D]
        if self.output_gelu:
            y = gelu(y)
        return FfnOutput(y=Dropout(self.dropout)(y, train=train), aux={})
