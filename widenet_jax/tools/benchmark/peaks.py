"""What devices could do at best, to say what share of it a step uses."""

from widenet_jax.tools.plan.topology import CHIPS

# Dense bfloat16 FLOP/s by a part of `device.device_kind` (L40S before L4), from NVIDIA's data
# sheets, without sparsity.
GPUS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
TPU_KINDS = {"TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p",
             "TPU v6 lite": "v6e"}  # fmt: skip


def peak_flops(device_kind: str) -> float | None:
    """bfloat16 FLOP/s of one device; None where nobody states it, as for CPUs."""
    if device_kind in TPU_KINDS:
        chip = CHIPS[TPU_KINDS[device_kind]]
        return chip.tflops * 1e12 / chip.devices
    return next((peak for name, peak in GPUS.items() if name in device_kind), None)
