"""Relative attention with a memory as one Pallas kernel for TPUs in each direction.

Built as `pallas`, whose docstring says why. Here a score has two products, the query with the key
and the rotated query with the waves of the key's place (see `distances`), whose table [S, R] stays
in the core's own memory. A block of queries leaves out the keys after its last query, so only its
own square of keys has a causal mask.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from widenet_jax.nn.attention.implementations import centred
from widenet_jax.nn.attention.pallas import (
    HEAD_DIMS,
    LANES,
    LOWEST,
    Block,
    Settings,
    call,
    joined,
    one_ahead,
    per_head,
    turned,
)
from widenet_jax.nn.rules import check_rules, v4_line
from widenet_jax.sharding import device_kind
from widenet_jax.typing import Array

BLOCK = 256  # queries of a block
LONGEST = 512  # T
MOST_KEYS = 5 * LONGEST  # S = M + T: an evaluation's memory is 4 T
MEMORY = 32 << 20  # bytes that a kernel may use
MOST_KEYS_V4 = 1_024  # S of a gradient on a v4, whose cores have 16 MiB of memory
LIMITS = (
    f"it takes T and M in multiples of {LANES}, T of at most {LONGEST}, M + T of at most "
    f"{MOST_KEYS:,}, H of 64 or 128, and N H a multiple of {LANES}; and on a TPU v4 or later "
    "config.model.dtype=bfloat16"
)


def takes(query_shape: tuple[int, ...], keys: int) -> bool:
    """Returns whether the kernel takes queries of [B, T, N, H] and S keys, see LIMITS."""
    _, T, N, H = query_shape
    whole = T % LANES == 0 and keys % LANES == 0
    return whole and T <= LONGEST and keys <= MOST_KEYS and H in HEAD_DIMS and N * H % LANES == 0


def kernel_attend(
    query: Array,  # [B, T, N, H], scaled
    key: Array,  # [B, S, N, H]
    value: Array,  # [B, S, N, H]
    at_query: Array,  # [B, N, T, R]
    at_key: Array,  # [S, R], a constant: its gradient is 0
    first: Array,  # [B] int32, the first key that is not empty
    *,
    interpret: bool,
) -> Array:
    """Computes causal attention with the scores query key + at_query at_key.

    The shape must be one that the kernel `takes`. Nothing is partitioned: see
    `sharding.on_each_device`.

    Args:
      interpret: runs the kernel without a TPU, for tests.

    Returns:
      [B, T, N, H], of the queries' dtype.
    """
    B, T, N, H = query.shape
    heads = LANES // H
    settings = Settings(H, heads, str(query.dtype), True, interpret)
    flat = [x.reshape(*x.shape[:2], N * H) for x in (query, key, value)]
    terms = at_query.reshape(B, N // heads, heads, T, -1)
    empty = jnp.arange(key.shape[1]) < first[:, None]
    hidden = jnp.where(empty, LOWEST, 0).astype(jnp.float32)[:, None]  # [B, 1, S]
    return _attend(*flat, terms, at_key, hidden, settings).reshape(query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(*arrays: Array | Settings) -> Array:
    return _attend_forward(*arrays)[0]


def _attend_trained(*arrays: Array | Settings) -> tuple[Array, tuple]:
    keys = arrays[1].shape[1]
    most = MOST_KEYS_V4 if device_kind() == "TPU v4" else keys
    check_rules([(keys > most, v4_line(MOST_KEYS_V4, keys))])
    return _attend_forward(*arrays)


def _attend_forward(
    query: Array,  # [B, T, N H]
    key: Array,  # [B, S, N H]
    value: Array,  # [B, S, N H]
    at_query: Array,  # [B, N / heads, heads, T, R]
    at_key: Array,  # [S, R]
    hidden: Array,  # [B, 1, S] float32, added to the scores of each key
    settings: Settings,
) -> tuple[Array, tuple]:
    B, T, width = query.shape
    shape = (B, width // settings.width, 2 * settings.heads, T)
    out, softmax = call(
        "relative_forward",
        functools.partial(forward_step, settings),
        (hidden, at_key),
        (query, key, value, at_query),
        (query, jax.ShapeDtypeStruct(shape, jnp.float32)),
        settings,
        MEMORY,
    )
    return out, (query, key, value, at_query, at_key, hidden, out, softmax)


def _attend_backward(settings: Settings, saved: tuple, d_out: Array) -> tuple:
    query, key, value, at_query, at_key, hidden, out, softmax = saved
    *lead, T, R = at_query.shape
    d_terms = jax.ShapeDtypeStruct((*lead, R, T), at_query.dtype)
    *gradients, d_terms = call(
        "relative_backward",
        functools.partial(backward_step, settings),
        (hidden, at_key, centred(at_key, axis=0).T),
        (query, key, value, at_query, out, softmax, d_out),
        (query, key, value, d_terms),
        settings,
        MEMORY,
    )
    return *gradients, d_terms.swapaxes(-1, -2), None, None


_attend.defvjp(_attend_trained, _attend_backward)


def forward_step(settings: Settings, *refs: jax.Ref) -> None:
    """Writes the output [T, 128] and the statistics [2 heads, T] of one grid step."""
    hidden_ref, at_ref, q_ref, k_ref, v_ref, terms_ref, out_ref, softmax_ref = refs
    q, v = q_ref[...], turned(v_ref[...], settings)
    start = scores_of(settings, q, k_ref, at_ref, terms_ref, hidden_ref)
    outs = []
    for block, scores in one_ahead(start, settings.blocks(q.shape[0], BLOCK)):
        largest = scores.max(axis=0, keepdims=True)
        weights = jnp.exp(scores - largest)
        scale = 1 / weights.sum(axis=0, keepdims=True)
        values = v[settings.rows(block.head), : len(scores)]
        outs.append(settings.dot(values, weights.astype(settings.dtype), 1, 0) * scale)
        softmax_ref[2 * block.head : 2 * block.head + 2, block.queries] = jnp.concatenate(
            [largest, scale]
        )
        if block.last:
            out_ref[block.queries, :] = jnp.concatenate(outs).T.astype(out_ref.dtype)
            outs = []


def backward_step(settings: Settings, *refs: jax.Ref) -> None:
    """Writes the gradients of queries, keys, values and the queries' terms of one grid step."""
    hidden_ref, at_ref, centred_at_ref, q_ref, k_ref, v_ref, terms_ref, *refs = refs
    out_ref, softmax_ref, d_out_ref, dq_ref, dk_ref, dv_ref, d_terms_ref = refs
    q, d_out, softmax = q_ref[...], d_out_ref[...], softmax_ref[...]
    values, centred_at = per_head(v_ref[...], settings), centred_at_ref[...]
    exact = k_ref[...].astype(jnp.float32)
    centred_k = turned(exact - exact.mean(axis=0, keepdims=True), settings)
    along = (out_ref[...].astype(jnp.float32) * d_out.astype(jnp.float32)).T  # [128, T]
    q_turned, d_turned = turned(q, settings), turned(d_out, settings)
    score = scores_of(settings, q, k_ref, at_ref, terms_ref, hidden_ref)

    def start(at: Block) -> tuple[Array, Array]:
        scores = score(at)
        seen = values[at.head][: len(scores)]
        return scores, settings.dot(seen, d_out[at.queries], 1, 1)

    dq, dk, dv = [], [None] * settings.heads, [None] * settings.heads
    for block, (scores, d_weights) in one_ahead(start, settings.blocks(q.shape[0], BLOCK)):
        queries, head, _, _ = block
        rows, seen = settings.rows(head), len(scores)
        largest, scale = (softmax[i : i + 1, queries] for i in (2 * head, 2 * head + 1))
        weights = jnp.exp(scores - largest) * scale
        sums = along[rows, queries].sum(axis=0, keepdims=True)
        d_scores = (weights * (d_weights - sums)).astype(settings.dtype)
        # Keys and waves lie on top of each other, so that one product gives both gradients.
        both = jnp.concatenate([centred_k[rows, :seen], centred_at[:, :seen]])
        both = settings.dot(both, d_scores, 1, 0)  # [H + R, size]
        dq.append(both[: settings.head_dim])
        d_terms_ref[head, :, queries] = both[settings.head_dim :].astype(d_terms_ref.dtype)
        dk[head] = grown(dk[head], settings.dot(q_turned[rows, queries], d_scores, 1, 1))
        weights = weights.astype(settings.dtype)
        dv[head] = grown(dv[head], settings.dot(d_turned[rows, queries], weights, 1, 1))
        if block.last:
            dq_ref[queries, :] = jnp.concatenate(dq).T.astype(dq_ref.dtype)
            dq = []
    for ref, parts in ((dk_ref, dk), (dv_ref, dv)):
        ref[...] = joined(parts, settings).astype(ref.dtype)


