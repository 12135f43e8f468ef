"""Plans as text: one plan as rows of name and value, several as a table."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from widenet_jax.nn.moe.dispatch import dispatch_text
from widenet_jax.ops.plan.printed import PRETRAINING
from widenet_jax.run.tables import table_of, text_table

PAPER_CORE_DAYS = {row.variant: row.core_days for row in PRETRAINING if row.core_days}
# Every model of the paper, and WideNet with groups of one image, whose dispatch is cheaper.
PAPER_VARIANTS = (
    *(row.variant for row in PRETRAINING),
    "widenet_b,examples_per_group=1",
    "widenet_l,examples_per_group=1",
)


def digits(value: float, decimals: int = 1) -> str:
    """Formats a number with these decimals, and below 1 with three digits."""
    return f"{value:,.{decimals}f}" if value >= 1 else f"{value:.3g}"


def plan_rows(plan: Mapping[str, Any]) -> str:
    """Formats one plan."""
    memory = f"{digits(plan['hbm_peak_gib'])} of {plan['hbm_limit_gib']:.1f} GiB: "
    memory += "fits" if plan["fits"] else "does not fit"
    if plan["carry_gib"]:
        memory += f"; {plan['carry_gib']:.2f} GiB of it are carried from step to step"
    batch = f"batch {plan['batch_size']}, {plan['examples_per_core']:g} {plan['unit']} per core"
    rows = [
        ("config", plan["config"]),
        ("slice", f"{plan['topology']}: {plan['cores']} cores, {batch}"),
        ("parameters, unique", f"{plan['params']:,}"),
        ("parameters, unrolled", f"{plan['params_unrolled']:,}"),
        ("training GFLOPs", f"{digits(plan['gflops_per_example'])} per example"),
        ("dispatch", plan["dispatch"] and dispatch_text(plan["dispatch"])),
        ("memory per device", memory),
        *(time_rows(plan) if plan["step_ms"] is not None else ()),
        ("cost", plan["cost"] is not None and with_range(plan, "cost", 2)),
        ("change that fits", plan["advice"] and advice_text(plan["advice"])),
        ("compile time", f"{plan['compile_seconds']:.0f} s"),
    ]
    return text_table([row for row in rows if row[1]])


def time_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of a plan whose step compiles into the memory."""
    share, (low, high) = plan["scheduled_share"], plan["step_ms_range"]
    how = f"{share:.1%} by the compiler's schedules, {1 - share:.1%} guessed"
    step = (
        f"{digits(plan['step_ms'])} ms; {digits(low)} to {digits(high)} by calibration, with "
        f"collectives; {'roofline, not schedule' if plan['kernels'] else how}"
    )
    kernels = [
        f"{sums['count']:,} {kind} {digits(sums['ms'])} ms"
        for kind, sums in plan["kernels"].items()
    ]
    hops = f" and {plan['collective_hops']:,.0f} hops" if plan["collective_hops"] else ""
    megabytes = digits(plan["collective_mb"], 0)
    sent = f"{digits(plan['collective_ms'])} ms for {megabytes} MB per device{hops}"
    between = f"{digits(plan['dcn_ms'])} ms for {digits(plan['dcn_mb'])} MB per device"
    days = with_range(plan, "core_days", unit=" core-days")
    length = f"{plan['steps']:,} steps: {digits(plan['hours'])} hours, {days}"
    return [
        ("step", step),
        *([("kernels", ", ".join(kernels))] if kernels else []),
        ("collectives, in addition", sent),
        *([("between slices, in addition", between)] if plan["dcn_mb"] else []),
        (f"{plan['unit']}/s per core", f"{plan['examples_per_second_per_core']:.1f}"),
        ("MFU", f"{plan['mfu']:.1%} (at 100% a step takes {digits(plan['limit_ms'])} ms)"),
        ("run", length),
    ]


def with_range(plan: Mapping[str, Any], name: str, decimals: int = 1, unit: str = "") -> str:
    """Formats a figure that is proportional to the step's time, and its range."""
    times = (plan["step_ms"], *plan["step_ms_range"])
    planned, low, high = (digits(plan[name] * ms / times[0], decimals) for ms in times)
    return f"{planned}{unit}, {low} to {high} with the step's range"


