"""Plans: whether a run fits a TPU slice or GPUs, and its time and cost, without having them."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import flax.linen as nn
from ml_collections import ConfigDict

from widenet_jax.config.durations import to_steps
from widenet_jax.data.contract import DataInfo, StreamInfo
from widenet_jax.data.sources import open_data
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_task, input_spec
from widenet_jax.nn.build import (
    build_model,
    count_parameters,
    count_unrolled,
    parameter_shapes,
    with_implementation,
    without_hopper,
)
from widenet_jax.nn.moe.dispatch import dispatch_methods
from widenet_jax.nn.settings import Settings
from widenet_jax.nn.stack_settings import UserPart
from widenet_jax.ops.plan.compile import CompiledStep, TpuCompiler
from widenet_jax.ops.plan.gpu import kernels_by_kind, price_kernels
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.pricing import Price, price_module, totals
from widenet_jax.ops.plan.topology import GpuHost, Topology
from widenet_jax.specs import TaskSpec, resolve, task_spec
from widenet_jax.typing import Shapes

GIB = 2**30
# Predicted by measured time of 20 public measurements on v3 to v6e, lowest and highest:
# see docs/log/plans_against_measurements.md.
BAND = (0.81, 1.14)
GUESS = 2  # what is guessed may take half or twice as long; no measurement backs this
GPU_BAND = (0.61, 1.06)  # the same of ten steps on GPUs, see docs/log/plans_gpu.md


class Plan(NamedTuple):
    """The plan of one config on one slice, or on several.

    Attributes:
      figures: the JSON object that `--json` prints:
        config, topology, cores, devices: names and sizes, of all slices together.
        unit: what the task calls an example, in the plural.
        batch_size, examples_per_core, steps: of the run.
        params, params_unrolled: parameters, and parameters of the same model without sharing.
        carry_gib: what a device keeps between steps beside parameters and optimizer, see
          `task.Task.carry_spec`; a part of its memory.
        gflops_per_example: of a training step.
        kernels: on GPUs {kind: {"count", "ms"}}, the slowest first; {} on TPUs.
        dispatch: {"training": method, "evaluation": method}; {} without experts.
        limit_ms: time of a step at 100% MFU.
        hbm_peak_gib, hbm_limit_gib, fits: memory of a device.
        compile_seconds: time that the compiler took.
        step_ms, scheduled_share: time of a step without collectives, and the share of it that the
          compiler's schedules cover.
        step_ms_range: what the calibration leaves open, see BAND, GUESS and GPU_BAND; the upper
          end has the collectives.
        serial_ms: time of a step if no byte moved while computing.
        collective_ms, collective_mb, collective_hops: time of the collectives within a slice,
          megabytes that a device sends, and the links passed one after another.
        dcn_ms, dcn_mb: the same between slices.
        examples_per_second_per_core, mfu, hours, core_days: at `step_ms`.
        cost: None without a price.
        advice: a change that makes the step fit, see `advise`; None if it fits.
        The times, from step_ms to cost, are None if the step does not compile into the memory.
      prices: cost of every instruction; empty without times.
    """

    figures: dict[str, Any]
    prices: list[Price]


def plan_run(
    name: str, config: ConfigDict, data: DataInfo, tpu: TpuCompiler, price: float | None = None
) -> Plan:
    """Compiles a run's training step for a TPU slice, or for GPUs, and prices it.

    If the step does not fit, compiles changes until one fits.

    Args:
      name: the config's name, for the report.
      config: the run.
      data: facts about the training set.
      tpu: compiles for the slice or the GPUs.
      price: of a core for an hour, in any currency; None if unknown.

    Raises:
      BadInputError: the config contradicts itself, the data or the slice; a compiler is missing.
    """
    plan = plan_without_advice(name, config, data, tpu, price)
    fits = plan.figures["fits"]
    plan.figures["advice"] = None if fits else advise(plan.figures, config, data, tpu)
    return plan


def plan_without_advice(
    name: str, config: ConfigDict, data: DataInfo, tpu: TpuCompiler, price: float | None = None
) -> Plan:
    """Returns the plan of a run as it is; the arguments of `plan_run`."""
    step, topology = tpu.compile(name, config, data), tpu.topology
    prices, kernels = price_step(step, topology) if step.fits else ([], {})
    limit = topology.chip.hbm_limit
    figures = {
        "config": name,
        **size_figures(config, data, topology),
        "hbm_peak_gib": step.peak_bytes / GIB,
        "hbm_limit_gib": limit,
        # The compiler itself checks the data alone, without the program.
        "fits": step.fits and step.peak_bytes <= limit * GIB,
        "compile_seconds": step.seconds,
        "kernels": kernels,
    }
    return Plan(figures | time_figures(figures, prices, topology, price), prices)


def price_step(step: CompiledStep, topology: Topology | GpuHost) -> tuple[list[Price], dict]:
    """Returns the price of every instruction, and the sums of `Plan.kernels`."""
    module = parse(step.hlo)
    if topology.platform == "tpu":
        return price_module(module, step.schedules, topology), {}
    prices = price_kernels(module, topology)
    return prices, kernels_by_kind(module, prices)


def size_figures(
    config: ConfigDict, data: DataInfo, topology: Topology | GpuHost
) -> dict[str, Any]:
    """Returns the figures that need no compilation."""
    task = build_task(config, data)
    model = build_model(without_hopper(config.model), **task.model_fields)
    inputs = input_spec(task)
    if "implementation" in config.model.attention:
        model = with_implementation(model, "xla")  # cudnn would ask for a GPU
    flops = train_flops(config.model, inputs, **task.model_fields)
    sizes = {"batch_size": config.batch_size, "num_examples": data.num_examples}
    carry = task.carry_spec(config.batch_size).values()
    carried = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in carry)
    return {
        "topology": topology.name,
        "cores": topology.num_cores,
        "devices": topology.num_devices,
        "unit": task.unit,
        "batch_size": config.batch_size,
        "examples_per_core": config.batch_size / topology.num_cores,
        "params": count_parameters(parameter_shapes(model, inputs)),
        "params_unrolled": count_unrolled(model, inputs),
        "carry_gib": carried / topology.num_devices / GIB,
        "gflops_per_example": flops / 1e9,
        "dispatch": dispatch_methods(
            model.stack, model.num_tokens(inputs), platform=topology.platform
        ),
        "limit_ms": 1e3 * flops * config.batch_size / topology.peak_flops,
        "steps": to_steps(config.duration, field="config.duration", **sizes),
    }


def time_figures(
    figures: Mapping[str, Any],
    prices: list[Price],
    topology: Topology | GpuHost,
    price: float | None,
) -> dict[str, Any]:
    """Returns the figures that follow from the prices; None each without prices."""
    sums = totals(prices)
    step_ms, guessed = sums["ms"] or math.nan, sums["roofline_ms"]
    band, guess = (BAND, GUESS) if topology.platform == "tpu" else (GPU_BAND, 1)
    low, high = (step_ms + guessed * (factor - 1) for factor in (1 / guess, guess))
    seconds, cores = step_ms / 1e3, topology.num_cores
    hours = figures["steps"] * seconds / 3600
    dcn_ms = sum(price.dcn_ms for price in prices)
    times = {
        "step_ms": step_ms,
        "step_ms_range": [low / band[1], high / band[0] + sums["collective_ms"] + dcn_ms],
        "scheduled_share": 1 - guessed / step_ms,
        "serial_ms": sums["serial_ms"],
        "collective_ms": sums["collective_ms"],
        "collective_mb": sum(price.collective_bytes for price in prices) / 1e6,
        "collective_hops": sum(price.collective_hops for price in prices),
        "dcn_ms": dcn_ms,
        "dcn_mb": sum(price.dcn_bytes for price in prices) / 1e6,
        "examples_per_second_per_core": figures["batch_size"] / seconds / cores,
        "mfu": figures["limit_ms"] / step_ms,
        "hours": hours,
        "core_days": hours * cores / 24,
        "cost": None if price is None else hours * cores * price,
    }
    return times if prices else dict.fromkeys(times)


def advise(
    figures: Mapping[str, Any], config: ConfigDict, data: DataInfo, tpu: TpuCompiler
) -> dict[str, Any]:
    """Compiles changes in turn and returns {flags, hbm_peak_gib, step_ms, core_days, tried}.

    `flags` are the first change that fits; None if none of `tried` does. Notes before each change
    why it is compiled.
    """
    name, tried, kept = figures["config"], [], ("hbm_peak_gib", "step_ms", "core_days")
    for change in changes(config, figures["hbm_peak_gib"] / figures["hbm_limit_gib"]):
        flags = [f"--config.{key}={value}" for key, value in change.items()]
        changed = ConfigDict(config.to_dict())
        changed.update_from_flattened_dict(change)
        text = " ".join(flags)
        need = "needs {hbm_peak_gib:.1f} of {hbm_limit_gib:.1f} GiB".format(**figures)
        tpu.note(f"{figures['config']}: {need}, does not fit; trying {text}")
        try:
            figures = plan_without_advice(f"{name} {text}", changed, data, tpu).figures
        except BadInputError:
            continue  # for example token groups that the smaller parts would split
        tried.append(text)
        if figures["fits"]:
            return {"flags": flags, **{key: figures[key] for key in kept}, "tried": tried}
    return dict.fromkeys(("flags", *kept)) | {"tried": tried}


def changes(config: ConfigDict, excess: float) -> list[dict[str, Any]]:
    """Returns changes of a config that save memory, least intrusive first.

    Memory falls at most in proportion to the number of parts, so changes into fewer parts than
    `excess` (memory needed divided by memory available) are left out: compiling them is in vain.
    """
    enough = 2 ** max(1, math.ceil(math.log2(excess)))
    parts = config.optimizer.accumulation_steps
    recompute = config.model.get("remat") == "none"
    return [
        *([{"model.remat": "block"}] if recompute else []),
        *({"optimizer.accumulation_steps": parts * n} for n in (enough, 2 * enough, 4 * enough)),
        *([{"sharding.fsdp": -1}] if config.sharding.fsdp != -1 else []),
        *({"batch_size": config.batch_size // n} for n in (enough, 2 * enough)),
    ]


def data_info(config: ConfigDict, **given: int | None) -> DataInfo:
    """Returns what is known of the data set that `config.data` names, or what a set here holds.

    Args:
      config: the run.
      **given: num_examples, num_classes and vocab_size; None where the caller does not know them.

    Raises:
      BadInputError: the task or the data set is unknown.
    """
    spec = task_spec(config.task.name)
    known = dict(zip(spec.sizes, spec.sets.get(set_name(config, spec), ()), strict=False))
    numbers = {**spec.usual, **known, **{k: v for k, v in given.items() if v is not None}}
    if "num_tokens" in numbers and "num_examples" not in numbers:
        windows = (numbers["num_tokens"] - 1) // config.data.max_length
        numbers["num_examples"] = windows // config.batch_size * config.batch_size
    needed = ["num_examples", *spec.sizes[1:]]
    if any(name not in numbers for name in needed):
        if config.data.path and Path(config.data.path).exists():
            return open_data(config).data_info
        flags = " ".join(f"--{name}=N" for name in needed)
        raise BadInputError(
            f"the size of the set {set_name(config, spec)!r} is unknown; add {flags} "
            f"(known sets: {', '.join(spec.sets)})"
        )
    info = {}
    if "num_classes" in spec.sizes:
        info["class_names"] = list(map(str, range(numbers["num_classes"])))
    if "vocab_size" in {*spec.sizes, *spec.usual}:
        info["vocab_size"] = numbers["vocab_size"]
    stream = StreamInfo() if spec.stream else None
    return DataInfo(numbers["num_examples"], resolve(spec.example)(config, None), info, stream)


def set_name(config: ConfigDict, spec: TaskSpec) -> str:
    """Returns the name of a set: its split, its name in TFDS, its directory or its source."""
    data = config.data
    if data.train_split in spec.sets:
        return data.train_split
    name = data.get("name", "") or PurePosixPath(data.path).name or data.source
    return name.partition("/")[0]


def forward_flops(model: Mapping, inputs: Shapes, **model_fields: int | str) -> int:
    """Returns the FLOPs of one example's forward pass through the model `config.model`.

    Args:
      model: `config.model`.
      inputs: shapes of the model's inputs, as `experiment.input_spec` returns them.
      **model_fields: fields of the task, such as num_classes.

    Raises:
      BadInputError: the model, or a part of its blocks, does not count its products.
    """
    module = build_model(model, **model_fields)
    sizes = (1, module.num_tokens(inputs), module.embed_dim)  # B, T, D
    memory = inputs["memory"].shape[2] if "memory" in inputs else 0  # M of [B, L, M, D]
    outside = method(module, "outside_flops", f"name={model['name']}")(inputs)
    field = f"attention.name={module.attention_name}"
    attention = method(module.attention, "forward_flops", field)(*sizes, memory=memory)
    names = module.ffn_names()
    blocks = {
        name: attention + method(module.feed_forwards[name], "forward_flops", f"ffn={name}")(*sizes)
        for name in names
    }
    runs = zip(module.loop.runs(), names, strict=True)
    return outside + sum(n * blocks[name] for n, name in runs)


def method(part: Settings | UserPart | nn.Module, name: str, field: str) -> Callable[..., int]:
    """Returns the method of a part or of a model that counts its products.

    Raises:
      BadInputError: it has none.
    """
    if not hasattr(part, name):
        kind = part.kind if isinstance(part, UserPart) else type(part)
        raise BadInputError(
            f"config.model.{field}: its FLOPs are not counted; add the method {name} to its class "
            f"{kind.__name__}"
        )
    return getattr(part, name)


def train_flops(model: Mapping, inputs: Shapes, **model_fields: int | str) -> int:
    """Returns the FLOPs of one example in a training step; arguments as in `forward_flops`."""
    return 3 * forward_flops(model, inputs, **model_fields)
