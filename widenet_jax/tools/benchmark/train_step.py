"""The training step on the devices at hand: images a second, MFU, memory, compile time.

Images and labels are made up and stay on the device: reading real ones is `input_pipeline`'s.
"""

import time
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from widenet_jax.errors import RunFailedError
from widenet_jax.experiment import DataFacts, build_experiment, train_batch_shapes
from widenet_jax.tools.benchmark.peaks import peak_flops
from widenet_jax.tools.benchmark.timing import median_seconds
from widenet_jax.tools.plan.compile import lower_step, peak_bytes
from widenet_jax.tools.plan.flops import train_flops


def train_step_row(
    name: str,
    config: ConfigDict,
    data: DataFacts,
    devices: Sequence[jax.Device],
    *,
    rounds: int,
    steps: int,
) -> dict[str, Any]:
    """One config.

    Args:
      name: of the config.
      config: the run.
      data: of the training set.
      devices: to use.
      rounds: of which the median counts.
      steps: in a row a round.

    Returns:
      {config, device, devices, batch_size, images_per_second, mfu (None where the device's peak is
      not known), memory_gib (of a device: the program's, and at most in use where the device
      counts it), compile_seconds, step_ms}.

    Raises:
      BadInputError: the config does not fit the devices.
      RunFailedError: out of memory.
    """
    experiment = build_experiment(config, data, devices)
    lowered = lower_step(experiment)
    start = time.perf_counter()
    try:
        compiled = lowered.compile()
        seconds = time.perf_counter() - start
        with jax.set_mesh(experiment.mesh):
            state = experiment.init()
            batch = made_up(train_batch_shapes(experiment), len(data.class_names))

        def step() -> Any:
            nonlocal state
            state, metrics = compiled(state, batch)
            return metrics["loss"]

        step_seconds = median_seconds(step, rounds=rounds, calls=steps)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise RunFailedError(
            f"{name}: batch {config.batch_size} does not fit {len(devices)} "
            f"{devices[0].device_kind}; try --config.batch_size={config.batch_size // 2}"
        ) from None
    images_per_second = config.batch_size / step_seconds
    peak = peak_flops(devices[0].device_kind)
    flops = train_flops(config.model, data.image_shape, len(data.class_names)) * images_per_second
    in_use = (devices[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    return {
        "config": name,
        "device": devices[0].device_kind,
        "devices": len(devices),
        "batch_size": config.batch_size,
        "step_ms": 1e3 * step_seconds,
        "images_per_second": images_per_second,
        "mfu": flops / (peak * len(devices)) if peak else None,
        "memory_gib": max(peak_bytes(compiled.memory_analysis()), in_use) / 2**30,
        "compile_seconds": seconds,
    }


def made_up(batch: dict[str, jax.ShapeDtypeStruct], num_classes: int) -> dict[str, jax.Array]:
    """Random pixels and labels, drawn where they will be used."""
    shardings = {key: spec.sharding for key, spec in batch.items()}

    def draw() -> dict[str, jax.Array]:
        key = jax.random.key(0)
        limits = {"image": 256, "label": num_classes, "bad": 1}
        return {
            name: jax.random.randint(key, spec.shape, 0, limits[name], "int32").astype(spec.dtype)
            for name, spec in batch.items()
        }

    return jax.jit(draw, out_shardings=shardings)()
