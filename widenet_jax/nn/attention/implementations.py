"""Full attention, and its implementations.

  xla     products and a softmax that the compiler fuses as it can; runs everywhere
  pallas  one kernel in each direction for TPUs, see `pallas`; on a CPU it is interpreted, for tests
  cudnn   NVIDIA's kernel, for bfloat16 and float16 on a GPU
  auto    a run measures its platform's kernel on the device first, see `run.attention`; commands
          that open a model take xla, plans for GPUs cudnn where it runs; those for TPUs, and
          `attend` called by itself, see `unmeasured`

All compute the same up to rounding.
"""

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from widenet_jax.nn.rules import (
    attend_rules,
    check_rules,
    check_values,
    cudnn_rules,
    pallas_rules,
    refusals_of_cudnn,
)
from widenet_jax.sharding import device_kind, on_each_device, platform
from widenet_jax.typing import Array

AUTO = "auto"
# Where plans price a layer lower with the kernel than with xla (docs/log/full_attention.md): on any
# TPU from this T; on these at any T. On others the two are about alike below it.
PAYS_FROM = 384
SHORT_ROWS_PAY = ("TPU v2", "TPU v3", "TPU v4", "TPU v5")  # the last is v5p


def attend(
    query: Array,  # [B, Tq, N, H], already scaled by 1/sqrt(H)
    key: Array,  # [B, Tk, N, H]
    value: Array,  # [B, Tk, N, H]
    *,
    mask: Array | None = None,
    segment_ids: Array | None = None,
    causal: bool = False,
    implementation: str = AUTO,
) -> Array:
    """Computes softmax(query key^T) value for each head; scales nothing.

    Args:
      query, key, value: of one floating dtype, which is the result's.
      mask: [B, Tk] bool, True for keys that may be attended to; None: all.
      segment_ids: [B, T] int32 from 0 to 2^24, T = Tq = Tk: tokens attend to those with their
        number only.
      causal: whether tokens, T = Tq = Tk, attend to earlier ones and themselves only.
      implementation: a key of `IMPLEMENTATIONS`, or "auto".

    Returns:
      [B, Tq, N, H]. A query without any key to attend to gets a finite vector without meaning.

    Raises:
      BadInputError: arrays do not fit together, or an implementation cannot run here or with these
        shapes.
    """
    implementation = unmeasured(implementation, query, key, fits, short=SHORT_ROWS_PAY)
    check_values("model.attention", {"implementation": implementation})
    check_rules(attend_rules(query, key, value, mask, segment_ids, causal=causal))
    run = IMPLEMENTATIONS[implementation]
    return run(query, key, value, mask, segment_ids, causal)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def attend_xla(
    query: Array,  # [B, Tq, N, H], already scaled by 1/sqrt(H)
    key: Array,  # [B, Tk, N, H]
    value: Array,  # [B, Tk, N, H]
    mask: Array | None,  # [B, Tk] bool, True for keys that may be attended to
    segment_ids: Array | None,  # [B, T] int32: tokens attend to those with their number only
    causal: bool,
) -> Array:  # [B, Tq, N, H]
    """Computes softmax(query key^T) value for each head, see `attend`.

    Scores have the inputs' dtype, the softmax runs in float32. The gradient is written out (Dao et
    al. 2022, algorithm 4, without its blocks): the forward pass keeps the scores and, for each
    query, their maximum and one over the sum of their exponentials; the backward pass recomputes
    the weights inside the products that use them, so that nothing of the scores' size is stored in
    float32.

    The query gradient uses mean-centred keys. Each row of d_scores sums to zero only up to bfloat16
    rounding, and the residue would be multiplied by the component that all keys have in common.
    """
    return _attend_forward(query, key, value, mask, segment_ids, causal)[0]


