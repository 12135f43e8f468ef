"""Benchmark of single layers, forward and backward: feed-forwards, and methods of dispatch.

A dense layer beside a mixture of experts of as many parameters, as in figures 2 and 8 to 11 of
Csordás et al. 2023 (arXiv:2310.10837): nothing is dropped, ReLU, sigmoid gates. The methods of
dispatch are compared with noisy top-K routing and limited experts instead.
"""

import itertools
import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.nn.mlp import Mlp
from widenet_jax.nn.moe.dispatch import AUTO, DISPATCHERS
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.slots import UNLIMITED
from widenet_jax.ops.benchmark.report import median_seconds
from widenet_jax.ops.plan.compile import compile_lowered, peak_bytes, tpu_devices
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.pricing import price_module, totals
from widenet_jax.ops.plan.topology import Topology
from widenet_jax.sharding import build_mesh

# Tokens on the device, tokens of a sequence, D, G, E (the dense layer has F = E G) and K.
LayerSize = namedtuple("LayerSize", "tokens length embed_dim expert_dim experts selected")
# B, T, examples that are routed together, E, K, D, F.
DispatchSize = namedtuple(
    "DispatchSize", "images tokens examples_per_group experts selected embed_dim mlp_dim"
)
GROUPS = {LayerSize: "length", DispatchSize: "examples_per_group"}  # these divide the first size
DENSE = "dense"
METHODS = (*DISPATCHERS, AUTO)


