"""Causal self-attention with a memory, by the distance between tokens (Transformer-XL).

Dai et al. 2019, arXiv:1901.02860, section 3.3. A token of the window attends to the tokens before
it, to itself, and to the rows of the memory, which are older.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.attention.distances import distance_basis, rotate
from widenet_jax.nn.attention.full import HeadProjections
from widenet_jax.nn.attention.implementations import (
    attention_gradients,
    centred,
    float32_only,
    product,
    unmeasured,
)
from widenet_jax.nn.dense import KernelAndBias, linear
from widenet_jax.nn.rules import check_rules, pallas_rules
from widenet_jax.nn.settings import RelativeSettings
from widenet_jax.sharding import on_each_device, platform
from widenet_jax.typing import Array, Aux


def relative_attend(
    query: Array,  # [B, T, N, H], not scaled
    key: Array,  # [B, M + T, N, H]
    value: Array,  # [B, M + T, N, H]
    position_kernel: Array,  # [D, N, H] float32: r_d = sinusoids(M + T, D)[d] @ position_kernel
    content_bias: Array,  # [N, H] float32, u
    position_bias: Array,  # [N, H] float32, w
    *,
    memory_length: Array,  # [B] int32
    implementation: str = "auto",
) -> Array:
    """Computes softmax(((q_i + u) k_j + (q_i + w) r_(i-j)) / sqrt(H)) v_j for each head.

    Query i stands at place M + i among the keys. It attends to the keys j <= M + i, but not to the
    memory's first M - memory_length rows, which are empty.

    The position keys r are never computed: see `nn.attention.distances`.

    Args:
      implementation: a key of `IMPLEMENTATIONS`, or "auto".

    Returns:
      [B, T, N, H].
    """
    (_, T, _, H), S = query.shape, key.shape[1]

    def biased(bias: Array) -> Array:
        # Broadcast before rounding, so that the gradient is summed over tokens in float32.
        bias = jnp.broadcast_to(bias, query.shape).astype(query.dtype)
        return (query + bias) * H**-0.5

    waves, mixing = distance_basis(S, position_kernel.shape[0])
    kernels = jnp.einsum(
        "rd,dnh->rnh", mixing, position_kernel, precision=jax.lax.Precision.HIGHEST
    )
    terms = (
        linear("btnh,mnh->bntm", biased(position_bias), kernel, None)
        for kernel in jnp.split(kernels, 2)
    )
    # One constant, which all blocks share: slicing it before would make one of each slice.
    waves = jnp.asarray(waves)
    at_query = rotate(*terms, waves[S - T :]).astype(query.dtype)
    at_key, first = waves.astype(query.dtype), S - T - memory_length
    operands = (biased(content_bias), key, value, at_query, at_key, first)
    return attend(*operands, implementation=implementation)


def attend(
    query: Array,
    key: Array,
    value: Array,
    at_query: Array,
    at_key: Array,
    first: Array,
    *,
    implementation: str,
) -> Array:
    """Computes causal attention with the scores query key + at_query at_key, see `attend_xla`."""
    name = unmeasured(implementation, query, key, fits)
    return IMPLEMENTATIONS[name](query, key, value, at_query, at_key, first)


def fits(query: Array, key: Array) -> bool:
    """Returns whether the Pallas kernel takes these arrays here; a CPU interprets any dtype."""
    from widenet_jax.nn.attention.relative_pallas import takes

    multiplied = query.dtype == jnp.bfloat16 and not float32_only()
    return (platform() == "cpu" or multiplied) and takes(query.shape, key.shape[1])


def attend_pallas(
    query: Array, key: Array, value: Array, at_query: Array, at_key: Array, first: Array
) -> Array:
    """Computes the same by the Pallas kernel on each device's share of the batch."""
    from widenet_jax.nn.attention.relative_pallas import LIMITS, kernel_attend

    here = f"[B, T, N, H] is {query.shape} after M = {key.shape[1] - query.shape[1]}"
    here += f", in {query.dtype}"
    check_rules(pallas_rules(platform(), fits=fits(query, key), limits=LIMITS, here=here))

    def run(at_key: Array, query: Array, *rest: Array) -> Array:
        *rest, first = rest
        return kernel_attend(query, *rest, at_key, first, interpret=platform() == "cpu")

    return on_each_device(run, at_key, query, key, value, at_query, first)


@jax.custom_vjp
def attend_xla(*arrays: Array) -> Array:
    """Computes causal attention with the scores query key + at_query at_key.

    The gradient is written out as in `implementations.attend_xla`: scores are kept in the inputs'
    dtype, weights are recomputed, and gradients of queries use centred keys. Unlike there, the sum
    of the exponentials is one more column of the product with the values, which saves a pass over
    the scores.
    """
    return _attend_forward(*arrays)[0]


