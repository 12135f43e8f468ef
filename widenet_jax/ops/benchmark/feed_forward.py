"""Benchmark of feed-forwards: one layer, forward and backward, over its widths.

A dense layer beside a mixture of experts of as many parameters, as in figures 2 and 8 to 11 of
Csordás et al. 2023 (arXiv:2310.10837): nothing is dropped, ReLU, sigmoid gates.
"""

import itertools
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
from widenet_jax.ops.benchmark.timing import median_seconds
from widenet_jax.ops.plan.compile import compile_lowered, peak_bytes, tpu_devices
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.pricing import price_module
from widenet_jax.ops.plan.topology import Topology
from widenet_jax.sharding import build_mesh

# Tokens on the device, tokens of a sequence, D, G, E (the dense layer has F = E G) and K.
LayerSize = namedtuple("LayerSize", "tokens length embed_dim expert_dim experts selected")
DENSE = "dense"
METHODS = (DENSE, *DISPATCHERS, AUTO)


def sizes(**choices: Sequence[int]) -> Iterator[LayerSize]:
    """Yields every combination with whole sequences and K <= E; E = 0 is that of F = 4 D."""
    for values in itertools.product(*choices.values()):
        size = LayerSize(**dict(zip(choices, values, strict=True)))
        size = size._replace(experts=size.experts or 4 * size.embed_dim // size.expert_dim)
        if size.tokens % size.length == 0 and size.selected <= size.experts:
            yield size


def feed_forward_row(
    method: str,
    size: LayerSize,
    *,
    dtype: str,
    capacity_factor: float,
    topology: Topology | None,
    rounds: int,
) -> dict[str, Any]:
    """Times a layer on the first device here, or prices it for a TPU.

    Args:
      method: "dense", or how the experts are dispatched: a key of `moe.dispatch.DISPATCHERS` or
        "auto".
      size: of the layer and its input.
      dtype: of the computation.
      capacity_factor: 0 for experts without a limit.
      topology: a slice, of which one device counts; None for a measurement.
      rounds: number of rounds, of which the median counts.

    Returns:
      {method, the fields of `size`, device, ms, guessed (the share of `ms` that the compiler gives
      no cycles for; None if measured), memory_gib (of the program), tflops (useful ones in a
      second: K of E experts)}. ms, guessed and tflops are None if the layer does not fit.

    Raises:
      BadInputError: an unknown method; libtpu is not installed.
    """
    device = (tpu_devices(topology) if topology else jax.devices())[0]
    B, D = size.tokens // size.length, size.embed_dim
    gradients = gradients_of(build(method, size, dtype=dtype, capacity_factor=capacity_factor))
    mesh = build_mesh({"fsdp": 1, "expert": 1}, [device])
    placed = NamedSharding(mesh, P())
    with jax.set_mesh(mesh):

        def arrays() -> tuple:
            x = jax.random.normal(jax.random.key(0), (B, size.length, D), dtype)
            return gradients.init(x), x

        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=placed),
            jax.eval_shape(arrays),
        )
        lowered = jax.jit(gradients.run).lower(*shapes)
        measured = priced(lowered, topology) if topology else timed(lowered, arrays, rounds)
    used = size.experts if method == DENSE else size.selected
    flops = 3 * 4 * size.tokens * used * size.expert_dim * D
    rate = flops / measured["ms"] / 1e9 if measured["ms"] else None
    return {
        "method": method,
        **size._asdict(),
        "device": topology.name if topology else device.device_kind,
        **measured,
        "tflops": rate,
    }


def build(method: str, size: LayerSize, *, dtype: str, capacity_factor: float) -> nn.Module:
    """Builds the layer that `method` names; the arguments are those of `feed_forward_row`."""
    if method == DENSE:
        width = size.experts * size.expert_dim
        return Mlp(mlp_dim=width, activation="relu", dtype=jnp.dtype(dtype))
    limited = {"capacity_rule": "paper"} if capacity_factor else {"capacity_rule": UNLIMITED}
    return MoeLayer(
        mlp_dim=size.expert_dim,
        num_experts=size.experts,
        num_selected_experts=size.selected,
        capacity_factor=capacity_factor or 1.0,
        capacity_factor_eval=capacity_factor or 1.0,
        examples_per_group=1,
        router={"name": "sigmoid", "expert_dropout": 0.0},
        dispatch=method,
        activation="relu",
        use_bias=False,
        dtype=jnp.dtype(dtype),
        **limited,
    )


# x -> params; (params, x) -> their gradients
LayerGradients = namedtuple("LayerGradients", "init run")


def gradients_of(layer: nn.Module) -> LayerGradients:
    """Returns the functions of a layer that the benchmark calls."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.square(layer.apply(params, x, train=True).y.astype(jnp.float32)).mean()

    return LayerGradients(
        init=lambda x: layer.init(jax.random.key(1), x, train=True),
        run=jax.grad(loss, argnums=(0, 1)),
    )


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
    prices = price_module(parse(step.hlo), topology) if step.fits else []
    ms = sum(price.ms for price in prices) or None
    guessed = sum(price.roofline_ms for price in prices) / ms if ms else None
    return {"ms": ms, "guessed": guessed, "memory_gib": step.peak_bytes / 2**30}
