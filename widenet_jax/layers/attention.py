"""Multi-head self-attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.typing import Array


class MultiHeadAttention(nn.Module):
    """softmax(q k^T / sqrt(H)) v, then an output projection (Vaswani et al. 2017).

    query, key, value and out are kernels of their own, [D, D] each: each is initialised with the
    fans of one kernel and is one unit of LAMB's trust ratio. No dropout on the attention weights;
    `dropout` acts on the output (Differs from ViT: as in the WideNet authors' released code).

    Attributes:
      num_heads: N; must divide D.
      dropout: rate after the output projection.
      dtype: of the computation; parameters stay float32, the softmax runs in float32.
    """

    num_heads: int
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        mask: Array | None = None,  # [B, T] True for real tokens
        train: bool,
    ) -> Array:  # [B, T, D]
        B, T, D = x.shape

        def project(name: str, inputs: Array) -> Array:
            init = nn.initializers.glorot_uniform()
            return nn.Dense(D, dtype=self.dtype, kernel_init=init, name=name)(inputs)

        def heads(name: str) -> Array:  # [B, T, D] -> [B, T, N, H]
            return project(name, x).reshape(B, T, self.num_heads, D // self.num_heads)

        # Masked tokens are seen by nobody. They still ask, so that no softmax is over nothing
        # unless a whole image is padding, whose output no one reads.
        key_mask = None if mask is None else mask[:, None, None, :]  # [B, N=1, Tq=1, Tk]
        y = jax.nn.dot_product_attention(
            heads("query"), heads("key"), heads("value"), mask=key_mask
        )
        y = project("out", y.reshape(B, T, D))
        return nn.Dropout(self.dropout, deterministic=not train)(y)
