"""Wall-clock timing: warm-up, repetitions, median; peak rates of devices, and MFU."""

import re
import statistics
import timeit
from collections.abc import Callable
from typing import Any

import jax

from widenet_jax.ops.plan.topology import CHIPS

# Dense bfloat16 FLOP/s without sparsity, from NVIDIA's data sheets. The keys are parts of
# `device.device_kind`, whole words of it; the first match counts, so H100 NVL stands before H100.
GPUS = {
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}
TPU_KINDS = {"TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p",
             "TPU v6 lite": "v6e"}  # fmt: skip


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak bfloat16 FLOP/s of one device; None where it is unknown, as for CPUs."""
    if device_kind in TPU_KINDS:
        return CHIPS[TPU_KINDS[device_kind]].peak_flops
    found = (peak for name, peak in GPUS.items() if re.search(rf"\b{name}\b", device_kind))
    return next(found, None)


def mfu(flops_per_second: float, device_kind: str, num_devices: int) -> float | None:
    """Returns the share of the devices' peak that a rate uses; None where the peak is unknown."""
    peak = peak_flops(device_kind)
    return None if peak is None else flops_per_second / (peak * num_devices)


def median_seconds(call: Callable[[], Any], *, rounds: int, calls: int = 1) -> float:
    """Returns the seconds of one `call`: the median over `rounds` of the mean of `calls` in a row.

    Waits for the device at the end of each round. The first call compiles and is not counted.
    """
    jax.block_until_ready(call())
    seconds = timeit.repeat(
        lambda: jax.block_until_ready([call() for _ in range(calls)]), number=1, repeat=rounds
    )
    return statistics.median(seconds) / calls
