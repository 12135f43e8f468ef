"""Benchmark of dispatch methods: one MoE layer, forward and backward."""

import itertools
from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.ops.benchmark.timing import median_seconds

# Sizes of an MoE layer and its input: B, T, examples that are routed together, E, K, D, F.
DispatchSize = namedtuple(
    "DispatchSize", "images tokens examples_per_group experts selected embed_dim mlp_dim"
)


def sizes(**choices: Sequence[int]) -> Iterator[DispatchSize]:
    """Yields every combination of the choices with whole groups and K <= E."""
    for values in itertools.product(*choices.values()):
        size = DispatchSize(**dict(zip(choices, values, strict=True)))
        if size.images % size.examples_per_group == 0 and size.selected <= size.experts:
            yield size


def dispatch_row(method: str, size: DispatchSize, *, dtype: str, rounds: int) -> dict[str, Any]:
    """Times a layer with the dispatch `method`, a key of `moe.dispatch.DISPATCHERS`.

    Returns:
      {method, the fields of `size`, dtype, ms, tflops}. `tflops` is the experts' useful rate in
      1e12 FLOP/s: K experts per token, forward and backward, without padding and dispatch.

    Raises:
      BadInputError: an unknown method.
    """
    layer = MoeLayer(
        mlp_dim=size.mlp_dim,
        num_experts=size.experts,
        num_selected_experts=size.selected,
        capacity_factor=1.2,
        capacity_factor_eval=2.0,
        examples_per_group=size.examples_per_group,
        router={"name": "top_k", "noise_std": 1.0},
        losses={"load_balance": 0.01, "over": "group"},
        dispatch=method,
        dtype=jnp.dtype(dtype),
    )
    x = jax.random.normal(jax.random.key(0), (size.images, size.tokens, size.embed_dim), dtype)
    rngs = {"router": jax.random.key(1)}
    params = jax.jit(lambda: layer.init({"params": jax.random.key(2)} | rngs, x, train=True))()

    def loss(params: Any, x: jax.Array) -> jax.Array:
        output = layer.apply(params, x, train=True, rngs=rngs)
        return jnp.square(output.y.astype(jnp.float32)).mean() + output.aux["loss"]

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))
    seconds = median_seconds(lambda: gradients(params, x), rounds=rounds)
    tokens = size.images * size.tokens
    flops = 3 * 4 * tokens * size.selected * size.embed_dim * size.mlp_dim
    return {
        "method": method,
        **size._asdict(),
        "dtype": dtype,
        "ms": 1e3 * seconds,
        "tflops": flops / seconds / 1e12,
    }
