"""Multi-head self-attention within an example or a window."""

import flax.linen as nn

from widenet_jax.nn.attention.implementations import attend
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.module import Module
from widenet_jax.nn.settings import AttentionSettings, FullSettings, SelfAttentionSettings
from widenet_jax.typing import Array, Aux

EPSILON = 1e-6  # added to the mean square of queries and keys


class HeadProjections(Module):
    """What layers with heads have in common: the projections to heads and back.

    query, key, value [D, N H] and out [N H, D] are four kernels: each is initialised with the fans
    of one kernel and is one unit of LAMB's trust ratio. No dropout on the attention weights;
    `dropout` acts on the output. Differs from the paper (ViT): as in the WideNet authors' released
    code.
    """

    settings: AttentionSettings

    def heads(self, name: str, x: Array) -> Array:  # [B, T, D] -> [B, T, N, H]
        """Applies the layer `name` and splits its result into heads."""
        N, H = self.settings.num_heads, self.settings.head_size(x.shape[-1])
        return self.dense(N * H, name)(x).reshape(*x.shape[:2], N, H)

    def output(self, y: Array, embed_dim: int, *, train: bool) -> Array:
        """Joins the heads [B, T, N, H], and applies the output projection and dropout."""
        y = self.dense(embed_dim, "out")(y.reshape(*y.shape[:2], -1))
        return Dropout(self.settings.dropout)(y, train=train)

    def dense(self, features: int, name: str) -> Dense:
        """Returns the layer `name`."""
        how = {"kernel_init": self.kernels.kernel(), "use_bias": self.settings.use_bias}
        return Dense(features, self.float_type, **how, name=name)


class SelfAttention(HeadProjections):
    """What attention within an example or a window has in common: the weights of its tokens.

    softmax(q k^T / sqrt(H)), and with `qk_norm` or `rope` what changes q and k before. Parameters
    beside the projections: with `qk_norm` query_norm/scale and key_norm/scale [H].
    """

    settings: SelfAttentionSettings

    def queries_and_keys(self, x: Array) -> tuple[Array, Array]:
        """Returns the scaled queries and the keys, [B, T, N, H], of x [B, T, D]."""
        query = self.placed("query", x) * self.settings.head_size(x.shape[-1]) ** -0.5
        return query, self.placed("key", x)

    def attended(self, *heads: Array, mask: Array | None, segment_ids: Array | None) -> Array:
        """Returns the weighted sums of values, by queries, keys and values, all [B, T, N, H]."""
        # Masked tokens are excluded as keys. Their own outputs are computed but never read.
        return attend(
            *heads,
            mask=mask if segment_ids is None else None,
            segment_ids=segment_ids,
            causal=self.settings.causal,
            implementation=self.settings.implementation,
        )

    def placed(self, name: str, x: Array) -> Array:  # [B, T, D] -> [B, T, N, H]
        """Computes queries or keys, with their norm and place."""
        y = self.heads(name, x)
        if self.settings.qk_norm:
            y = nn.RMSNorm(EPSILON, self.float_type, name=f"{name}_norm")(y)
        if not self.settings.rope:
            return y
        from widenet_jax.nn.attention.rotary import rotate  # most models do without

        return rotate(y, self.settings.rope)


class MultiHeadAttention(SelfAttention):
    """softmax(q k^T / sqrt(H)) v, then an output projection (Vaswani et al. 2017)."""

    settings: FullSettings

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
