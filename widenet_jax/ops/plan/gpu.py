"""NVIDIA GPUs that are not at hand: compiles training steps for them, and prices the kernels.

XLA compiles for a GPU that a text describes. It chooses products' tiles by timing them on the GPU;
without one all products are calls of cuBLASLt.

A kernel takes the longer of two times, and its launch: its bytes at a share of the memory's
bandwidth, its products at a share of the peak. That is a roofline: a GPU's program has no schedule.
"""

import importlib.util
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies
from ml_collections import ConfigDict

from widenet_jax.data.contract import DataInfo
from widenet_jax.errors import BadInputError, refuse_value
from widenet_jax.nn.attention.implementations import AUTO, candidate_for
from widenet_jax.ops.plan.compile import (
    CompiledStep,
    TpuCompiler,
    lower_step,
    peak_bytes,
    timed_compile,
)
from widenet_jax.ops.plan.hlo import Instruction, Module, array_bytes, bits
from widenet_jax.ops.plan.pricing import (
    FREE,
    SENT,
    Executed,
    Price,
    bytes_moved,
    bytes_sent,
    collective_of,
    executed,
)
from widenet_jax.ops.plan.topology import GpuHost

INSTALL = "pip install -e '.[plan_gpu]'"
OPTIONS = {"xla_gpu_enable_triton_gemm": False}

# Where not stated otherwise, measured on one H200 (docs/log/gpu_h200.md, docs/log/gpu_kernels.md).
SHARE_OF_BANDWIDTH = 0.75
SHARES_OF_PEAK = {"cuBLASLt": 0.77, "cuDNN": 0.12}
# A ring of eight, of the links of one direction: 230 of 300 GB/s on A100s
# (docs.alayanew.com/en/docs/tech-blog/2026-05-06-nccl-tests, May 2026).
SHARE_OF_LINKS = 0.77
LAUNCH_SECONDS = 2e-6  # assumed

# Products of cuDNN's attention: two forward; backward these five, the scores computed again.
FMHA_PRODUCTS = {"__cudnn$fmhaSoftmax": 2, "__cudnn$fmhaSoftmaxBackward": 5}
_SCORES = re.compile(r'"intermediate_tensor_shape":\s*\{[^}]*?"dimensions":\s*\[([^\]]*)\]')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\["(\d+)"')


class GpuCompiler(TpuCompiler):
    """Compiles training steps for the GPUs of one host, as `TpuCompiler` for a slice.

    Raises:
      BadInputError: JAX's plugin for CUDA is missing.
    """

    topology: GpuHost

    def find_devices(self) -> Sequence[jax.Device]:
        if not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)):
            raise BadInputError(f"planning for GPUs needs JAX's plugin for CUDA: {INSTALL}")
        jax.config.update("jax_platforms", "cpu")
        described = {"target_config": self.topology.chip.config, "topology": self.topology.layout}
        return topologies.get_topology_desc(platform="cuda", **described).devices

    def lower(self, config: ConfigDict, data: DataInfo) -> Any:
        """Lowers the step, with the kernel of attention that a run would try, if it can run."""
        asked = (config.model.get("moe") or {}).get("dispatch")
        problem = "is not planned: JAX asks the GPU itself for its cores; plan with ragged or auto"
        refuse_value(f"config.model.moe.dispatch={asked}", (asked == "hopper", problem))
        if config.model.attention.get("implementation") == AUTO:
            kernel = candidate_for(config.model.attention, "gpu")
            try:
                return lower_step(self.experiment(config, data, attention=kernel))
            except BadInputError:
                pass  # its sizes or its dtype; any other mistake comes again
        return lower_step(self.experiment(config, data))

    def run(self, lowered: Any) -> CompiledStep:
        with timed_compile() as seconds:
            try:
                compiled = lowered.compile(compiler_options=OPTIONS)
            except jax.errors.JaxRuntimeError as error:
                reason = " ".join(str(error).split())[:300]
                raise BadInputError(f"XLA cannot compile this step for a GPU: {reason}") from None
        peak = peak_bytes(compiled.memory_analysis())
        return CompiledStep(compiled.as_text(), {}, True, peak, seconds())


