"""Workloads that others measured on TPUs: the rows of `plan.py --calibrate`.

Each row rebuilds the program that was timed, from the source's settings; sources were read in
November 2026. Small calls timed by the host contain 0.1 to 0.3 ms of dispatch. Where the source has
several sizes, the row is their difference, in which the dispatch cancels.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import PartitionSpec as P

from widenet_jax.ops.plan.calibrate import Measurement, Program

Tree = Any
BFLOAT16, FLOAT32, INT32 = jnp.bfloat16, jnp.float32, jnp.int32


def array(*shape: int, dtype: Any = BFLOAT16, sharded: int | None = None) -> jax.ShapeDtypeStruct:
    """Returns a shape; its axis `sharded` is divided among all devices."""
    spec = P(*(["data" if axis == sharded else None for axis in range(len(shape))]))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=spec)


def like(tree: Tree, state: Tree) -> Tree:
    """Gives the arrays of an optimizer's state the shardings of the parameters in `tree`."""
    specs = {leaf.shape: leaf.sharding.spec for leaf in jax.tree.leaves(tree)}
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=specs.get(leaf.shape, P())
        ),
        state,
    )


def gradient(function: Callable[..., jax.Array], count: int = 3) -> Callable[..., Tree]:
    """Returns the gradient of the mean result with respect to the first `count` arguments."""
    return jax.grad(lambda *args: jnp.mean(function(*args)), argnums=tuple(range(count)))


def difference(
    function: Callable[..., Any], args: Callable[[int], tuple], low: int, high: int
) -> list[Program]:
    """Returns the programs of (time at `high` - time at `low`) / (high - low)."""
    weight = 1 / (high - low)
    return [Program(weight, function, args(high)), Program(-weight, function, args(low))]


# Products and copies


