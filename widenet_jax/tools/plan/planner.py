"""A plan: what a run would cost on TPUs nobody has rented yet, and whether it fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.config.durations import to_steps
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import DataFacts
from widenet_jax.models.vit import (
    build_model,
    count_parameters,
    count_unrolled,
    dispatch_methods,
    parameter_shapes,
)
from widenet_jax.tools.plan.compile import CompiledStep, TpuCompiler
from widenet_jax.tools.plan.flops import train_flops
from widenet_jax.tools.plan.hlo import parse
from widenet_jax.tools.plan.pricing import Price, price_module
from widenet_jax.tools.plan.topology import Topology

GIB = 2**30


@dataclass(frozen=True)
class Plan:
    """One config on one slice.

    Attributes:
      facts: what `--json` prints; see `plan_run`.
      prices: every instruction's part; empty where the step does not fit.
      hlo: the optimised program; '' where it does not fit.
    """

    facts: dict[str, Any]
    prices: list[Price] = field(repr=False)
    hlo: str = field(repr=False)


def plan_run(
    name: str,
    config: ConfigDict,
    data: DataFacts,
    compiler: TpuCompiler,
    *,
    price_per_core_hour: float | None = None,
) -> Plan:
    """Compiles a run's training step for a slice of TPUs and prices it.

    Where it does not fit, changes that make it fit are looked for by compiling them.

    Args:
      name: of the config, for the report.
      config: the run.
      data: of the training set.
      compiler: for the slice.
      price_per_core_hour: in any currency.

    Returns:
      A plan whose `facts` are: config, topology, cores, devices, batch_size, images_per_core,
      params, params_unrolled, gflops_per_image (training), dispatch ({"training": method,
      "evaluation": method}; None without experts), limit_ms (a step at 100% MFU),
      hbm_peak_gib, hbm_limit_gib (of a device), fits, step_ms (without collectives),
      compiler_priced_share (of step_ms), collective_ms, collective_mb (sent by a device a step),
      images_per_second_per_core, mfu, steps, hours, core_days, cost, compile_seconds, advice. The
      times are None where it does not fit, `cost` without a price, `advice` where none is needed.

    Raises:
      BadInputError: the config, the data or the slice do not go together; libtpu is missing.
    """
    topology = compiler.topology
    num_classes = len(data.class_names)
    model = build_model(config.model, num_classes)
    shapes = parameter_shapes(model, data.image_shape)
    step = compiler.compile(name, config, data)
    prices = price_module(parse(step.hlo), topology) if step.fits else []
    flops = train_flops(config.model, data.image_shape, num_classes)
    peak_flops = topology.peak_flops * topology.num_devices
    facts = {
        "config": name,
        "topology": topology.name,
        "cores": topology.num_cores,
        "devices": topology.num_devices,
        "batch_size": config.batch_size,
        "images_per_core": config.batch_size / topology.num_cores,
        "params": count_parameters(shapes),
        "params_unrolled": count_unrolled(model, data.image_shape),
        "gflops_per_image": flops / 1e9,
        "dispatch": dispatch_methods(config.model, data.image_shape, platform="tpu"),
        "limit_ms": 1e3 * flops * config.batch_size / peak_flops,
        "hbm_peak_gib": step.peak_bytes / GIB,
        "hbm_limit_gib": topology.chip.hbm_limit,
        "fits": fits(step, topology),
        "compile_seconds": step.seconds,
        "steps": to_steps(
            config.duration,
            field="config.duration",
            batch_size=config.batch_size,
            num_examples=data.num_examples,
        ),
    }
    facts |= times(facts, prices, topology, price_per_core_hour)
    facts["advice"] = None
    if not facts["fits"]:
        facts["advice"] = advise(name, config, data, compiler, step)
    return Plan(facts, prices, step.hlo)


def fits(step: CompiledStep, topology: Topology) -> bool:
    """The compiler counts data alone; the program has to lie in the same memory."""
    return step.fits and step.peak_bytes <= topology.chip.hbm_limit * GIB


def times(
    facts: Mapping[str, Any],
    prices: list[Price],
    topology: Topology,
    price_per_core_hour: float | None,
) -> dict[str, Any]:
    """The part of a plan's facts that follows from the prices."""
    names = ("step_ms", "compiler_priced_share", "collective_ms", "collective_mb",
             "images_per_second_per_core", "mfu", "hours", "core_days", "cost")  # fmt: skip
    if not prices:
        return dict.fromkeys(names)
    step_ms = sum(price.ms for price in prices)
    seconds, cores = step_ms / 1e3, topology.num_cores
    hours = facts["steps"] * seconds / 3600
    values = (
        step_ms,
        sum(price.compiler_ms for price in prices) / step_ms,
        sum(price.collective_ms for price in prices),
        sum(price.collective_bytes for price in prices) / 1e6,
        facts["batch_size"] / seconds / cores,
        facts["limit_ms"] / step_ms,
        hours,
        hours * cores / 24,
        None if price_per_core_hour is None else hours * cores * price_per_core_hour,
    )
    return dict(zip(names, values, strict=True))


def advise(
    name: str, config: ConfigDict, data: DataFacts, compiler: TpuCompiler, step: CompiledStep
) -> dict[str, Any]:
    """The first change that makes a step fit: {flags, hbm_peak_gib, step_ms, tried}.

    `flags` is None where none of `tried` helps.
    """
    topology, tried = compiler.topology, []
    for change in changes(config, step.peak_bytes / (topology.chip.hbm_limit * GIB)):
        flags = [f"--config.{key}={value}" for key, value in change.items()]
        changed = ConfigDict(config.to_dict())
        changed.update_from_flattened_dict(change)
        try:
            attempt = compiler.compile(f"{name} {' '.join(flags)}", changed, data)
        except BadInputError:
            continue  # such as groups of images that the smaller parts would cut
        tried.append(" ".join(flags))
        if fits(attempt, topology):
            prices = price_module(parse(attempt.hlo), topology)
            peak, ms = attempt.peak_bytes / GIB, sum(price.ms for price in prices)
            return {"flags": flags, "hbm_peak_gib": peak, "step_ms": ms, "tried": tried}
    return {"flags": None, "hbm_peak_gib": None, "step_ms": None, "tried": tried}


def changes(config: ConfigDict, excess: float) -> list[dict[str, Any]]:
    """Changes of a config that save memory, those that change least first.

    What is worked on at once shrinks with the number of parts, so fewer parts than `excess` (memory
    needed over memory there is) are not worth a compilation.
    """
    enough = 2
    while enough < excess:
        enough *= 2
    parts = config.optimizer.accumulation_steps
    recompute = config.model.get("remat") == "none"
    return [
        *([{"model.remat": "block"}] if recompute else []),
        *({"optimizer.accumulation_steps": parts * n} for n in (enough, 2 * enough, 4 * enough)),
        *([{"sharding.fsdp": -1}] if config.sharding.fsdp != -1 else []),
        *({"batch_size": config.batch_size // n} for n in (enough, 2 * enough)),
    ]
