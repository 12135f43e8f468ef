"""Causal self-attention with a memory, by the distance between tokens (Transformer-XL).

Dai et al. 2019, arXiv:1901.02860, section 3.3. A token of the segment attends to the tokens before
it, to itself, and to the rows of the memory, which are older.
"""

from functools import cache

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from widenet_jax.layers.attention import attend
from widenet_jax.layers.dense import Dense
from widenet_jax.layers.dropout import Dropout
from widenet_jax.layers.initializers import KernelInit
from widenet_jax.typing import Array


def relative_attend(
    query: Array,  # [B, T, N, H], not scaled
    key: Array,  # [B, M + T, N, H]
    value: Array,  # [B, M + T, N, H]
    position_key: Array,  # [M + T, N, H], row d for the distance d
    content_bias: Array,  # [N, H] float32, u
    position_bias: Array,  # [N, H] float32, w
    *,
    memory_length: Array,  # [B] int32
) -> Array:
    """Computes softmax(((q_i + u) k_j + (q_i + w) r_(i-j)) / sqrt(H)) v_j for each head.

    Query i stands at place M + i among the keys. It attends to the keys j <= M + i, but not to the
    memory's first M - memory_length rows, which are empty.

    Returns:
      [B, T, N, H].
    """
    (_, T, _, H), S = query.shape, key.shape[1]

    def biased(bias: Array) -> Array:
        # Broadcast before rounding, so that the gradient is summed over tokens in float32.
        bias = jnp.broadcast_to(bias, query.shape).astype(query.dtype)
        return (query + bias) * H**-0.5

    by_distance = jnp.einsum("btnh,dnh->bntd", biased(position_bias), position_key)
    by_key = shift(by_distance[..., ::-1])  # [B, N, T, S]
    query_place, key_place = jnp.arange(S - T, S)[:, None], jnp.arange(S)
    visible = (key_place <= query_place) & (key_place >= S - T - memory_length[:, None, None])
    bias = jnp.where(visible[:, None], by_key, -jnp.inf)
    return attend(biased(content_bias), key, value, bias=bias)


def shift(x: Array) -> Array:
    """Moves row t of [..., T, S] to the left by T - 1 - t places.

    A column of zeros in front and another reading of the same numbers do it (Transformer-XL,
    appendix B). What enters from the right belongs to keys after the query and has no meaning.
    """
    *rest, T, S = x.shape
    padded = jnp.pad(x, (*((0, 0) for _ in (*rest, T)), (1, 0)))
    return padded.reshape(*rest, S + 1, T)[..., 1:, :].reshape(*rest, T, S)


@cache
def sinusoids(count: int, width: int) -> np.ndarray:
    """Returns [count, width] float32: row d has sin and cos of d * 10000^(-2k/width), k = 0, 1, ...

    Columns 2k and 2k + 1 hold the sine and the cosine of one frequency. `width` must be even.
    """
    angle = np.arange(count)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(count, width).astype("float32")


class RelativeAttention(nn.Module):
    """Attention over a memory and the tokens up to the query's, then an output projection.

    Parameters: the kernels query, key, value, position [D, N H] and out [N H, D], all without
    biases; content_bias (u) and position_bias (w) [N, H], which start at 0. No dropout on the
    attention weights; `dropout` acts on the output.

    Differs from the paper's code (kimiyoung/transformer-xl): u and w belong to one block rather
    than to all, the sinusoids have no dropout, and sine and cosine of a frequency lie side by side.
    Differs from the code of Csordas et al. 2023 (RobertCsordas/moe): the sinusoids are those of
    i - j rather than j - i, so that sines have the other sign; and scores are divided by sqrt(H)
    rather than multiplied by a learned number.

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

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        memory: Array,  # [B, M, D], the tokens before x, normed like x
        memory_length: Array,  # [B] int32: how many rows of the memory, the latest, are not empty
        train: bool,
    ) -> Array:  # [B, T, D]
        """Attends within each row to the memory and to earlier tokens."""
        N, D = self.num_heads, x.shape[-1]
        H = self.head_dim or D // N
        context = jnp.concatenate([memory, x], axis=1)

        def dense(features: int, name: str) -> Dense:
            init = self.kernel_init.kernel()
            return Dense(features, self.dtype, init, use_bias=False, name=name)

        def heads(name: str, x: Array) -> Array:  # [B, T, D] -> [B, T, N, H]
            return dense(N * H, name)(x).reshape(*x.shape[:2], N, H)

        y = relative_attend(
            heads("query", x),
            heads("key", context),
            heads("value", context),
            heads("position", jnp.asarray(sinusoids(context.shape[1], D))[None])[0],
            self.param("content_bias", nn.initializers.zeros, (N, H)),
            self.param("position_bias", nn.initializers.zeros, (N, H)),
            memory_length=memory_length,
        )
        y = dense(D, "out")(y.reshape(*x.shape[:2], N * H))
        return Dropout(self.dropout)(y, train=train)
