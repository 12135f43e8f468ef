"""The dense feed-forward layer."""

from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from widenet_jax.layers.activations import ACTIVATIONS
from widenet_jax.layers.dense import Dense
from widenet_jax.layers.dropout import Dropout
from widenet_jax.layers.initializers import FFN_BIAS_INIT, KERNEL_INITS
from widenet_jax.typing import Array, FfnOutput, Routing


class Mlp(nn.Module):
    """y = f(x W_i + b_i) W_o + b_o with dropout after both layers.

    Attributes:
      mlp_dim: F.
      dropout: rate after the hidden and after the output layer.
      activation: f, a name in `activations.ACTIVATIONS`.
      output_activation: applies f to the output too, as the authors' released code does.
      kernel_init: a name in `initializers.KERNEL_INITS`.
      dtype: dtype of the computation; parameters stay float32.
    """

    mlp_dim: int
    dropout: float = 0.0
    activation: str = "gelu_tanh"
    output_activation: bool = False
    kernel_init: str = "glorot_uniform"
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
            init = KERNEL_INITS[self.kernel_init]()
            return Dense(features, self.dtype, init, FFN_BIAS_INIT, name=name)

        h = Dropout(self.dropout)(f(dense(self.mlp_dim, "wi")(x)), train=train)  # [B, T, F]
        y = dense(x.shape[-1], "wo")(h)  # [B, T, D]
        if self.output_activation:
            y = f(y)
        return FfnOutput(y=Dropout(self.dropout)(y, train=train), aux={})

    @staticmethod
    def summarize(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns no metrics: a dense layer has no statistics."""
        del sums
        return {}
