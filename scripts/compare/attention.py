"""Attention alone on TPUs, forward and backward, by schedule: ours, JAX's, and other choices.

  python scripts/compare/attention.py v3-8 v4-8 v5e-4 v5p-8 v6e-4

16 rows and 12 heads of 64, bfloat16, on one device. Alone, the arrays are [B, T, N H]; a layer has
the projections too, which write and read in the order that suits the method. Relative attention is
a layer of WT-B, 8 rows after as long a memory. Needs libtpu and no TPU.
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.config.parser import exit_code_of
from widenet_jax.errors import BadInputError
from widenet_jax.nn.attention import implementations, relative
from widenet_jax.nn.attention.distances import distance_basis
from widenet_jax.nn.attention.full import MultiHeadAttention
from widenet_jax.nn.attention.implementations import attend
from widenet_jax.nn.attention.relative import RelativeAttention
from widenet_jax.ops.plan.compile import compile_lowered, tpu_devices
from widenet_jax.ops.plan.planner import price_step
from widenet_jax.ops.plan.topology import Topology, parse_topology
from widenet_jax.sharding import build_mesh

B, N, H = 16, 12, 64
LENGTHS = (196, 512)  # T
OF_A_LAYER = (64, 128, 144, 256, 257, 384)  # T at which layers of full attention are priced, too
MASKED = ("JAX's", "xla", "pallas")


def with_jax(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    mask = None if mask is None else mask[:, None, None]
    return jax.nn.dot_product_attention(query, key, value, mask=mask, scale=1.0)


def with_ones(query: jax.Array, key: jax.Array, value: jax.Array, mask: None) -> tuple:
    """The forward pass with the sum of the exponentials as one more column of the values."""
    scores = jnp.einsum("bknh,bqnh->bnkq", key, query)
    largest = scores.max(axis=2, keepdims=True).astype(jnp.float32)
    weights = jnp.exp(scores.astype(jnp.float32) - largest).astype(value.dtype)
    padded = jnp.concatenate([value, jnp.ones((*value.shape[:3], 1), value.dtype)], axis=3)
    sums = jnp.einsum("bnkq,bknh->bqnh", weights, padded, preferred_element_type=jnp.float32)
    scale = 1 / sums[..., -1:]
    out = (sums[..., :-1] * scale).astype(value.dtype)
    return out, (query, key, value, (scores, largest, scale.transpose(0, 2, 3, 1)), out)


summed_by_product = jax.custom_vjp(lambda *arrays: with_ones(*arrays)[0])
summed_by_product.defvjp(
    with_ones, lambda *saved: implementations._attend_backward(False, *saved)[:4]
)


def queries_first(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """A product of scores that lie as [B, N, Tq, Tk]."""
    if spec.startswith("bnkq"):
        return jnp.einsum(spec.replace("kq", "qk", 1), x.swapaxes(2, 3), y)
    found = jnp.einsum(spec.replace("kq", "qk"), x, y)
    return found.swapaxes(2, 3) if spec.endswith("kq") else found


def with_shift(*arrays: jax.Array, memory_length: jax.Array, implementation: str) -> jax.Array:
    """Relative attention whose scores by distance are computed for each, and shifted."""
    query, key, value, kernel, content_bias, position_bias = arrays
    (_, T, _, H), S = query.shape, key.shape[1]
    waves, mixing = distance_basis(S, len(kernel))
    position = jnp.einsum("sd,dnh->snh", (waves @ mixing)[::-1], kernel).astype(query.dtype)
    biased = [(query + u.astype(query.dtype)) * H**-0.5 for u in (content_bias, position_bias)]
    by_distance = jnp.einsum("btnh,snh->bnts", biased[1], position)
    padded = jnp.pad(by_distance, ((0, 0), (0, 0), (0, 0), (1, 0)))
    shifted = padded.reshape(*padded.shape[:2], S + 1, T)[:, :, 1:].reshape(by_distance.shape)
    scores = jnp.einsum("btnh,bsnh->bnts", biased[0], key) + shifted
    place = jnp.arange(S)
    visible = place <= jnp.arange(S - T, S)[:, None]
    visible &= place >= (S - T - memory_length)[:, None, None]
    scores = jnp.where(visible[:, None], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(value.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, value)


METHODS = {
    "JAX's": with_jax,
    "xla": partial(attend, implementation="xla"),
    "pallas": partial(attend, implementation="pallas"),
    "xla, JAX's gradient": lambda *heads, mask: implementations._attend_forward(
        *heads, mask, None, False
    )[0],
    "xla, exponentials summed by a column of ones": lambda *heads, mask: summed_by_product(
        *heads, mask
    ),
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
    return sum(price.ms for price in price_step(step, topology)[0])


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


def otherwise(topology: Topology, length: int, **parts: Callable) -> float:
    """Returns the time of XLA's attention with other parts of `implementations`."""
    with patch.multiple(implementations, **parts):
        return alone(topology, "xla", length, masked=False)


