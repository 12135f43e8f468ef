"""Attention alone on TPUs, forward and backward, by schedule: our methods, and JAX's.

  python scripts/compare/attention.py v3-8 v4-8 v5e-4 v5p-8 v6e-4

16 rows and 12 heads of 64, bfloat16, on one device. Alone, the arrays are [B, T, N H]; a layer has
the projections too, which write and read in the order that suits the method. Needs libtpu and no
TPU.
"""

import sys
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.nn.attention.full import MultiHeadAttention
from widenet_jax.nn.attention.implementations import attend
from widenet_jax.ops.plan.compile import compile_lowered, tpu_devices
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.pricing import price_module
from widenet_jax.ops.plan.topology import Topology, parse_topology
from widenet_jax.sharding import build_mesh

B, N, H = 16, 12, 64
LENGTHS = (196, 512)


def with_jax(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    mask = None if mask is None else mask[:, None, None]
    return jax.nn.dot_product_attention(query, key, value, mask=mask, scale=1.0)


METHODS = {
    "JAX's": with_jax,
    "xla": partial(attend, implementation="xla"),
    "pallas": partial(attend, implementation="pallas"),
}


def milliseconds(topology: Topology, function: Callable, *shapes: jax.ShapeDtypeStruct) -> float:
    """Returns the time of `function` of these arrays and its gradients."""

    def run(d_out, *arrays):
        out, pull = jax.vjp(function, *arrays)
        return out, pull(d_out)

    mesh = build_mesh({"fsdp": 1, "expert": 1}, tpu_devices(topology)[:1])
    place = NamedSharding(mesh, P())
    with jax.set_mesh(mesh):
        out = jax.eval_shape(function, *shapes)
        arrays = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), (out, *shapes)
        )
        step = compile_lowered(jax.jit(run).lower(*arrays))
    return sum(price.ms for price in price_module(parse(step.hlo), step.schedules, topology))


def alone(topology: Topology, method: str, length: int, *, masked: bool) -> float:
    """Returns the time of attention by itself."""
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)

    def run(query, key, value, mask):
        heads = (x.reshape(B, length, N, H) for x in (query, key, value))
        out = METHODS[method](*heads, mask=mask > 0 if masked else None)
        return out.reshape(B, length, N * H)

    return milliseconds(topology, run, *[shape((B, length, N * H))] * 3, shape((B, length)))


def layer(topology: Topology, method: str, length: int) -> float:
    """Returns the time of attention with its projections."""
    tpu_devices(topology)  # before JAX loads libtpu without the flags of a plan
    module = MultiHeadAttention(N, dtype=jnp.bfloat16, implementation=method)
    x = jax.ShapeDtypeStruct((B, length, N * H), jnp.bfloat16)
    variables = jax.eval_shape(lambda x: module.init(jax.random.key(0), x, train=False), x)

    def run(variables, x):
        return module.apply(variables, x, train=False)[0]

    return milliseconds(topology, run, variables, x)


ROWS = [
    *((f"{name}, alone", partial(alone, method=name, masked=False)) for name in METHODS),
    *((f"{name}, alone, a mask", partial(alone, method=name, masked=True)) for name in METHODS),
    *((f"{name}, a layer", partial(layer, method=name)) for name in ("xla", "pallas")),
]


def main(tpus: list[str]) -> None:
    print(f"| T | | {' | '.join(tpus)} |\n|---|---|{'---|' * len(tpus)}")
    for length in LENGTHS:
        for name, time in ROWS:
            cells = (f"{time(parse_topology(tpu), length=length):.3f}" for tpu in tpus)
            print(f"| {length} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["v5e-4"])
