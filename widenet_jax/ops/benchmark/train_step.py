"""Benchmark of the training step on this machine's devices: rate, MFU, memory, compile time.

The batch is random and stays on the devices; `pipelines` measures reading real data.
"""

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from widenet_jax.errors import RunFailedError
from widenet_jax.experiment import Experiment, input_spec, train_batch_shapes
from widenet_jax.ops.benchmark.report import median_seconds, mfu
from widenet_jax.ops.plan.compile import lower_step, peak_bytes
from widenet_jax.ops.plan.planner import train_flops
from widenet_jax.typing import Shapes


def train_step_row(name: str, experiment: Experiment, *, rounds: int, steps: int) -> dict[str, Any]:
    """Times the training step of one config.

    Args:
      name: the config's name, for the row.
      experiment: the run.
      rounds: number of rounds; the median counts.
      steps: steps per round.

    Returns:
      {config, device, devices, batch_size, step_ms, examples_per_second, mfu (None if the device's
      peak is unknown), memory_gib (of a device: the program's need, or the measured peak where it
      is larger), compile_seconds}.

    Raises:
      RunFailedError: out of memory.
    """
    try:
        return {"config": name} | measure(experiment, rounds=rounds, steps=steps)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        devices, batch_size = experiment.mesh.devices, experiment.config.batch_size
        raise RunFailedError(
            f"{name}: batch {batch_size} does not fit {devices.size} "
            f"{devices.flat[0].device_kind}; try --config.batch_size={batch_size // 2}"
        ) from None


def measure(experiment: Experiment, *, rounds: int, steps: int) -> dict[str, Any]:
    """Compiles and times the training step; returns the row of `train_step_row`."""
    devices, config, task = experiment.mesh.devices.flat, experiment.config, experiment.task
    before = peak_in_use(devices[0])
    lowered = lower_step(experiment)
    start = time.perf_counter()
    compiled = lowered.compile()
    compile_seconds = time.perf_counter() - start
    with jax.set_mesh(experiment.mesh):
        state = experiment.init()
        batch = random_batch(train_batch_shapes(experiment), below=task.model_fields)

    def step() -> jax.Array:
        nonlocal state
        state, metrics = compiled(state, batch)
        return metrics["loss"]

    seconds = median_seconds(step, rounds=rounds, calls=steps)
    flops = train_flops(config.model, input_spec(task), **task.model_fields) * config.batch_size
    after = peak_in_use(devices[0])
    in_use = after * (after != before)  # else an earlier program's peak
    return {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "batch_size": config.batch_size,
        "step_ms": 1e3 * seconds,
        "examples_per_second": config.batch_size / seconds,
        "mfu": mfu(flops / seconds, devices[0].device_kind, len(devices)),
        "memory_gib": max(peak_bytes(compiled.memory_analysis()), in_use) / 2**30,
        "compile_seconds": compile_seconds,
    }


def peak_in_use(device: jax.Device) -> int:
    """Returns the most bytes that this process has had on a device; 0 where it is unknown."""
    return (device.memory_stats() or {}).get("peak_bytes_in_use", 0)


def random_batch(specs: Shapes, *, below: Mapping[str, int | str]) -> dict[str, jax.Array]:
    """Draws a batch on its devices.

    Bytes are uniform in 0..255, other integers uniform below the smallest number of `below`, so
    that they are valid labels and tokens alike; floats are normal. Booleans are True, except for
    `bad`, which the step counts as unreadable examples. What `below` has besides numbers is not
    looked at: it takes a task's fields of the model, such as {"vocab_size": 30000, "head": "span"}.
    """
    smallest = min(value for value in below.values() if isinstance(value, int))

    def draw(name: str, spec: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
        if spec.dtype == jnp.bool_:
            return jnp.full(spec.shape, name != "bad")
        if jnp.issubdtype(spec.dtype, jnp.floating):
            return jax.random.normal(key, spec.shape, spec.dtype)
        limit = 256 if spec.dtype == jnp.uint8 else smallest
        return jax.random.randint(key, spec.shape, 0, limit, "int32").astype(spec.dtype)

    def draw_all() -> dict[str, jax.Array]:
        keys = jax.random.split(jax.random.key(0), len(specs))
        return {n: draw(n, spec, key) for (n, spec), key in zip(specs.items(), keys, strict=True)}

    shardings = {name: spec.sharding for name, spec in specs.items()}
    return jax.jit(draw_all, out_shardings=shardings)()
