"""Multi-head self-attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.layers.dense import Dense
from widenet_jax.layers.dropout import Dropout
from widenet_jax.typing import Array


@jax.custom_vjp
def attend(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    """softmax(query key^T) value for each head; scores in the inputs' dtype, softmax in float32.

    The gradient is written out (Dao et al. 2022, algorithm 4, without its blocks): kept for it are
    the scores and the logarithm of their exponentials' sum, so that the weights are made anew,
    inside the products that use them, and nothing of the scores' size is stored in float32. Scores
    lie as [B, N, Tk, Tq]: summing over the last but one axis is what a TPU does cheaply.

    The gradients of one query's scores add up to 0, but in bfloat16 only nearly, and what is left
    would reach the query's gradient times what all keys have in common, which may be most of them.
    So keys count from their mean there, which without rounding changes nothing.

    Args:
      query: [B, Tq, N, H], already scaled by 1/sqrt(H).
      key: [B, Tk, N, H]; value: the same.
      mask: [B, Tk] True for tokens that may be seen; None is all.

    Returns:
      [B, Tq, N, H].
    """
    return _attend_forward(query, key, value, mask)[0]


def _attend_forward(query: Array, key: Array, value: Array, mask: Array | None) -> tuple:
    scores = jnp.einsum("bknh,bqnh->bnkq", key, query)
    if mask is not None:
        # Finite, so that a softmax over nothing (an image that is all padding) is not NaN. What
        # such an image gets means nothing.
        scores = jnp.where(mask[:, None, :, None], scores, jnp.finfo(scores.dtype).min)
    largest = scores.max(axis=2, keepdims=True).astype(jnp.float32)
    total = jnp.exp(scores.astype(jnp.float32) - largest).sum(axis=2, keepdims=True)
    log_sum = jnp.log(total) + largest
    out = jnp.einsum("bnkq,bknh->bqnh", _weights(scores, log_sum).astype(value.dtype), value)
    return out, (query, key, value, scores, log_sum, out)


def _attend_backward(saved: tuple, d_out: Array) -> tuple:
    query, key, value, scores, log_sum, out = saved
    weights = _weights(scores, log_sum)  # [B, N, Tk, Tq] float32
    d_value = jnp.einsum("bnkq,bqnh->bknh", weights.astype(value.dtype), d_out)
    d_weights = jnp.einsum("bknh,bqnh->bnkq", value, d_out)
    # sum_k weights * d_weights, without going over the scores again.
    along = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)  # [B, Tq, N]
    d_scores = weights * (d_weights.astype(jnp.float32) - along.swapaxes(1, 2)[:, :, None])
    d_scores = d_scores.astype(query.dtype)
    distinct = key.astype(jnp.float32)
    distinct = (distinct - distinct.mean(axis=1, keepdims=True)).astype(key.dtype)
    d_query = jnp.einsum("bnkq,bknh->bqnh", d_scores, distinct)
    d_key = jnp.einsum("bnkq,bqnh->bknh", d_scores, query)
    return d_query, d_key, d_value, None


def _weights(scores: Array, log_sum: Array) -> Array:
    return jnp.exp(scores.astype(jnp.float32) - log_sum)


attend.defvjp(_attend_forward, _attend_backward)


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
        H = D // self.num_heads

        def heads(name: str) -> Array:  # [B, T, D] -> [B, T, N, H]
            return Dense(D, self.dtype, name=name)(x).reshape(B, T, self.num_heads, H)

        # Masked tokens are seen by nobody. They still ask; no one reads the answer.
        y = attend(heads("query") * H**-0.5, heads("key"), heads("value"), mask)
        y = Dense(D, self.dtype, name="out")(y.reshape(B, T, D))
        return Dropout(self.dropout)(y, train=train)
