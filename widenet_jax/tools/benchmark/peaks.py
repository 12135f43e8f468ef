"""Peak rates of devices, and MFU."""

from widenet_jax.tools.plan.topology import CHIPS

# Dense bfloat16 FLOP/s without sparsity, from NVIDIA's data sheets. The keys are parts of
# `device.device_kind`; the first match counts, so L40S stands before L4.
GPUS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
TPU_KINDS = {"TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p",
             "TPU v6 lite": "v6e"}  # fmt: skip


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak bfloat16 FLOP/s of one device; None where it is unknown, as for CPUs."""
    if device_kind in TPU_KINDS:
        return CHIPS[TPU_KINDS[device_kind]].peak_flops
    return next((peak for name, peak in GPUS.items() if name in device_kind), None)


def mfu(flops_per_second: float, device_kind: str, num_devices: int) -> float | None:
    """Returns the share of the devices' peak that a rate uses; None where the peak is unknown."""
    peak = peak_flops(device_kind)
    return None if peak is None else flops_per_second / (peak * num_devices)