def sizes(kind: type, **choices: Sequence[int]) -> Iterator[Any]:
    """Yields every combination with whole groups and K <= E, as a LayerSize or a DispatchSize.

    E = 0 stands for as many experts as have the dense layer's width F = 4 D.
    """
    for values in itertools.product(*choices.values()):
        size = kind(**dict(zip(choices, values, strict=True)))
        if not size.experts:
            size = size._replace(experts=4 * size.embed_dim // size.expert_dim)
        if size[0] % getattr(size, GROUPS[kind]) == 0 and size.selected <= size.experts:
            yield size


def layer_of(method: str, size: LayerSize | DispatchSize, dtype: str) -> nn.Module:
    """Builds the layer that `method` names: "dense", "auto" or a key of `moe.dispatch.DISPATCHERS`.

    Experts of a LayerSize drop no token; those of a DispatchSize are limited, behind noisy top-K
    routing.
    """
    if method == DENSE:
        width = size.experts * size.expert_dim
        return Mlp(mlp_dim=width, activation="relu", dtype=dtype)
    if isinstance(size, DispatchSize):
        fields = {
            "mlp_dim": size.mlp_dim,
            "capacity_factor": 1.2,
            "capacity_factor_eval": 2.0,
            "examples_per_group": size.examples_per_group,
            "router": {"name": "top_k", "noise_std": 1.0},
            "losses": {"load_balance": 0.01, "over": "group"},
        }
    else:
        fields = {"mlp_dim": size.expert_dim, "activation": "relu", "use_bias": False}
        fields |= {"capacity_factor": 1.0, "capacity_factor_eval": 1.0, "examples_per_group": 1}
        fields |= {"capacity_rule": UNLIMITED, "router": {"name": "sigmoid", "expert_dropout": 0.0}}
    fields |= {"num_experts": size.experts, "num_selected_experts": size.selected}
    return MoeLayer(**fields, dispatch=method, dtype=dtype)


def dispatch_row(method: str, size: DispatchSize, *, dtype: str, rounds: int) -> dict[str, Any]:
    """Times an MoE layer with the dispatch `method`, a key of `moe.dispatch.DISPATCHERS`.

    Returns:
      {method, the fields of `size`, dtype, ms, tflops, memory_gib}, see `measure`.
    """
    shape = (size.images, size.tokens, size.embed_dim)
    layer = layer_of(method, size, dtype)
    found = measure(layer, shape, size.selected * size.mlp_dim, dtype=dtype, rounds=rounds)
    kept = {name: found[name] for name in ("ms", "tflops", "memory_gib")}
    return {"method": method, **size._asdict(), "dtype": dtype, **kept}


def dispatch_output(method: str, size: DispatchSize, *, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Returns output and gradient of the layer that `dispatch_row` times, for the same input.

    The gradient is of the input, for the output itself as the output's gradient.
    """
    layer, rngs = layer_of(method, size, dtype), {"router": jax.random.key(1)}
    x = jax.random.normal(jax.random.key(0), (size.images, size.tokens, size.embed_dim), dtype)

    @jax.jit
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = layer.init({"params": jax.random.key(2)} | rngs, x, train=True)
        y, pull = jax.vjp(lambda x: layer.apply(params, x, train=True, rngs=rngs).y, x)
        return y, *pull(y)

    return both(x)


def feed_forward_row(
    method: str, size: LayerSize, *, dtype: str, topology: Topology | None, rounds: int
) -> dict[str, Any]:
    """Times a layer on the first device here, or prices it for a device of a TPU slice.

    Returns:
      {method, the fields of `size`, device, ms, guessed, memory_gib, tflops}, see `measure`.

    Raises:
      BadInputError: libtpu is not installed.
    """
    shape = (size.tokens // size.length, size.length, size.embed_dim)
    used = (size.experts if method == DENSE else size.selected) * size.expert_dim
    how = {"dtype": dtype, "rounds": rounds, "topology": topology}
    return {"method": method, **size._asdict()} | measure(
        layer_of(method, size, dtype), shape, used, **how
    )


def measure(
    layer: nn.Module,
    shape: tuple[int, int, int],
    hidden: int,
    *,
    dtype: str,
    rounds: int,
    topology: Topology | None = None,
) -> dict[str, Any]:
    """Times the gradients of a layer for an input [B, T, D], or prices them for a TPU.

    Returns:
      {device, ms, guessed (the share of `ms` that the compiler gives no cycles for; None if
      measured), memory_gib (of the program), tflops}. `tflops` is the useful rate in 1e12 FLOP/s:
      `hidden` units per token, forward and backward, without padding and dispatch. Times of a layer
      that does not fit are None, and so is its memory unless the compiler says it.
    """
    device = (tpu_devices(topology) if topology else jax.devices())[0]
    rngs = {"router": jax.random.key(1)}

    def loss(params: Any, x: jax.Array) -> jax.Array:
        output = layer.apply(params, x, train=True, rngs=rngs)
        return jnp.square(output.y.astype(jnp.float32)).mean() + output.aux.get("loss", 0.0)

    def arrays() -> tuple:
        x = jax.random.normal(jax.random.key(0), shape, dtype)
        return layer.init({"params": jax.random.key(2)} | rngs, x, train=True), x

    mesh = build_mesh({"fsdp": 1, "expert": 1}, [device])
    with jax.set_mesh(mesh):
        placed = NamedSharding(mesh, P())
        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=placed),
            jax.eval_shape(arrays),
        )
        lowered = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*shapes)
        found = priced(lowered, topology) if topology else timed(lowered, arrays, rounds)
    flops = 3 * 4 * math.prod(shape) * hidden
    name = topology.name if topology else device.device_kind
    return {"device": name, **found, "tflops": flops / found["ms"] / 1e9 if found["ms"] else None}


def timed(lowered: Any, arrays: Callable[[], tuple], rounds: int) -> dict[str, Any]:
    """Compiles and runs a program on arrays; returns ms, guessed and memory_gib."""
    try:
        compiled = lowered.compile()
        inputs = jax.jit(arrays)()
        seconds = median_seconds(lambda: compiled(*inputs), rounds=rounds)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"ms": None, "guessed": None, "memory_gib": None}
    memory = peak_bytes(compiled.memory_analysis()) / 2**30
    return {"ms": 1e3 * seconds, "guessed": None, "memory_gib": memory}


def priced(lowered: Any, topology: Topology) -> dict[str, Any]:
    """Compiles a program for a TPU and prices it; returns ms, guessed and memory_gib."""
    step = compile_lowered(lowered)
    prices = price_module(parse(step.hlo), step.schedules, topology) if step.fits else []
    sums = totals(prices)
    ms = sums["ms"] or None
    guessed = sums["roofline_ms"] / ms if ms else None
    return {"ms": ms, "guessed": guessed, "memory_gib": step.peak_bytes / 2**30}