def _attend_forward(
    query: Array,  # [B, T, N, H], scaled
    key: Array,  # [B, S, N, H]
    value: Array,  # [B, S, N, H]
    at_query: Array,  # [B, N, T, R]
    at_key: Array,  # [S, R], a constant: its gradient is 0
    first: Array,  # [B] int32, the first key that is not empty
) -> tuple[Array, tuple]:  # [B, T, N, H], and what the gradient needs
    # Scores lie as [B, N, S, T]: summing over the last but one axis is cheap on a TPU.
    if platform() == "cpu":  # where `beside` would write both operands to memory first
        scores = product("bsnh,btnh->bnst", key, query)
        scores += jnp.einsum("sr,bntr->bnst", at_key, at_query)
    else:  # one product for both terms
        queries = beside(at_query, query.swapaxes(1, 2))
        scores = jnp.einsum("bnsr,bntr->bnst", beside(at_key, key.swapaxes(1, 2)), queries)
    S, T = scores.shape[2:]
    place = jnp.arange(S)[:, None]
    visible = (place <= jnp.arange(S - T, S)) & (place >= first[:, None, None])  # [B, S, T]
    scores = jnp.where(visible[:, None], scores, jnp.finfo(scores.dtype).min)
    largest = scores.max(axis=2, keepdims=True).astype(jnp.float32)
    weights = jnp.exp(scores.astype(jnp.float32) - largest).astype(value.dtype)
    ones = jnp.ones((*value.shape[:-1], 1), value.dtype)
    padded = jnp.concatenate([value, ones], axis=-1)
    sums = product("bnst,bsnh->btnh", weights, padded, jnp.float32)
    scale = 1 / sums[..., -1]  # [B, T, N]
    out = (sums[..., :-1] * scale[..., None]).astype(value.dtype)
    return out, (query, key, value, at_key, scores, largest, scale.swapaxes(1, 2), out)


def _attend_backward(saved: tuple, d_out: Array) -> tuple:
    query, key, value, at_key, scores, largest, scale, out = saved
    weights = jnp.exp(scores.astype(jnp.float32) - largest) * scale[:, :, None]  # [B, N, S, T]
    gradients, d_scores = attention_gradients(weights, query, key, value, out, d_out)
    d_at_query = jnp.einsum("bnst,sr->bntr", d_scores, centred(at_key, axis=0))
    return *gradients, d_at_query, None, None


def beside(left: Array, right: Array) -> Array:
    """Concatenates [..., R] and [..., H] to [..., R + H]; leading axes are broadcast.

    As a sum of padded arrays, which the TPU compiler makes part of the product that reads it; it
    would write a concatenation to memory first.
    """
    R, H = left.shape[-1], right.shape[-1]

    def pad(x: Array, before: int, after: int) -> Array:
        return jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (before, after)))

    return pad(left, 0, H) + pad(right, R, 0)


attend_xla.defvjp(_attend_forward, _attend_backward)
IMPLEMENTATIONS = {"xla": attend_xla, "pallas": attend_pallas}


class RelativeAttention(HeadProjections):
    """Attention over a memory and the tokens up to the query's, then an output projection.

    Parameters: the kernels query, key, value, position [D, N H] and out [N H, D], all without
    biases; content_bias (u) and position_bias (w) [N, H], which start at 0. No dropout on the
    attention weights; `dropout` acts on the output.

    Differs from the paper's code (kimiyoung/transformer-xl): u and w belong to one block rather
    than to all, the sinusoids have no dropout, and sine and cosine of a frequency lie side by side.
    Differs from the code of Csordas et al. 2023 (RobertCsordas/moe): the sinusoids are functions of
    i - j rather than j - i, so that sines have the other sign; and scores are divided by sqrt(H)
    rather than multiplied by a learned number.
    """

    settings: RelativeSettings

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        memory: Array,  # [B, M, D], the tokens before x, normed like x
        memory_length: Array,  # [B] int32: how many rows of the memory, the latest, are not empty
        train: bool,
    ) -> tuple[Array, Aux]:  # [B, T, D]
        """Attends within each row to the memory and to earlier tokens."""
        N, D = self.settings.num_heads, x.shape[-1]
        H = self.settings.head_size(D)
        context = jnp.concatenate([memory, x], axis=1)
        position = KernelAndBias((D, N * H), None, self.kernels.kernel(), name="position")
        y = relative_attend(
            self.heads("query", x),
            self.heads("key", context),
            self.heads("value", context),
            position()[0].reshape(D, N, H),
            self.param("content_bias", nn.initializers.zeros, (N, H)),
            self.param("position_bias", nn.initializers.zeros, (N, H)),
            memory_length=memory_length,
            implementation=self.settings.implementation,
        )
        return self.output(y, D, train=train), {}
