"""Multi-head self-attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.typing import Array, Aux

SECTION = "config.model.attention"


def attend(
    query: Array,  # [B, Tq, N, H], already scaled by 1/sqrt(H)
    key: Array,  # [B, Tk, N, H]
    value: Array,  # [B, Tk, N, H]
    *,
    mask: Array | None = None,
    segment_ids: Array | None = None,
) -> Array:
    """Computes softmax(query key^T) value for each head.

    Scores have the inputs' dtype, the softmax runs in float32. The gradient is written out (Dao et
    al. 2022, algorithm 4, without its blocks): the forward pass keeps the scores and, for each
    query, their maximum and one over the sum of their exponentials; the backward pass recomputes
    the weights inside the products that use them, so that nothing of the scores' size is stored in
    float32.

    The query gradient uses mean-centred keys. Each row of d_scores sums to zero only up to bfloat16
    rounding, and the residue would be multiplied by the component that all keys have in common.

    Args:
      query, key, value: their dtype is the result's.
      mask: [B, Tk] bool, True for keys that may be attended to; None: all.
      segment_ids: [B, T] int32, T = Tq = Tk: tokens attend to those with their number only.

    Returns:
      [B, Tq, N, H]. A query without any key to attend to gets a finite vector without meaning.
    """
    return _attend(query, key, value, mask, segment_ids)


@jax.custom_vjp
def _attend(*arrays: Array | None) -> Array:
    return _attend_forward(*arrays)[0]


def _attend_forward(
    query: Array, key: Array, value: Array, mask: Array | None, segment_ids: Array | None
) -> tuple[Array, tuple]:
    # Scores lie as [B, N, Tk, Tq]: summing over the last but one axis is cheap on a TPU.
    scores = jnp.einsum("bknh,bqnh->bnkq", key, query)
    # Finite, so that a softmax over no key at all (an example that is all padding) is not NaN.
    lowest = jnp.finfo(scores.dtype).min
    if mask is not None:
        scores = jnp.where(mask[:, None, :, None], scores, lowest)
    if segment_ids is not None:
        same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
        scores = jnp.where(same, scores, lowest)
    largest = scores.max(axis=2, keepdims=True).astype(jnp.float32)
    total = jnp.exp(scores.astype(jnp.float32) - largest).sum(axis=2, keepdims=True)
    softmax = (scores, largest, 1 / total)
    out = jnp.einsum("bnkq,bknh->bqnh", _weights(*softmax).astype(value.dtype), value)
    return out, (query, key, value, softmax, out)


def _attend_backward(saved: tuple, d_out: Array) -> tuple:
    query, key, value, softmax, out = saved
    gradients, _ = attention_gradients(_weights(*softmax), query, key, value, out, d_out)
    return *gradients, None, None


def attention_gradients(
    weights: Array,  # [B, N, Tk, Tq] float32, the softmax over the keys
    query: Array,  # [B, Tq, N, H]
    key: Array,  # [B, Tk, N, H]
    value: Array,  # [B, Tk, N, H]
    out: Array,  # [B, Tq, N, H]
    d_out: Array,
) -> tuple[tuple[Array, Array, Array], Array]:
    """Returns the gradients of query, key and value, and of the scores, [B, N, Tk, Tq]."""
    d_value = jnp.einsum("bnkq,bqnh->bknh", weights.astype(value.dtype), d_out)
    d_weights = jnp.einsum("bknh,bqnh->bnkq", value, d_out)
    # sum_k weights * d_weights, without a pass over the scores.
    along = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)  # [B, Tq, N]
    d_scores = weights * (d_weights.astype(jnp.float32) - along.swapaxes(1, 2)[:, :, None])
    d_scores = d_scores.astype(query.dtype)
    d_query = jnp.einsum("bnkq,bknh->bqnh", d_scores, centred(key, axis=1))
    d_key = jnp.einsum("bnkq,bqnh->bknh", d_scores, query)
    return (d_query, d_key, d_value), d_scores


def centred(keys: Array, *, axis: int) -> Array:
    """Subtracts the mean over `axis`, in float32, see `attend`."""
    exact = keys.astype(jnp.float32)
    return (exact - exact.mean(axis, keepdims=True)).astype(keys.dtype)


def _weights(scores: Array, largest: Array, scale: Array) -> Array:
    # Not exp(scores - logsumexp): one rounded large number would change all weights of
    # a query, at scores of 30 several times what is lost elsewhere.
    return jnp.exp(scores.astype(jnp.float32) - largest) * scale


_attend.defvjp(_attend_forward, _attend_backward)


class MultiHeadAttention(nn.Module):
    """softmax(q k^T / sqrt(H)) v, then an output projection (Vaswani et al. 2017).

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

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        mask: Array | None = None,  # [B, T] True for real tokens
        segment_ids: Array | None = None,  # [B, T] int32; replaces the mask
        train: bool,
    ) -> tuple[Array, Aux]:  # [B, T, D]
        """Attends within each example; with `segment_ids`, within equal numbers."""
        H = self.head_size(x.shape[-1])
        # Masked tokens are excluded as keys. Their own outputs are computed but never read.
        y = attend(
            self.heads("query", x) * H**-0.5,
            self.heads("key", x),
            self.heads("value", x),
            mask=mask if segment_ids is None else None,
            segment_ids=segment_ids,
        )
        return self.output(y, x.shape[-1], train=train), {}

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

    check = head_size

    def forward_flops(self, B: int, T: int, D: int, *, memory: int = 0) -> int:
        """Returns the FLOPs of a layer in which T tokens see each other.

        8 T D W for queries, keys, values and output, W = N H; 4 T^2 W for the scores and the
        weighted sum of values.
        """
        del memory
        W = self.num_heads * self.head_size(D)
        return B * (8 * T * D * W + 4 * T * T * W)
