"""Cycles of single operations on a TPU: the compiler's estimate, and the schedule it dumps.

  python scripts/compare/schedules.py v5e-4 v3-8

Each operation is a program of its own, without its bytes in HBM. Needs libtpu and no TPU.
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp

from widenet_jax.config.parser import exit_code_of
from widenet_jax.ops.plan.compile import compile_lowered, tpu_devices
from widenet_jax.ops.plan.planner import price_step
from widenet_jax.ops.plan.topology import parse_topology

SCORES, HEADS = (16, 12, 512, 512), (16, 512, 12, 64)  # [B, N, Tk, Tq], [B, T, N, H]


def scores(key: jax.Array, query: jax.Array) -> jax.Array:
    return jnp.einsum("bknh,bqnh->bnkq", key, query)


def scores_and_maximum(key: jax.Array, query: jax.Array) -> tuple[jax.Array, jax.Array]:
    found = scores(key, query)
    return found, found.max(2)


def sum_of_exponentials(scores: jax.Array, largest: jax.Array) -> jax.Array:
    return jnp.exp(scores.astype(jnp.float32) - largest.astype(jnp.float32)[:, :, None]).sum(2)


def gradient_of_scores(
    value: jax.Array, d_out: jax.Array, weights: jax.Array, along: jax.Array
) -> jax.Array:
    found = scores(value, d_out).astype(jnp.float32) - along.astype(jnp.float32)[:, :, None]
    return (weights * found).astype(weights.dtype)


def norm(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = x.astype(jnp.float32)
    return x.mean(-1), (x * x).mean(-1)


OPERATIONS = {
    "8192 x 3072 x 768": (jnp.dot, (8192, 3072), (3072, 768)),
    "4096 cubed": (jnp.dot, (4096, 4096), (4096, 4096)),
    "8192 x 768 x 768": (jnp.dot, (8192, 768), (768, 768)),
    "4096 x 512 x 4096": (jnp.dot, (4096, 512), (512, 4096)),
    "sum of the exponentials of scores": (sum_of_exponentials, SCORES, SCORES[:3]),
    "scores and their maximum": (scores_and_maximum, HEADS, HEADS),
    "gradient of the scores": (gradient_of_scores, HEADS, HEADS, SCORES, SCORES[:3]),
    "reductions of a norm": (norm, (8192, 768)),
}


def cycles(tpu: str) -> dict[str, tuple[float, float]]:
    """Returns {operation: (cycles by estimate, by schedule)} of one device, bfloat16."""
    topology = parse_topology(tpu)
    place = jax.sharding.SingleDeviceSharding(tpu_devices(topology)[0])
    found = {}
    for name, (operation, *shapes) in OPERATIONS.items():
        arrays = (jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place) for shape in shapes)
        step = compile_lowered(jax.jit(operation).lower(*arrays))
        prices = price_step(step, topology)[0]
        times = (sum(p.estimate_ms for p in prices), sum(p.compute_ms for p in prices))
        found[name] = tuple(1e-3 * time * topology.chip.clock for time in times)
    return found


def main(tpus: list[str]) -> None:
    if "--help" in tpus:
        print(__doc__)
        return
    for tpu in tpus:  # before the table begins
        tpu_devices(parse_topology(tpu, field="TPU"))
    for tpu in tpus:
        print(f"| {tpu} | estimate | schedule | ratio |\n|---|---|---|---|")
        for name, (estimate, schedule) in cycles(tpu).items():
            times = f"{estimate / 1e3:,.0f}k | {schedule / 1e3:,.0f}k"
            print(f"| {name} | {times} | {estimate / schedule:.1f} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(exit_code_of(partial(main, sys.argv[1:] or ["v5e-4"])))