def _attend_forward(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    segment_ids: Array | None,
    causal: bool,
) -> tuple[Array, tuple]:
    # Scores lie as [B, N, Tk, Tq]: summing over the last but one axis is cheap on a TPU.
    scores = product("bknh,bqnh->bnkq", key, query)
    # Finite, so that a softmax over no key at all (an example that is all padding) is not NaN.
    lowest = jnp.finfo(scores.dtype).min
    if mask is not None:
        scores = jnp.where(mask[:, None, :, None], scores, lowest)
    if segment_ids is not None:
        same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
        scores = jnp.where(same, scores, lowest)
    if causal:
        place = jnp.arange(scores.shape[3])
        scores = jnp.where(place[:, None] <= place, scores, lowest)
    largest = scores.max(axis=2, keepdims=True).astype(jnp.float32)
    total = jnp.exp(scores.astype(jnp.float32) - largest).sum(axis=2, keepdims=True)
    softmax = (scores, largest, 1 / total)
    out = product("bnkq,bknh->bqnh", _weights(*softmax).astype(value.dtype), value)
    return out, (query, key, value, softmax, out)


def _attend_backward(causal: bool, saved: tuple, d_out: Array) -> tuple:
    del causal  # hidden scores have no weight, but in rows without any key, which have no meaning
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
    d_value = product("bnkq,bqnh->bknh", weights.astype(value.dtype), d_out)
    d_weights = product("bknh,bqnh->bnkq", value, d_out)
    # sum_k weights * d_weights, without a pass over the scores.
    along = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)  # [B, Tq, N]
    d_scores = weights * (d_weights.astype(jnp.float32) - along.swapaxes(1, 2)[:, :, None])
    d_scores = d_scores.astype(query.dtype)
    d_query = product("bnkq,bknh->bqnh", d_scores, centred(key, axis=1))
    d_key = product("bnkq,bqnh->bknh", d_scores, query)
    return (d_query, d_key, d_value), d_scores


def product(spec: str, x: Array, y: Array, dtype: DTypeLike | None = None) -> Array:
    """Computes `jnp.einsum(spec, x, y)` of arrays by heads, [B, T, N, H], and by scores.

    On a CPU the heads come first, [B, N, T, H], so that products read and write contiguous rows. A
    sum over the rows of the scores makes [B, N, H, T], in half the time of [B, N, T, H].

    Args:
      spec: the scores, if they are an operand, are x.
      x: the first operand.
      y: the second operand.
      dtype: of the sums; the operands' by default.
    """
    einsum = functools.partial(jnp.einsum, preferred_element_type=dtype)
    if platform() != "cpu":
        return einsum(spec, x, y)
    *operands, of_result = spec.replace("->", ",").split(",")
    x, y = (
        array.swapaxes(1, 2) if letters.endswith("nh") else array
        for letters, array in zip(operands, (x, y), strict=True)
    )
    rows, column = operands[0][-2:]
    if of_result[1] == column:
        return einsum(f"bn{rows}h,bn{rows}{column}->bnh{column}", y, x).transpose(0, 3, 1, 2)
    result = einsum(re.sub("b(.)nh", r"bn\1h", spec), x, y)
    return result.swapaxes(1, 2) if of_result.endswith("nh") else result


def centred(keys: Array, *, axis: int) -> Array:
    """Subtracts the mean over `axis`, in float32, see `attend_xla`."""
    exact = keys.astype(jnp.float32)
    return (exact - exact.mean(axis, keepdims=True)).astype(keys.dtype)


def _weights(scores: Array, largest: Array, scale: Array) -> Array:
    # Not exp(scores - logsumexp): one rounded large number would change all weights of
    # a query, at scores of 30 several times what is lost elsewhere.
    return jnp.exp(scores.astype(jnp.float32) - largest) * scale


attend_xla.defvjp(_attend_forward, _attend_backward)


def fits(query: Array, key: Array) -> bool:
    """Returns whether the Pallas kernel takes these shapes."""
    from widenet_jax.nn.attention.pallas import takes

    limited = float32_only() or (query.dtype == jnp.float32 and platform() == "tpu")
    return query.shape == key.shape and takes(query.shape, float32_only=limited)


