"""Plans: whether a run fits a TPU slice, and its time and cost there, without a TPU."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.config.durations import to_steps
from widenet_jax.data.contract import DataInfo
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_task, input_spec
from widenet_jax.nn.build import build_model
from widenet_jax.nn.counting import count_parameters, count_unrolled, parameter_shapes
from widenet_jax.nn.moe.layer import dispatch_methods
from widenet_jax.ops.plan.compile import CompiledStep, TpuCompiler
from widenet_jax.ops.plan.flops import train_flops
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.pricing import Price, price_module
from widenet_jax.ops.plan.topology import Topology

GIB = 2**30


@dataclass(frozen=True)
class Plan:
    """The plan of one config on one slice.

    Attributes:
      facts: the JSON object that `--json` prints:
        config, topology, cores, devices: names and sizes.
        unit: what the task calls an example, in the plural.
        batch_size, examples_per_core, steps: of the run.
        params, params_unrolled: parameters, and those of the same model without sharing.
        carry_gib: what a device keeps between steps beside parameters and optimizer, see
          `tasks.Task.carry_spec`; a part of its memory.
        gflops_per_example: of a training step.
        dispatch: {"training": method, "evaluation": method}; {} without experts.
        limit_ms: time of a step at 100% MFU.
        hbm_peak_gib, hbm_limit_gib, fits: memory of a device.
        compile_seconds: time that the compiler took.
        step_ms, compiler_priced_share: time of a step without collectives, and the share of it that
          the compiler's cycle estimates cover.
        collective_ms, collective_mb: time of the collectives, and megabytes that a device sends.
        examples_per_second_per_core, mfu, hours, core_days: at `step_ms`.
        cost: None without a price.
        advice: a change that makes the step fit, see `advise`; None if it fits.
        The times, from step_ms to cost, are None if the step does not compile into the memory.
      prices: cost of every instruction; empty without times.
      hlo: the optimised program; "" without times.
    """

    facts: dict[str, Any]
    prices: list[Price] = field(repr=False)
    hlo: str = field(repr=False)


def plan_run(
    name: str, config: ConfigDict, data: DataInfo, tpu: TpuCompiler, price: float | None = None
) -> Plan:
    """Compiles a run's training step for a TPU slice and prices it.

    If the step does not fit, compiles changes until one fits.

    Args:
      name: the config's name, for the report.
      config: the run.
      data: facts about the training set.
      tpu: compiles for the slice.
      price: of a core for an hour, in any currency; None if unknown.

    Raises:
      BadInputError: the config contradicts itself, the data or the slice; libtpu is missing.
    """
    topology = tpu.topology
    facts = {"config": name} | size_facts(config, data, topology)
    step = tpu.compile(name, config, data)
    prices = price_module(parse(step.hlo), topology) if step.fits else []
    facts |= {
        "hbm_peak_gib": step.peak_bytes / GIB,
        "hbm_limit_gib": topology.chip.hbm_limit,
        "fits": fits(step, topology),
        "compile_seconds": step.seconds,
    }
    facts |= time_facts(facts, prices, topology, price)
    facts["advice"] = None if facts["fits"] else advise(name, config, data, tpu, step)
    return Plan(facts, prices, step.hlo)


def size_facts(config: ConfigDict, data: DataInfo, topology: Topology) -> dict[str, Any]:
    """Returns the facts of a plan that need no compilation."""
    task = build_task(config, data)
    model, inputs = build_model(config.model, **task.model_fields), input_spec(task)
    flops = train_flops(config.model, inputs, **task.model_fields)
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
        "dispatch": dispatch_methods(config.model, model.num_tokens(inputs), platform="tpu"),
        "limit_ms": 1e3 * flops * config.batch_size / topology.peak_flops,
        "steps": to_steps(
            config.duration,
            field="config.duration",
            batch_size=config.batch_size,
            num_examples=data.num_examples,
        ),
    }


def fits(step: CompiledStep, topology: Topology) -> bool:
    """Returns whether the data and the program fit; the compiler itself checks the data alone."""
    return step.fits and step.peak_bytes <= topology.chip.hbm_limit * GIB


def time_facts(
    facts: Mapping[str, Any], prices: list[Price], topology: Topology, price: float | None
) -> dict[str, Any]:
    """Returns the facts of a plan that follow from the prices; None each without prices."""
    step_ms = sum(price.ms for price in prices) or math.nan
    seconds, cores = step_ms / 1e3, topology.num_cores
    hours = facts["steps"] * seconds / 3600
    times = {
        "step_ms": step_ms,
        "compiler_priced_share": sum(price.compiler_ms for price in prices) / step_ms,
        "collective_ms": sum(price.collective_ms for price in prices),
        "collective_mb": sum(price.collective_bytes for price in prices) / 1e6,
        "examples_per_second_per_core": facts["batch_size"] / seconds / cores,
        "mfu": facts["limit_ms"] / step_ms,
        "hours": hours,
        "core_days": hours * cores / 24,
        "cost": None if price is None else hours * cores * price,
    }
    return times if prices else dict.fromkeys(times)


def advise(
    name: str, config: ConfigDict, data: DataInfo, compiler: TpuCompiler, step: CompiledStep
) -> dict[str, Any]:
    """Compiles changes in turn and returns {flags, hbm_peak_gib, step_ms, core_days, tried}.

    `flags` are those of the first change that fits; None if none of `tried` does. Notes before each
    change why it is compiled.
    """
    topology, tried = compiler.topology, []
    limit, peak = topology.chip.hbm_limit, step.peak_bytes / GIB
    tested = name  # what needs `peak`
    for change in changes(config, peak / limit):
        flags = [f"--config.{key}={value}" for key, value in change.items()]
        changed = ConfigDict(config.to_dict())
        changed.update_from_flattened_dict(change)
        text = " ".join(flags)
        compiler.note(f"{tested}: needs {peak:.1f} of {limit:.1f} GiB, does not fit; trying {text}")
        try:
            attempt = compiler.compile(f"{name} {text}", changed, data)
        except BadInputError:
            continue  # for example token groups that the smaller parts would split
        tried.append(text)
        tested, peak = f"{name} {text}", attempt.peak_bytes / GIB
        if fits(attempt, topology):
            prices = price_module(parse(attempt.hlo), topology)
            times = time_facts(size_facts(changed, data, topology), prices, topology, None)
            found = {key: times[key] for key in ("step_ms", "core_days")}
            return {"flags": flags, "hbm_peak_gib": peak, **found, "tried": tried}
    return dict.fromkeys(("flags", "hbm_peak_gib", "step_ms", "core_days")) | {"tried": tried}


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