def squares(size: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return array(size, size), array(size, size)


def matmul_kernel(x: jax.Array, y: jax.Array, *, blocks: tuple[int, int, int]) -> jax.Array:
    """A plain Pallas matmul with blocks of `blocks` = (rows, contraction, columns)."""
    (m, k), n = x.shape, y.shape[1]
    bm, bk, bn = blocks

    def kernel(x_ref, y_ref, out_ref, sum_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=FLOAT32)

        @pl.when(pl.program_id(2) == k // bk - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), FLOAT32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


def pallas_matmul(*blocks: int) -> list[Program]:
    function = partial(matmul_kernel, blocks=blocks)
    return [Program(1, function, squares(8192)), Program(-1, function, squares(4096))]


# Attention alone: q, k, v [2, 2048, heads, head size]


def heads_args(heads: int, *, bias: bool) -> tuple[jax.ShapeDtypeStruct, ...]:
    """q, k, v, and the bias of the scores or segment ids."""
    other = array(2, heads, 2048, 2048) if bias else array(2, 2048, dtype=INT32)
    return (*[array(2, 2048, heads, 128)] * 3, other)


def plain_attention(q: jax.Array, k: jax.Array, v: jax.Array, other: jax.Array) -> jax.Array:
    """Causal attention with a bias of the scores, or within segments."""
    scores = jnp.einsum("btnh,bsnh->bnts", q * q.shape[-1] ** -0.5, k)
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if other.ndim == 2:
        mask = mask & (other[:, None, :, None] == other[:, None, None, :])
    else:
        scores += other
    scores = jnp.where(mask, scores, -0.7 * float(jnp.finfo(scores.dtype).max))
    weights = jax.nn.softmax(scores.astype(FLOAT32), axis=-1).astype(q.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def by_heads(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, 1, 2)


FLASH_BLOCKS = flash.BlockSizes(
    block_q=512, block_k_major=512, block_k=512, block_b=1,
    block_q_major_dkv=512, block_k_major_dkv=512, block_k_dkv=512, block_q_dkv=512,
    block_k_major_dq=512, block_k_dq=512, block_q_dq=512,
)  # fmt: skip


def flash_attention(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
    """Causal attention with a bias of the scores, by jax's first kernel."""
    scale = q.shape[-1] ** -0.5
    q, k, v = map(by_heads, (q, k, v))
    out = flash.flash_attention(
        q, k, v, ab=bias, causal=True, sm_scale=scale, block_sizes=FLASH_BLOCKS
    )
    return by_heads(out)


def splash_kernel(heads: int, length: int, block: int, *, fused: bool) -> Callable[..., jax.Array]:
    """Returns jax's second kernel: causal, one sequence, [heads, length, head size]."""
    mask = splash.MultiHeadMask([splash.CausalMask((length, length))] * heads)
    of_dq = {} if fused else {"block_q_dq": block, "block_kv_dq": block}
    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block,
        use_fused_bwd_kernel=fused, **of_dq,
    )  # fmt: skip
    return splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)


def splash_attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    """Causal attention within segments, by jax's second kernel."""
    kernel = splash_kernel(q.shape[2], q.shape[1], 512, fused=True)
    q, k, v = map(by_heads, (q * q.shape[-1] ** -0.5, k, v))
    out = jax.vmap(kernel)(q, k, v, segment_ids=splash.SegmentIds(segments, segments))
    return by_heads(out)


def per_head(function: Callable[..., Any], *, bias: bool) -> list[Program]:
    return difference(function, partial(heads_args, bias=bias), 40, 140)


# A decoder of 8 blocks on one chip: multi-query attention, SwiGLU, norms without weights

WIDTH, HEADS, HEAD_SIZE, HIDDEN, VOCAB, LENGTH = 1024, 4, 256, 3072, 32768, 2048


def unit_norm(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def rotate(x: jax.Array) -> jax.Array:
    """Rotary positions of [batch, heads, length, head size], in halves."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-jnp.arange(half, dtype=FLOAT32) / half)
    angles = jnp.outer(jnp.arange(x.shape[-2], dtype=FLOAT32), frequencies)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)


def decoder_attention(params: Tree, x: jax.Array, *, use_splash: bool) -> jax.Array:
    x = unit_norm(x)
    q, k, v = (jnp.einsum("btd,dnh->bnth", x, params[name]) for name in "qkv")
    q, k = unit_norm(rotate(q)), unit_norm(rotate(k))
    if use_splash:
        out = jax.vmap(splash_kernel(HEADS, LENGTH, 1024, fused=False))(q, k, v)
    else:
        k, v = (jnp.repeat(y, HEADS, axis=1) for y in (k, v))
        scores = jnp.einsum("bnth,bnsh->bnts", q, k) * HEAD_SIZE**-0.5
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
        out = jnp.einsum("bnts,bnsh->bnth", weights, v)
    return jnp.einsum("bnth,nhd->btd", out, params["out"])


def decoder_mlp(params: Tree, x: jax.Array) -> jax.Array:
    x = unit_norm(x)
    return (jax.nn.silu(x @ params["gate"]) * (x @ params["up"])) @ params["down"]


def decoder_blocks(blocks: Sequence[Tree], x: jax.Array) -> jax.Array:
    for params in blocks:
        x += decoder_attention(params, x, use_splash=True)
        x += decoder_mlp(params, x)
    return unit_norm(x)


def chunk_loss(hidden: jax.Array, head: jax.Array, labels: jax.Array, dtype: Any) -> jax.Array:
    logits = jnp.einsum("td,dv->tv", hidden, head, preferred_element_type=BFLOAT16).astype(dtype)
    logits = 15 * jnp.tanh(logits / 15)
    return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def decoder_loss(hidden: jax.Array, head: jax.Array, labels: jax.Array, dtype: Any) -> jax.Array:
    """Sums the loss of 8 chunks of tokens; the backward pass recomputes the logits of each."""
    chunks = hidden.reshape(8, -1, WIDTH), labels.reshape(8, -1)
    one = jax.checkpoint(partial(chunk_loss, dtype=dtype))

    def add(total, chunk):
        return total + one(chunk[0], head, chunk[1]), None

    return lax.scan(add, jnp.zeros((), dtype), chunks)[0] / labels.size


def decoder_forward(params: Tree, tokens: jax.Array, labels: jax.Array, *, dtype: Any) -> jax.Array:
    hidden = decoder_blocks(params["blocks"], unit_norm(params["embedding"][tokens]))
    return decoder_loss(hidden, params["head"], labels, dtype)


def decoder_step(
    params: Tree, state: Tree, tokens: jax.Array, labels: jax.Array, *, dtype: Any
) -> Tree:
    """A step of AdamW; gradients of 16 microbatches are added up."""

    def add(total, batch):
        loss, grads = jax.value_and_grad(partial(decoder_forward, dtype=dtype))(params, *batch)
        return jax.tree.map(jnp.add, total, grads), loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, losses = lax.scan(add, zeros, (tokens, labels))
    grads = jax.tree.map(lambda grad: grad / len(tokens), grads)
    updates, state = DECODER_ADAM.update(grads, state, params)
    return optax.apply_updates(params, updates), state, jnp.mean(losses)


DECODER_ADAM = optax.adamw(3e-4, b2=0.95, weight_decay=0.1)


def decoder_block() -> Tree:
    return {
        "q": array(WIDTH, HEADS, HEAD_SIZE),
        "k": array(WIDTH, 1, HEAD_SIZE),
        "v": array(WIDTH, 1, HEAD_SIZE),
        "out": array(HEADS, HEAD_SIZE, WIDTH),
        "gate": array(WIDTH, HIDDEN),
        "up": array(WIDTH, HIDDEN),
        "down": array(HIDDEN, WIDTH),
    }


def decoder_params() -> Tree:
    blocks = [decoder_block() for _ in range(8)]
    return {"blocks": blocks, "embedding": array(VOCAB, WIDTH), "head": array(WIDTH, VOCAB)}


def hidden_states() -> jax.ShapeDtypeStruct:
    return array(4, LENGTH, WIDTH)


def tokens(*batch: int, length: int = LENGTH) -> jax.ShapeDtypeStruct:
    return array(*batch, length, dtype=INT32)


def block_programs() -> list[Program]:
    def args(count):
        return [decoder_block() for _ in range(count)], hidden_states()

    return difference(decoder_blocks, args, 1, 8)


def part_program(function: Callable[..., Any]) -> list[Program]:
    return [Program(1, function, (decoder_block(), hidden_states()))]


def head_program() -> list[Program]:
    args = hidden_states(), array(WIDTH, VOCAB), tokens(4)
    return [Program(1, partial(decoder_loss, dtype=BFLOAT16), args)]


def microbatch(*, backward: bool) -> list[Program]:
    function = partial(decoder_forward, dtype=BFLOAT16)
    function = jax.value_and_grad(function) if backward else function
    return [Program(1, function, (decoder_params(), tokens(4), tokens(4)))]


def decoder_steps(dtype: Any = BFLOAT16) -> list[Program]:
    params = decoder_params()
    state = like(params, jax.eval_shape(DECODER_ADAM.init, params))
    args = params, state, tokens(16, 4), tokens(16, 4)
    return [Program(1, partial(decoder_step, dtype=dtype), args)]


# Language models whose parameters are sharded over all devices, with recomputed blocks in a scan


def over_devices(x: jax.Array) -> jax.Array:
    """Keeps a batch divided among the devices."""
    return lax.with_sharding_constraint(x, P("data"))


def as_bfloat16(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(BFLOAT16), tree)


def mean_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


FSDP_ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, weight_decay=0.1))


def fsdp_step(
    loss: Callable[..., jax.Array], params: Tree, state: Tree, tokens: jax.Array, labels: jax.Array
) -> Tree:
    value, grads = jax.value_and_grad(loss)(params, tokens, labels)
    updates, state = FSDP_ADAM.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


def fsdp_steps(loss: Callable[..., jax.Array], params: Tree, batch: int, length: int) -> list:
    state = like(params, jax.eval_shape(FSDP_ADAM.init, params))
    ids = array(batch, length, dtype=INT32, sharded=0)
    step = jax.jit(partial(fsdp_step, loss), donate_argnums=(0, 1))
    return [Program(1, step, (params, state, ids, ids))]


def scale_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = jnp.mean(jnp.square(x.astype(FLOAT32)), axis=-1, keepdims=True)
    return (x * lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale


def parallel_block(x: jax.Array, params: Tree) -> jax.Array:
    """Attention without a mask, by jax's first kernel, beside an MLP with relu."""
    params = as_bfloat16(params)
    y = over_devices(scale_norm(x, params["norm"]))
    q, k, v = (jnp.einsum("btd,dnh->btnh", y, params[name]) for name in "qkv")
    q, k = scale_norm(q, params["q_norm"]), scale_norm(k, params["k_norm"])
    kernel = partial(flash.flash_attention, sm_scale=1.0, block_sizes=FLASH_BLOCKS)
    out = jax.shard_map(kernel, in_specs=P("data"), out_specs=P("data"), check_vma=False)(
        *map(by_heads, (q, k, v))
    )
    x += jnp.einsum("btnh,nhd->btd", by_heads(out), params["out"])
    return over_devices(x + jax.nn.relu(y @ params["up"]) @ params["down"])


def parallel_loss(params: Tree, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    """Embedding by a product with one-hot rows; logits in float32 by the same matrix."""
    embedding = params["embedding"]
    one_hot = jax.nn.one_hot(tokens, len(embedding), dtype=BFLOAT16)
    x = over_devices(one_hot @ embedding.astype(BFLOAT16))
    block = jax.checkpoint(lambda x, one: (parallel_block(x, one), None))
    x, _ = lax.scan(block, x, params["blocks"])
    x = scale_norm(x, params["norm"].astype(BFLOAT16)).astype(FLOAT32)
    return mean_loss(over_devices(x @ embedding.T), labels)


def parallel_model(*, width: int, layers: int, batch: int) -> list[Program]:
    weight = partial(array, dtype=FLOAT32)
    blocks = {
        **{name: weight(layers, width, 32, 256, sharded=1) for name in "qkv"},
        "out": weight(layers, 32, 256, width, sharded=3),
        "up": weight(layers, width, 32768, sharded=1),
        "down": weight(layers, 32768, width, sharded=2),
        "norm": weight(layers, width),
        "q_norm": weight(layers, 256),
        "k_norm": weight(layers, 256),
    }
    embedding = weight(32768, width, sharded=1)
    params = {"blocks": blocks, "embedding": embedding, "norm": weight(width)}
    return fsdp_steps(parallel_loss, params, batch, 2048)


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias


def gpt2_block(x: jax.Array, params: Tree) -> jax.Array:
    """A block of GPT-2 with plain attention, all in bfloat16."""
    params, length = as_bfloat16(params), x.shape[1]
    y = over_devices(layer_norm(x, *params["norm_1"]))
    q, k, v = jnp.einsum("btd,dcnh->cbtnh", y, params["qkv"]) + params["qkv_bias"][:, None, None]
    scores = jnp.einsum("btnh,bsnh->bnts", q * q.shape[-1] ** -0.5, k)
    mask = jnp.tril(jnp.ones((length, length), scores.dtype))
    weights = jax.nn.softmax(scores + (1 - mask) * -1e9)
    out = jnp.einsum("bnts,bsnh->btnh", weights, v)
    x += jnp.einsum("btnh,nhd->btd", out, params["out"]) + params["out_bias"]
    y = jax.nn.gelu(layer_norm(x, *params["norm_2"]) @ params["up"] + params["up_bias"])
    return over_devices(x + y @ params["down"] + params["down_bias"])


def gpt2_loss(params: Tree, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    embedding = params["embedding"].astype(BFLOAT16)
    x = over_devices(embedding[tokens] + params["positions"].astype(BFLOAT16))
    block = jax.checkpoint(lambda x, one: (gpt2_block(x, one), None))
    x, _ = lax.scan(block, x, params["blocks"])
    logits = over_devices(layer_norm(x, *as_bfloat16(params["norm"])) @ embedding.T)
    return mean_loss(logits.astype(FLOAT32), labels)


def gpt2(*, layers: int, width: int, batch: int) -> list[Program]:
    weight, heads = partial(array, dtype=FLOAT32), width // 64
    pair = (weight(layers, width, sharded=1),) * 2
    blocks = {
        "qkv": weight(layers, width, 3, heads, 64, sharded=1),
        "qkv_bias": weight(layers, 3, heads, 64),
        "out": weight(layers, heads, 64, width, sharded=3),
        "out_bias": weight(layers, width, sharded=1),
        "up": weight(layers, width, 4 * width, sharded=1),
        "up_bias": weight(layers, 4 * width),
        "down": weight(layers, 4 * width, width, sharded=2),
        "down_bias": weight(layers, width, sharded=1),
        "norm_1": pair,
        "norm_2": pair,
    }
    params = {
        "blocks": blocks,
        "embedding": weight(50257, width, sharded=1),
        "positions": weight(1024, width, sharded=1),
        "norm": (weight(width, sharded=0),) * 2,
    }
    return fsdp_steps(gpt2_loss, params, batch, 1024)


# A convolutional network


class Bottleneck(nn.Module):
    """A residual block of three convolutions."""

    filters: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = partial(nn.Conv, use_bias=False, dtype=BFLOAT16)
        norm = partial(nn.BatchNorm, use_running_average=False, dtype=BFLOAT16)
        y = nn.relu(norm()(conv(self.filters, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.filters, (3, 3), self.stride)(y)))
        y = norm()(conv(4 * self.filters, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.filters, (1, 1), self.stride)(x))
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """ResNet-50 for 1,000 classes."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(64, (7, 7), 2, padding=3, use_bias=False, dtype=BFLOAT16)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False, dtype=BFLOAT16)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                x = Bottleneck(64 * 2**stage, 1 + (stage > 0 and block == 0))(x)
        return nn.Dense(1000, dtype=BFLOAT16)(jnp.mean(x, axis=(1, 2))).astype(FLOAT32)


SGD = optax.sgd(0.1, momentum=0.9, nesterov=True)


def resnet_step(variables: Tree, state: Tree, images: jax.Array, labels: jax.Array) -> Tree:
    def loss(params):
        held = variables | {"params": params}
        logits, changed = ResNet50().apply(held, images, mutable="batch_stats")
        kernels = [x for x in jax.tree.leaves(params) if x.ndim > 1]
        decay = 0.5e-4 * sum(jnp.sum(jnp.square(x)) for x in kernels)
        return mean_loss(logits, labels) + decay, changed

    grads, changed = jax.grad(loss, has_aux=True)(variables["params"])
    updates, state = SGD.update(grads, state)
    return {"params": optax.apply_updates(variables["params"], updates), **changed}, state


def resnet_steps() -> list[Program]:
    images = array(128, 224, 224, 3)
    variables = jax.eval_shape(lambda: ResNet50().init(jax.random.key(0), jnp.zeros(images.shape)))
    state = jax.eval_shape(SGD.init, variables["params"])
    args = (*like({}, (variables, state)), images, array(128, dtype=INT32))
    return [Program(1, resnet_step, args)]


RECIPES = "github.com/AI-Hypercomputer/tpu-recipes microbenchmarks/README.md, 2025-04-16"
MATMUL = "github.com/jax-ml/jax docs/pallas/tpu/matmul.ipynb at 1082251c"
AXLEARN = "github.com/apple/axlearn common/flash_attention/tpu_attention_benchmark.py at "
AXLEARN_V4, AXLEARN_V5P = AXLEARN + "6789f847, 2023-10-18", AXLEARN + "a5f0b462, 2024-10-02"
TPUCHAT = "github.com/vorushin/tpuchat 05_tpu_perf.py and LOG.md, 2026-02"
BLOG = "vorushin.github.io/blog/llm-pretraining-tpu-v6e-50usd, 2026-02-22"
MAXTEXT = "github.com/AI-Hypercomputer/maxtext README.md at 9bc243c95, 2023-10-27"
LEVANTER = "github.com/stanford-crfm/levanter docs/Levanter-1.0-Release.md, 2023-06-16"
FLAX = "github.com/google/flax examples/imagenet/README.md at 82e97982, 2021-05-27"
TRACE, HOST, LOOP = "device's trace", "host's clock", "training loop"
SLOPE = "host's clock, slope over 40 to 140 heads"
EMPTY, LESS = 0.15, "host's clock less 0.15 ms, a product of 256 cubed"
SMALL = "up to 0.4 ms are dispatch: a product of 8192 cubed takes 1.72 ms there, 1.33 by a trace"
GUESSED = "guessed: 2 sequences a core, and MFU counted as (6 N + 12 L D T) a token"


ROWS = [
    Measurement(
        "matmul", "v6e-1", 1.328756, TRACE, RECIPES,
        lambda: [Program(1, jnp.matmul, squares(8192))],
    ),
    Measurement(
        "copy", "v6e-1", 0.049359, TRACE, RECIPES,
        lambda: [Program(1, jnp.copy, (array(4096, 4096),))],
        note="guessed: the array's shape, of 16,777,216 elements",
    ),
    Measurement(
        "matmul", "v5e-1", 6.0471 - 0.8273, "host's clock, 8192 less 4096", MATMUL,
        lambda: [Program(1, jnp.matmul, squares(8192)), Program(-1, jnp.matmul, squares(4096))],
    ),
    Measurement(
        "matmul_kernel", "v5e-1", 6.0994 - 0.8891, "host's clock, 8192 less 4096", MATMUL,
        partial(pallas_matmul, 512, 1024, 1024),
    ),
    Measurement(
        "matmul_small_blocks", "v5e-1", 91.8358 - 11.7715, "host's clock, 8192 less 4096", MATMUL,
        partial(pallas_matmul, 128, 128, 128),
        outside="a step of the grid takes 0.35 us however small; the price does not know",
    ),
    Measurement(
        "attention", "v4-8", 0.091, SLOPE, AXLEARN_V4,
        lambda: per_head(plain_attention, bias=True),
    ),
    Measurement(
        "attention_gradient", "v4-8", 0.226, SLOPE, AXLEARN_V4,
        lambda: per_head(gradient(plain_attention), bias=True),
    ),
    Measurement(
        "attention_flash", "v4-8", 0.031, SLOPE, AXLEARN_V4,
        lambda: per_head(flash_attention, bias=True), computed=10 / 16,
    ),
    Measurement(
        "attention_flash_gradient", "v4-8", 0.166, SLOPE, AXLEARN_V4,
        lambda: per_head(gradient(flash_attention), bias=True), computed=10 / 16,
    ),
    Measurement(
        "attention", "v5p-8", 0.022, SLOPE, AXLEARN_V5P,
        lambda: per_head(plain_attention, bias=False),
    ),
    Measurement(
        "attention_gradient", "v5p-8", 0.089, SLOPE, AXLEARN_V5P,
        lambda: per_head(gradient(plain_attention), bias=False),
    ),
    Measurement(
        "attention_splash", "v5p-8", 0.013, SLOPE, AXLEARN_V5P,
        lambda: per_head(splash_attention, bias=False), computed=10 / 16,
    ),
    Measurement(
        "attention_splash_gradient", "v5p-8", 0.044, SLOPE, AXLEARN_V5P,
        lambda: per_head(gradient(splash_attention), bias=False), computed=10 / 16,
    ),
    Measurement(
        "decoder_mlp", "v6e-1", 0.37 - EMPTY, LESS, TPUCHAT, lambda: part_program(decoder_mlp),
        outside=SMALL,
    ),
    Measurement(
        "decoder_attention", "v6e-1", 0.58 - EMPTY, LESS, TPUCHAT,
        lambda: part_program(partial(decoder_attention, use_splash=False)), outside=SMALL,
    ),
    Measurement(
        "decoder_block", "v6e-1", (3.85 - 0.72) / 7, "host's clock, (8 blocks less 1) / 7", TPUCHAT,
        block_programs, computed=3 / 4,
    ),
    Measurement(
        "decoder_head", "v6e-1", 1.28 - EMPTY, LESS, TPUCHAT, head_program, outside=SMALL,
    ),
    Measurement(
        "decoder_forward", "v6e-1", 4.73 - EMPTY, LESS, TPUCHAT, lambda: microbatch(backward=False),
        computed=3 / 4,
    ),
    Measurement(
        "decoder_gradient", "v6e-1", 18.45 - EMPTY, LESS, TPUCHAT,
        lambda: microbatch(backward=True), computed=3 / 4,
    ),
    Measurement(
        "decoder_step", "v6e-1", 292.7, HOST, TPUCHAT, decoder_steps, computed=3 / 4,
    ),
    Measurement(
        "decoder_step", "v5e-1", 880.7, LOOP, BLOG, partial(decoder_steps, FLOAT32),
        computed=3 / 4,
    ),
    Measurement(
        "dense_16b", "v5e-256", 10_658, LOOP, MAXTEXT,
        lambda: parallel_model(width=5120, layers=32, batch=6 * 256), devices=256,
        note="from 120 TFLOP/s, which is rounded",
    ),
    Measurement(
        "gpt2_345m", "v3-256", 230, LOOP, LEVANTER,
        lambda: gpt2(layers=24, width=1024, batch=512), devices=256, note=GUESSED,
    ),
    Measurement(
        "gpt2_750m", "v3-256", 445, LOOP, LEVANTER,
        lambda: gpt2(layers=36, width=1280, batch=512), devices=256, note=GUESSED,
    ),
    Measurement(
        "resnet_50", "v3-8", 126.6, "whole run", FLAX, resnet_steps,
        note="without the sum of gradients over cores",
        outside="an upper bound: contains evaluation and input",
    ),
]  # fmt: skip