def float32_only() -> bool:
    """Returns whether kernels multiply float32 operands only, as on the first two TPUs."""
    return device_kind() in ("TPU v2", "TPU v3")


def attend_pallas(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    segment_ids: Array | None,
    causal: bool,
) -> Array:
    """Computes attention by the Pallas kernel on each device's share of the batch."""
    from widenet_jax.nn.attention.pallas import LIMITS, hidden_keys, kernel_attend

    here = f"[B, T, N, H] is {query.shape}, of keys {key.shape}; use auto"
    check_rules(pallas_rules(platform(), fits=fits(query, key), limits=LIMITS, here=here))
    settings = {"float32_only": float32_only(), "interpret": platform() == "cpu"}
    run = functools.partial(kernel_attend, causal=causal, **settings)
    operands = (query, key, value, hidden_keys(mask, segment_ids))
    return on_each_device(lambda _, *shard: run(*shard), None, *operands)


def attend_cudnn(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    segment_ids: Array | None,
    causal: bool,
) -> Array:
    """Computes attention by cuDNN's kernel on each device's share of the batch.

    JAX trains the kernel for an even number of tokens alone: an odd number of
    queries or of keys gets one more row, hidden, which is cut off again.
    """
    check_rules(cudnn_rules(platform(), query.dtype.name))
    (B, Tq), Tk = query.shape[:2], key.shape[1]
    # cuDNN wants a row for each query.
    visible = None if mask is None else jnp.broadcast_to(mask[:, None, None], (B, 1, Tq, Tk))
    if segment_ids is not None:
        same = (segment_ids[:, :, None] == segment_ids[:, None])[:, None]
        visible = same if visible is None else same & visible

    def run(_: None, query: Array, key: Array, value: Array, visible: Array | None) -> Array:
        how = {"is_causal": causal, "scale": 1.0, "implementation": "cudnn"}
        if Tq % 2 or Tk % 2:
            rows = {"query_seq_lengths": Tq, "key_value_seq_lengths": Tk}
            query, key, value = (
                jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))
                for x in (query, key, value)
            )
            if visible is not None:
                visible = jnp.pad(visible, ((0, 0), (0, 0), (0, Tq % 2), (0, Tk % 2)))
            elif not causal:  # where the last key is later than all queries
                how |= {name: jnp.full(len(query), T, jnp.int32) for name, T in rows.items()}
        return jax.nn.dot_product_attention(query, key, value, mask=visible, **how)[:, :Tq]

    with refusals_of_cudnn():
        return on_each_device(run, None, query, key, value, visible)


def unmeasured(
    name: str,
    query: Array,
    key: Array,
    fits: Callable[[Array, Array], bool],
    *,
    short: Collection[str] = (),
) -> str:
    """Returns what a name stands for where no run has measured: `auto` is pallas, or else xla.

    It is pallas on a TPU where its shapes allow it, for rows of at least PAYS_FROM tokens, on the
    kinds of TPU in `short` for any. Longer memories than the row have been compiled for the forward
    pass only; a v4 lacks room backward.
    """
    if name != AUTO:
        return name
    (_, T, *_), (_, S, *_) = query.shape, key.shape
    pays = S <= 2 * T and (T >= PAYS_FROM or device_kind() in short)
    return "pallas" if platform() == "tpu" and pays and fits(query, key) else "xla"


def candidate_for(attention: Mapping[str, Any], platform: str) -> str | None:
    """Returns the kernel that `auto` compares with xla; cudnn has none of relative attention."""
    found = CANDIDATES.get(platform)
    return None if attention["name"] == "relative" and found == "cudnn" else found


CANDIDATES = {"tpu": "pallas", "gpu": "cudnn"}  # what a run compares with xla, see `run.attention`
IMPLEMENTATIONS = {"xla": attend_xla, "pallas": attend_pallas, "cudnn": attend_cudnn}
