"""Multi-head self-attention within an example or a window."""

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.errors import BadInputError, check_range, choose
from widenet_jax.nn.attention.implementations import AUTO, FIELD, IMPLEMENTATIONS, attend
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.typing import Array, Aux

SECTION = "config.model.attention"
EPSILON = 1e-6  # added to the mean square of queries and keys


class HeadProjections(nn.Module):
    """What layers with heads have in common: the projections to heads and back.

    query, key, value [D, N H] and out [N H, D] are four kernels: each is initialised with the fans
    of one kernel and is one unit of LAMB's trust ratio. No dropout on the attention weights;
    `dropout` acts on the output. Differs from the paper (ViT): as in the WideNet authors' released
    code.

    Attributes:
      num_heads: N.
      head_dim: H; 0: D / N.
      dropout: rate after the output projection.
      kernel_init: initialisers of the stack.
      dtype: dtype of the computation; parameters stay float32, the softmax runs in float32.
    """

    num_heads: int
    head_dim: int = 0
    dropout: float = 0.0
    kernel_init: KernelInit = KernelInit()
    dtype: jnp.dtype = jnp.float32

    use_bias = True

    def heads(self, name: str, x: Array) -> Array:  # [B, T, D] -> [B, T, N, H]
        """Applies the layer `name` and splits its result into heads."""
        N, H = self.num_heads, self.head_size(x.shape[-1])
        return self.dense(N * H, name)(x).reshape(*x.shape[:2], N, H)

    def output(self, y: Array, embed_dim: int, *, train: bool) -> Array:
        """Joins the heads [B, T, N, H], and applies the output projection and dropout."""
        y = self.dense(embed_dim, "out")(y.reshape(*y.shape[:2], -1))
        return Dropout(self.dropout)(y, train=train)

    def dense(self, features: int, name: str) -> Dense:
        """Returns the layer `name`."""
        init = self.kernel_init.kernel()
        return Dense(features, self.dtype, init, use_bias=self.use_bias, name=name)

    def head_size(self, embed_dim: int) -> int:
        """Returns H.

        Raises:
          BadInputError: heads without a size of their own do not divide D.
        """
        if not self.head_dim and embed_dim % self.num_heads:
            raise BadInputError(
                f"{SECTION}.num_heads={self.num_heads} must divide "
                f"config.model.embed_dim={embed_dim}, or {SECTION}.head_dim be set"
            )
        return self.head_dim or embed_dim // self.num_heads


class SelfAttention(HeadProjections):
    """What attention within an example or a window has in common: the weights of its tokens.

    softmax(q k^T / sqrt(H)), and with `qk_norm` or `rope` what changes q and k before. Parameters
    beside the projections: with `qk_norm` query_norm/scale and key_norm/scale [H].

    Attributes:
      rope: share of a head's dimensions that rotate by the token's place, see `rotary.rotate`.
      qk_norm: whether queries and keys of each head are divided by their root mean square, and
        multiplied by learned weights, before they rotate (Henry et al. 2020, arXiv:2010.04245, has
        the L2 norm and a single learned number).
      causal: whether tokens see earlier ones and themselves only; the model decides.
      implementation: see `implementations.attend`.
      The rest: see `HeadProjections`.
    """

    rope: float = 0.0
    qk_norm: bool = False
    causal: bool = False
    implementation: str = AUTO

    needs_memory = False
    takes_values = True

    def queries_and_keys(self, x: Array) -> tuple[Array, Array]:
        """Returns the scaled queries and the keys, [B, T, N, H], of x [B, T, D]."""
        query = self.placed("query", x) * self.head_size(x.shape[-1]) ** -0.5
        return query, self.placed("key", x)

    def attended(self, *heads: Array, mask: Array | None, segment_ids: Array | None) -> Array:
        """Returns the weighted sums of values, by queries, keys and values, all [B, T, N, H]."""
        # Masked tokens are excluded as keys. Their own outputs are computed but never read.
        return attend(
            *heads,
            mask=mask if segment_ids is None else None,
            segment_ids=segment_ids,
            causal=self.causal,
            implementation=self.implementation,
        )

    def placed(self, name: str, x: Array) -> Array:  # [B, T, D] -> [B, T, N, H]
        """Computes queries or keys, with their norm and place."""
        y = self.heads(name, x)
        if self.qk_norm:
            y = nn.RMSNorm(EPSILON, self.dtype, name=f"{name}_norm")(y)
        if not self.rope:
            return y
        from widenet_jax.nn.attention.rotary import rotate  # most models do without

        return rotate(y, self.rope)

    def check(self, embed_dim: int) -> None:
        """Raises BadInputError where the fields do not fit D, or name no implementation."""
        H = self.head_size(embed_dim)
        choose({AUTO: None} | IMPLEMENTATIONS, self.implementation, field=FIELD)
        check_range(f"{SECTION}.rope", self.rope, 0, 1)
        if not self.rope:
            return
        from widenet_jax.nn.attention.rotary import num_rotated

        if not num_rotated(H, self.rope):
            raise BadInputError(
                f"{SECTION}.rope={self.rope} of {H} dimensions of a head is no pair that could "
                "rotate; give more, or 0"
            )

    def pairs(self, T: int) -> int:
        """Returns how many pairs of a token and a token that it sees T tokens make."""
        return T * (T + 1) // 2 if self.causal else T * T


class MultiHeadAttention(SelfAttention):
    """softmax(q k^T / sqrt(H)) v, then an output projection (Vaswani et al. 2017).

    Attributes:
      use_bias: of the four projections.
      The rest: see `SelfAttention`.
    """

    use_bias: bool = True

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        values: Array | None = None,  # [B, T, D] what values are made of; None: x
        mask: Array | None = None,  # [B, T] True for real tokens
        segment_ids: Array | None = None,  # [B, T] int32; replaces the mask
        train: bool,
    ) -> tuple[Array, Aux]:  # [B, T, D]
        """Attends within each example; with `segment_ids`, within equal numbers."""
        heads = *self.queries_and_keys(x), self.heads("value", x if values is None else values)
        y = self.attended(*heads, mask=mask, segment_ids=segment_ids)
        return self.output(y, x.shape[-1], train=train), {}

    def forward_flops(self, B: int, T: int, D: int, *, memory: int = 0) -> int:
        """Returns the FLOPs of a layer in which T tokens see each other.

        8 T D W for queries, keys, values and output, W = N H; 4 W for each token and token that it
        sees, for the score and the weighted sum of values.
        """
        del memory
        W = self.num_heads * self.head_size(D)
        return B * (8 * T * D * W + 4 * self.pairs(T) * W)
