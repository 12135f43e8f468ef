"""Attention as one Pallas kernel for TPUs in each direction.

XLA writes the scores [B, N, T, T] to memory and reads them back in several passes. Here a grid step
holds the whole rows of one example and 128 lanes of heads (two heads of 64) in the core's own
memory, and nothing of the scores' size leaves it. What makes it fast:

  - Operands are [B, T, N H], as the projections leave them: no copies around the kernel. To
    multiply one head of 128 lanes, the other heads' lanes of keys and values are set to zero.
  - Scores lie as [keys, queries]: maximum and sum run over sublanes, and a query's statistics lie
    along lanes.
  - Products with H columns are computed as [H, T], with the scores as the matrix unit's weights,
    which takes half the cycles of [T, H] at H = 64.
  - The next head's scores are multiplied before this head's softmax, so that the matrix unit and
    the vector unit work at the same time.

Scores and softmax are float32; the forward pass keeps each query's largest score and one over the
sum of its exponentials (Dao et al. 2022, arXiv:2205.14135, section 3.1).
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from widenet_jax.typing import Array

LANES = 128
HEAD_DIMS = (64, 128)
LONGEST = 1024  # T: longer rows do not fit into a core's memory
WHOLE = 512  # T: longer rows are processed in blocks of queries
LIMITS = (
    f"it takes T of at most {LONGEST:,} ({WHOLE} on v2 and v3, or of float32), as many keys as "
    f"queries, H of 64 or 128, and N H a multiple of {LANES}"
)
LOWEST = -1e30  # the score of a hidden key; finite, so that a query without any key is not NaN


class Block(NamedTuple):
    """Some queries of one head of a grid step; `lanes` are the 128 that the head is part of."""

    queries: slice
    head: int
    lanes: slice
    last: bool  # of the heads of its lanes


class Settings(NamedTuple):
    """What the kernels need to know beside their operands.

    Attributes:
      head_dim: H.
      heads: of a grid step.
      dtype: of the products' operands.
      turned: whether the gradients of keys and values are computed as [H, T].
      interpret: whether the kernel runs in JAX's interpreter, for tests on a CPU.
      causal: whether queries see earlier keys and their own only.
    """

    head_dim: int
    heads: int
    dtype: str
    turned: bool
    interpret: bool
    causal: bool = False

    def dot(self, a: Array, b: Array, axis_a: int, axis_b: int) -> Array:
        """Multiplies two matrices over the named axes, with float32 sums."""
        if self.interpret:  # XLA's CPU backend lacks some products of bfloat16; these are as exact
            a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        dims = (((axis_a,), (axis_b,)), ((), ()))
        return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)

    @property
    def width(self) -> int:
        """Lanes of a grid step."""
        return self.heads * self.head_dim

    def rows(self, head: int) -> slice:
        """Returns the rows of a head in a transposed operand."""
        return slice(head * self.head_dim, (head + 1) * self.head_dim)

    def blocks(self, T: int, size: int) -> list[Block]:
        """Returns all blocks of at most `size` queries, the heads of the same queries together."""
        shared = LANES // self.head_dim  # heads of the same lanes
        return [
            Block(slice(start, min(start + size, T)), head, lanes, head % shared == shared - 1)
            for start in range(0, T, size)
            for head in range(self.heads)
            for lanes in [slice(head // shared * LANES, (head // shared + 1) * LANES)]
        ]


def takes(shape: tuple[int, ...], *, float32_only: bool) -> bool:
    """Returns whether the kernel takes queries, keys and values of [B, T, N, H], see LIMITS.

    `float32_only`: whether operands are float32: long rows do not fit a TPU's memory then.
    """
    _, T, N, H = shape
    longest = WHOLE if float32_only else LONGEST
    return longest >= T and H in HEAD_DIMS and N * H % LANES == 0


def hidden_keys(mask: Array | None, segment_ids: Array | None) -> Array | None:
    """Returns what hides keys: [B, 1, T] float32, added to the scores of each key, or [B, 2, T].

    The latter holds a number of each key and of each query, which see each other where these are
    equal. It has the segments; no query has a masked key's number. None: all keys are visible.
    """
    if segment_ids is None:
        return None if mask is None else jnp.where(mask, 0, LOWEST).astype(jnp.float32)[:, None]
    keys = segment_ids if mask is None else jnp.where(mask, segment_ids, -1)
    return jnp.stack([keys, segment_ids], axis=1).astype(jnp.float32)


def kernel_attend(
    query: Array,  # [B, T, N, H], already scaled by 1/sqrt(H)
    key: Array,  # [B, T, N, H]
    value: Array,  # [B, T, N, H]
    hidden: Array | None,  # [B, 1 or 2, T] float32, see `hidden_keys`
    *,
    float32_only: bool,
    causal: bool = False,
    interpret: bool,
) -> Array:
    """Computes softmax(query key^T) value for each head of each example.

    The shape must be one that the kernel `takes`. Nothing is partitioned: see
    `sharding.on_each_device`.

    Args:
      float32_only: for a TPU v2 or v3, whose kernels multiply float32 operands only.
      causal: whether queries see earlier keys and their own only.
      interpret: runs the kernel without a TPU, for tests.

    Returns:
      [B, T, N, H], of the queries' dtype.
    """
    *lead, N, H = query.shape
    dtype = jnp.float32 if float32_only else query.dtype
    flat = [x.reshape(*lead, N * H).astype(dtype) for x in (query, key, value)]
    # Two groups of 128 lanes a step keep the units busier; long rows leave no memory for them.
    groups = 2 if N * H % (2 * LANES) == 0 and query.shape[1] <= WHOLE else 1
    heads = groups * LANES // H
    settings = Settings(H, heads, str(jnp.dtype(dtype)), not float32_only, interpret, causal)
    return _attend(*flat, hidden, settings).reshape(query.shape).astype(query.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(
    query: Array, key: Array, value: Array, hidden: Array | None, settings: Settings
) -> Array:
    return _attend_forward(query, key, value, hidden, settings)[0]


def _attend_forward(
    query: Array, key: Array, value: Array, hidden: Array | None, settings: Settings
) -> tuple[Array, tuple]:
    B, T, width = query.shape
    statistics = jax.ShapeDtypeStruct(
        (B, width // settings.width, 2 * settings.heads, T), jnp.float32
    )
    hides = () if hidden is None else (hidden,)
    step = functools.partial(forward_step, settings, bool(hides))
    operands, results = (query, key, value), (query, statistics)
    out, softmax = call("attend_forward", step, hides, operands, results, settings)
    return out, (query, key, value, out, softmax, hidden)


def _attend_backward(settings: Settings, saved: tuple, d_out: Array) -> tuple:
    *operands, hidden = saved
    hides = () if hidden is None else (hidden,)
    step = functools.partial(backward_step, settings, bool(hides))
    operands.append(d_out)
    gradients = call("attend_backward", step, hides, operands, operands[:3], settings)
    return *gradients, None


_attend.defvjp(_attend_forward, _attend_backward)


def call(
    name: str,
    step: Callable,
    constants: tuple[Array, ...],
    operands: tuple[Array, ...],
    results: tuple,
    settings: Settings,
    memory: int | None = None,
) -> list[Array]:
    """Calls `step(*refs)` for every example and the heads of a grid step.

    Args:
      constants: the same for all heads: [B, rows, S] of an example, or [rows, columns] of all.
      operands, results: [B, rows, N H], or [B, N / heads, ...].
      memory: bytes of the core's own memory that a kernel may use; None: the compiler's default.
    """
    B, _, width = operands[0].shape

    def constant(x: Array) -> pl.BlockSpec:
        if x.ndim == 2:
            return pl.BlockSpec(x.shape, lambda b, n: (0, 0))
        return pl.BlockSpec((None, *x.shape[1:]), lambda b, n: (b, 0, 0))

    def spec(x: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
        if x.ndim == 3:
            return pl.BlockSpec((None, x.shape[1], settings.width), lambda b, n: (b, 0, n))
        rest = x.shape[2:]
        return pl.BlockSpec((None, None, *rest), lambda b, n: (b, n, *(0 for _ in rest)))

    return pl.pallas_call(
        step,
        grid=(B, width // settings.width),
        in_specs=[*map(constant, constants), *map(spec, operands)],
        out_specs=[spec(x) for x in results],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=memory
        ),
        interpret=settings.interpret,
        name=name,
    )(*constants, *operands)


def forward_step(settings: Settings, hides: bool, *refs: jax.Ref) -> None:
    """Writes the output [T, width] and the statistics [2 heads, T] of one grid step."""
    hide, (q_ref, k_ref, v_ref, out_ref, softmax_ref) = hiding(settings, hides, refs)
    q, keys, v = q_ref[...], per_head(k_ref[...], settings), turned(v_ref[...], settings)
    outs = []
    for block, scores in one_ahead(
        lambda at: hide(settings.dot(keys[at.head], q[at.queries, at.lanes], 1, 1), at),
        settings.blocks(q.shape[0], WHOLE),
    ):
        largest = scores.max(axis=0, keepdims=True)
        weights = jnp.exp(scores - largest)
        scale = 1 / weights.sum(axis=0, keepdims=True)
        out = settings.dot(v[settings.rows(block.head)], weights.astype(settings.dtype), 1, 0)
        outs.append(out * scale)  # [H, size]
        softmax_ref[2 * block.head : 2 * block.head + 2, block.queries] = jnp.concatenate(
            [largest, scale]
        )
        if block.last:
            joined = jnp.concatenate(outs).T
            out_ref[block.queries, block.lanes] = joined.astype(out_ref.dtype)
            outs = []


def backward_step(settings: Settings, hides: bool, *refs: jax.Ref) -> None:
    """Writes the gradients of queries, keys and values, [T, width] each, of one grid step."""
    hide, refs = hiding(settings, hides, refs)
    q, k, v, out, softmax, d_out = (ref[...] for ref in refs[:6])
    dq_ref, dk_ref, dv_ref = refs[6:]
    keys, values = per_head(k, settings), per_head(v, settings)
    # The gradient of a query's scores sums to zero up to rounding: see `attend_xla`.
    exact = k.astype(jnp.float32)
    centred = turned(exact - exact.mean(axis=0, keepdims=True), settings)
    along = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).T  # [width, T]
    T, dq = q.shape[0], []
    dk, dv = [0.0] * settings.heads, [0.0] * settings.heads
    if settings.turned:
        q_turned, d_turned = turned(q, settings), turned(d_out, settings)
    for block, (scores, d_weights) in one_ahead(
        lambda at: (
            hide(settings.dot(keys[at.head], q[at.queries, at.lanes], 1, 1), at),
            settings.dot(values[at.head], d_out[at.queries, at.lanes], 1, 1),
        ),
        settings.blocks(T, T if T <= WHOLE else WHOLE // 2),
    ):
        queries, head, lanes, _ = block
        rows = settings.rows(head)
        largest, scale = (softmax[i : i + 1, queries] for i in (2 * head, 2 * head + 1))
        weights = jnp.exp(scores - largest) * scale
        sums = along[rows, queries].sum(axis=0, keepdims=True)
        d_scores = (weights * (d_weights - sums)).astype(settings.dtype)
        weights = weights.astype(settings.dtype)
        dq.append(settings.dot(centred[rows], d_scores, 1, 0))  # [H, size]
        if settings.turned:
            dk[head] += settings.dot(q_turned[rows, queries], d_scores, 1, 1)  # [H, T]
            dv[head] += settings.dot(d_turned[rows, queries], weights, 1, 1)
        else:
            dk[head] += settings.dot(d_scores, q[queries, lanes], 1, 0)  # [T, 128]
            dv[head] += settings.dot(weights, d_out[queries, lanes], 1, 0)
        if block.last:
            dq_ref[queries, lanes] = jnp.concatenate(dq).T.astype(dq_ref.dtype)
            dq = []
    for ref, parts in ((dk_ref, dk), (dv_ref, dv)):
        ref[...] = joined(parts, settings).astype(ref.dtype)


def one_ahead(start: Callable[[Block], Array], blocks: list[Block]) -> Iterator[tuple]:
    """Yields (block, start(block)), and starts the next block first."""
    begun = start(blocks[0])
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        now, begun = begun, start(following) if following else None
        yield block, now


def hiding(settings: Settings, hides: bool, refs: tuple) -> tuple[Callable, tuple]:
    """Returns the function that hides keys in scores [T, size] of a block, and the other refs."""
    if settings.causal:
        hide, refs = hiding(settings._replace(causal=False), hides, refs)
        return lambda scores, block: hide(later_hidden(scores, block), block), refs
    if not hides:
        return lambda scores, block: scores, refs
    hidden, *refs = refs
    rows, T = hidden.shape
    # Keys lie along sublanes. A transposition moves whole tiles of 8 rows.
    of_keys = jnp.broadcast_to(hidden[0:1], (8, T)).T[:, :1]
    if rows == 1:
        return lambda scores, block: scores + of_keys, tuple(refs)
    of_queries = hidden[1:2]
    return (
        lambda scores, block: jnp.where(of_keys == of_queries[:, block.queries], scores, LOWEST),
        tuple(refs),
    )


def later_hidden(scores: Array, block: Block) -> Array:
    """Hides the keys after each query in scores [T, size] of a block."""
    key, query = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    return jnp.where(key <= query + block.queries.start, scores, LOWEST)


def per_head(x: Array, settings: Settings) -> list[Array]:
    """Returns the 128 lanes [T, 128] of each head in x [T, width], other heads' lanes set to 0."""
    exact, H = x.astype(jnp.float32), settings.head_dim
    lane = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], LANES), 1)
    parts = []
    for head in range(settings.heads):
        first = head * H // LANES * LANES
        part = exact[:, first : first + LANES]
        if H < LANES:
            part = jnp.where((lane < H) == (head * H == first), part, 0)
        parts.append(part.astype(settings.dtype))
    return parts


def turned(x: Array, settings: Settings) -> Array:
    """Transposes x [T, width], in float32, which every generation can."""
    return x.astype(jnp.float32).T.astype(settings.dtype)


def joined(parts: list[Array], settings: Settings) -> Array:
    """Joins the heads' gradients to [T, width]."""
    if settings.turned:
        return jnp.concatenate(parts).T
    if settings.head_dim < LANES:
        lane = jax.lax.broadcasted_iota(jnp.int32, parts[0].shape, 1)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [jnp.where(lane < settings.head_dim, *pair) for pair in pairs]
    return jnp.concatenate(parts, axis=1)