def relative_layer(
    topology: Topology, length: int, method: str = "xla", **parts: Callable
) -> float:
    """Returns the time of a layer of WT-B, with other parts of `relative`."""
    tpu_devices(topology)  # as in `layer`
    module = RelativeAttention(16, dtype=jnp.bfloat16, implementation=method)
    x = jax.ShapeDtypeStruct((8, length, 1024), jnp.bfloat16)
    # As all arrays, of a dtype that has gradients.
    seen = jax.ShapeDtypeStruct((8,), jnp.bfloat16)

    def call(run: Callable, first: Any, x: jax.Array, memory: jax.Array, seen: jax.Array) -> Any:
        seen = seen.astype(jnp.int32)
        return run(first, x, memory=memory, memory_length=seen, train=False)

    def run(variables, *arrays):
        return call(module.apply, variables, *arrays)[0]

    variables = jax.eval_shape(partial(call, module.init), jax.random.key(0), x, x, seen)
    with patch.multiple(relative, **{"attend": relative.attend} | parts):
        return milliseconds(topology, run, variables, x, x, seen)


def with_jax_gradient(*arrays: jax.Array, implementation: str) -> jax.Array:
    """Relative attention with the angles, and JAX's gradient."""
    return relative._attend_forward(*arrays)[0]


LAYERS = [(f"{name}, a layer", partial(layer, method=name)) for name in ("xla", "pallas")]
ROWS = [
    *((f"{name}, alone", partial(alone, method=name, masked=False)) for name in METHODS),
    ("xla, keys not centred, alone", partial(otherwise, centred=lambda keys, axis: keys)),
    ("xla, scores as [queries, keys], alone", partial(otherwise, product=queries_first)),
    *((f"{name}, alone, a mask", partial(alone, method=name, masked=True)) for name in MASKED),
    *LAYERS,
    ("relative, xla, a layer", relative_layer),
    ("relative, pallas, a layer", partial(relative_layer, method="pallas")),
    ("relative, JAX's gradient", partial(relative_layer, attend=with_jax_gradient)),
    ("relative by shift, JAX's gradient", partial(relative_layer, relative_attend=with_shift)),
]


def cell(time: Callable, tpu: str, length: int) -> str:
    """Returns the time as a table has it; where the kernel takes no such rows, a dash."""
    try:
        return f"{time(parse_topology(tpu), length=length):.3f}"
    except BadInputError:
        return "-"


def main(tpus: list[str]) -> None:
    if "--help" in tpus:
        print(__doc__)
        return
    for tpu in tpus:  # before the table begins
        tpu_devices(parse_topology(tpu, field="TPU"))
    print(f"| T | | {' | '.join(tpus)} |\n|---|---|{'---|' * len(tpus)}")
    rows = [*itertools.product(LENGTHS, ROWS), *itertools.product(OF_A_LAYER, LAYERS)]
    for length, (name, time) in rows:
        cells = (cell(time, tpu, length) for tpu in tpus)
        print(f"| {length} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(exit_code_of(partial(main, sys.argv[1:] or ["v5e-4"])))