def scores_of(
    settings: Settings, q: Array, k_ref: jax.Ref, at_ref: jax.Ref, terms_ref: jax.Ref, hidden_ref
) -> Callable[[Block], Array]:
    """Returns the function that computes a block's scores, [keys up to its last query, size]."""
    keys, at_key, hidden = per_head(k_ref[...], settings), at_ref[...], hidden_ref[...]
    S = len(at_key)
    # Keys lie along sublanes. A transposition moves whole tiles of 8 rows.
    of_keys = jnp.broadcast_to(hidden, (8, S)).T[:, :1]

    def scores(at: Block) -> Array:
        before = S - len(q) + at.queries.start
        seen = S - len(q) + at.queries.stop
        by_content = settings.dot(keys[at.head][:seen], q[at.queries], 1, 1)
        by_place = settings.dot(at_key[:seen], terms_ref[at.head, at.queries, :], 1, 1)
        total = by_content + by_place
        square = (seen - before,) * 2
        key, query = (jax.lax.broadcasted_iota(jnp.int32, square, axis) for axis in (0, 1))
        own = jnp.where(key <= query, total[before:], LOWEST)
        return jnp.concatenate([total[:before] + of_keys[:before], own]) if before else own

    return scores


def grown(total: Array | None, part: Array) -> Array:
    """Adds a block's gradient [H, its keys] to those before it, which have no more keys."""
    if total is None:
        return part
    known = total.shape[1]
    return jnp.concatenate([total + part[:, :known], part[:, known:]], axis=1)