def price_kernels(module: Module, topology: GpuHost) -> list[Price]:
    """Prices every kernel and collective that runs in a step."""
    prices = (price_kernel(run, module, topology) for run in executed(module, module.entry))
    return [price for price in prices if price]


def price_kernel(run: Executed, module: Module, topology: GpuHost) -> Price | None:
    """Prices one instruction; returns None if it launches nothing."""
    (instruction, home, trips, _), gpu = run, topology.chip
    if instruction.opcode in FREE or instruction.opcode.endswith("-done"):
        return None
    launch = trips * 1e3 * LAUNCH_SECONDS
    if collective_of(instruction, module).opcode.removesuffix("-start") in SENT:
        sent = trips * bytes_sent(instruction, module, topology)
        ms = launch + 1e3 * sent / (SHARE_OF_LINKS * gpu.ici)
        return Price(instruction, trips, collective_bytes=sent, collective_ms=ms)
    operands = [home[name] for name in instruction.operands]
    share = SHARES_OF_PEAK.get(kind_of(instruction, module), 1.0)
    compute = 1e3 * trips * product_flops(instruction, operands) / (share * gpu.peak_flops)
    memory = bytes_moved(instruction, operands, module, data_bytes)
    memory *= 1e3 * trips / (SHARE_OF_BANDWIDTH * gpu.hbm_bandwidth)
    return Price(instruction, trips, launch + compute, launch + memory)


def data_bytes(instruction: Instruction) -> int:
    """Returns the bytes of a result, without the space that a library works in."""
    if instruction.opcode != "custom-call":
        return instruction.num_bytes
    return array_bytes(array for array in instruction.arrays if array[0] not in ("s8", "u8"))


def product_flops(kernel: Instruction, operands: Sequence[Instruction]) -> float:
    """Returns the FLOPs of a product or of an attention; 0 of other kernels.

    Those of float32 count twice: XLA rounds operands to TF32, whose peak is half of bfloat16's.
    """
    if products := FMHA_PRODUCTS.get(kernel.target):
        scores = map(int, re.findall(r"\d+", _SCORES.search(kernel.text)[1]))
        return 2 * products * math.prod(scores) * operands[0].arrays[0][1][-1]
    if not (contracted := _CONTRACTED.search(kernel.text)):
        return 0
    dtype, sizes = operands[0].arrays[0]
    flops = 2 * math.prod(kernel.arrays[0][1]) * sizes[int(contracted[1])]
    return flops * bits(dtype) / 16


def kind_of(instruction: Instruction, module: Module) -> str:
    """Returns what runs an instruction: a library, or the compiler that made the kernel."""
    if collective_of(instruction, module).opcode.removesuffix("-start") in SENT:
        return "NCCL"
    if instruction.opcode.startswith("copy"):
        return "copies"
    if instruction.opcode == "fusion":
        return "Triton fusions" if '"kind":"__triton' in instruction.text else "XLA fusions"
    if instruction.opcode != "custom-call":
        return "others"
    libraries = {"cublas": "cuBLASLt", "cudnn": "cuDNN", "mosaic": "Pallas", "triton": "Triton"}
    found = (name for part, name in libraries.items() if part in instruction.target)
    return next(found, instruction.target)


def kernels_by_kind(module: Module, prices: Sequence[Price]) -> dict[str, dict[str, float]]:
    """Returns {kind: {"count", "ms"}}, the slowest first; a loop's kernels once per trip."""
    found: dict[str, dict[str, float]] = {}
    for price in prices:
        sums = found.setdefault(kind_of(price.instruction, module), {"count": 0, "ms": 0.0})
        sums["count"] += price.trips
        sums["ms"] += price.ms + price.collective_ms
    return dict(sorted(found.items(), key=lambda item: -item[1]["ms"]))