def advice_text(advice: Mapping[str, Any]) -> str:
    if advice["flags"] is None:
        tried = "; ".join(advice["tried"]) or "the config allows no change"
        return f"none found (tried: {tried}). Use more cores or a smaller model"
    return (
        f"add {' '.join(advice['flags'])}: {advice['hbm_peak_gib']:.1f} GiB, "
        f"{advice['step_ms']:.1f} ms, {advice['core_days']:.1f} core-days (compiled)"
    )


def comparison(plans: Sequence[Mapping[str, Any]], paper: bool) -> str:
    """Formats several plans as a Markdown table; `paper` adds the core-days of Table 4."""

    def timed(template: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda plan: "-" if plan["step_ms"] is None else template.format_map(plan)

    columns = {
        "config": "{config}",
        "parameters": lambda plan: f"{plan['params'] / 1e6:.1f}M",
        "HBM GiB": lambda plan: (
            f"{plan['hbm_peak_gib']:.1f}{'' if plan['fits'] else ' (does not fit)'}"
        ),
        "ms/step": timed("{step_ms:.1f}"),
        "range": timed("{step_ms_range[0]:.0f} to {step_ms_range[1]:.0f}"),
        "at 100% MFU": "{limit_ms:.1f}",
        "without overlap": timed("{serial_ms:.1f}"),
        "by schedule": timed("{scheduled_share:.1%}"),
        "collectives ms": timed("{collective_ms:.1f}"),
        "collectives MB": timed("{collective_mb:,.0f}"),
        f"{plans[0]['unit']}/s/core": timed("{examples_per_second_per_core:.1f}"),
        "MFU": timed("{mfu:.1%}"),
        "core-days": timed("{core_days:.1f}"),
    }
    if paper:
        days = PAPER_CORE_DAYS
        columns["paper"] = lambda plan: str(days.get(plan["config"].partition(":")[2], "-"))
    if any(plan["dcn_mb"] for plan in plans):
        columns |= {"slices ms": timed("{dcn_ms:.2f}"), "slices MB": timed("{dcn_mb:,.1f}")}
    if any(plan["cost"] is not None for plan in plans):
        columns["cost"] = timed("{cost:,.0f}")
    notes = [f"{plan['config']}: {advice_text(plan['advice'])}" for plan in plans if plan["advice"]]
    return "\n".join([table_of(columns, plans), *([""] if notes else []), *notes])


def by_slice(plans: Sequence[Mapping[str, Any]]) -> str:
    """Formats plans of several slices as a Markdown table, a row for each config.

    A cell has ms/step, MFU and core-days, or "does not fit".
    """
    found = {(plan["config"], plan["topology"]): plan for plan in plans}

    def cell(config: str, topology: str) -> str:
        plan = found[config, topology]
        fits = "{step_ms:.1f}, {mfu:.1%}, {core_days:.1f}"
        return fits.format_map(plan) if plan["fits"] else "does not fit"

    slices = dict.fromkeys(plan["topology"] for plan in plans)
    columns = {name: partial(cell, topology=name) for name in slices}
    configs = dict.fromkeys(plan["config"] for plan in plans)
    return table_of({"ms, MFU, core-days": str} | columns, configs)


def breakdown_table(parts: Mapping[str, Mapping[str, float]]) -> str:
    """Formats the parts of a step, slowest first."""
    total = sum(part["ms"] for part in parts.values())
    names = ("without overlap", "by estimate", "guessed", "collectives")
    lines = [f"{'part':<20}{'ms':>9}{'share':>8}" + "".join(f"{name:>17}" for name in names)]
    for name, (ms, *others) in ((name, part.values()) for name, part in parts.items()):
        shown = "".join(f"{other:>17.2f}" for other in others)
        lines.append(f"{name:<20}{ms:>9.2f}{ms / total:>8.1%}{shown}")
    return "\n".join(lines)
