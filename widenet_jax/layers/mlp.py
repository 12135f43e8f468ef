"""The dense feed-forward layer."""

import flax.linen as nn
import jax.numpy as jnp

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
        init = nn.initializers.glorot_uniform()

        def dense(name: str, features: int, inputs: Array) -> Array:
            return nn.Dense(
                features, dtype=self.dtype, kernel_init=init, bias_init=BIAS_INIT, name=name
            )(inputs)

        drop = nn.Dropout(self.dropout, deterministic=not train)
        h = drop(nn.gelu(dense("wi", self.mlp_dim, x)))  # [B, T, F]
        y = dense("wo", x.shape[-1], h)  # [B, T, D]
        if self.output_gelu:
            y = nn.gelu(y)
        return FfnOutput(y=drop(y), aux={})
