"""Plans as text: one plan as rows of name and value, several as a table."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from widenet_jax.nn.moe.layer import dispatch_text
from widenet_jax.ops.plan.printed import PRETRAINING
from widenet_jax.run.tables import table_of, text_table

PAPER_CORE_DAYS = {row.variant: row.core_days for row in PRETRAINING if row.core_days}
# Every model of the paper, and WideNet with groups of one image, whose dispatch is cheaper.
PAPER_VARIANTS = (
    *(row.variant for row in PRETRAINING),
    "widenet_b,examples_per_group=1",
    "widenet_l,examples_per_group=1",
)


def plan_rows(facts: Mapping[str, Any]) -> str:
    """Formats one plan."""
    memory = f"{facts['hbm_peak_gib']:.1f} of {facts['hbm_limit_gib']:.1f} GiB: "
    memory += "fits" if facts["fits"] else "does not fit"
    if facts["carry_gib"]:
        memory += f"; {facts['carry_gib']:.2f} GiB of it are carried from step to step"
    batch = f"batch {facts['batch_size']}, {facts['examples_per_core']:g} {facts['unit']} per core"
    rows = [
        ("config", facts["config"]),
        ("slice", f"{facts['topology']}: {facts['cores']} cores, {batch}"),
        ("parameters, unique", f"{facts['params']:,}"),
        ("parameters, unrolled", f"{facts['params_unrolled']:,}"),
        ("training GFLOPs", f"{facts['gflops_per_example']:.1f} per example"),
        ("memory per device", memory),
    ]
    if facts["dispatch"]:
        rows.insert(-1, ("dispatch", dispatch_text(facts["dispatch"])))
    if facts["step_ms"] is not None:
        share = facts["scheduled_share"]
        priced = f"{facts['serial_ms']:.1f} ms if no byte moved while computing; "
        priced += f"{share:.1%} by the compiler's schedules, {1 - share:.1%} by roofline"
        sent = f"{facts['collective_ms']:.1f} ms for {facts['collective_mb']:,.0f} MB per device"
        length = f"{facts['hours']:.1f} hours, {facts['core_days']:.1f} core-days"
        rows += [
            ("step", f"{facts['step_ms']:.1f} ms; {priced}"),
            ("collectives, in addition", sent),
            (f"{facts['unit']}/s per core", f"{facts['examples_per_second_per_core']:.1f}"),
            ("MFU", f"{facts['mfu']:.1%} (at 100% a step takes {facts['limit_ms']:.1f} ms)"),
            ("run", f"{facts['steps']:,} steps: {length}"),
        ]
    if facts["cost"] is not None:
        rows.append(("cost", f"{facts['cost']:,.2f}"))
    if facts["advice"]:
        rows.append(("change that fits", advice_text(facts["advice"])))
    rows.append(("compile time", f"{facts['compile_seconds']:.0f} s"))
    return text_table(rows)


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

    def number(name: str, spec: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda facts: "-" if facts[name] is None else format(facts[name], spec)

    columns = {
        "config": lambda facts: facts["config"],
        "parameters": lambda facts: f"{facts['params'] / 1e6:.1f}M",
        "HBM GiB": lambda facts: (
            f"{facts['hbm_peak_gib']:.1f}{'' if facts['fits'] else ' (does not fit)'}"
        ),
        "ms/step": number("step_ms", ".1f"),
        "at 100% MFU": number("limit_ms", ".1f"),
        "without overlap": number("serial_ms", ".1f"),
        "by schedule": number("scheduled_share", ".1%"),
        "collectives ms": number("collective_ms", ".1f"),
        "collectives MB": number("collective_mb", ",.0f"),
        f"{plans[0]['unit']}/s/core": number("examples_per_second_per_core", ".1f"),
        "MFU": number("mfu", ".1%"),
        "core-days": number("core_days", ".1f"),
    }
    if paper:
        columns["paper"] = lambda facts: str(
            PAPER_CORE_DAYS.get(facts["config"].partition(":")[2], "-")
        )
    if any(facts["cost"] is not None for facts in plans):
        columns["cost"] = number("cost", ",.0f")
    notes = [f"{plan['config']}: {advice_text(plan['advice'])}" for plan in plans if plan["advice"]]
    return "\n".join([table_of(columns, plans), *([""] if notes else []), *notes])


def breakdown_table(parts: Mapping[str, Mapping[str, float]]) -> str:
    """Formats the parts of a step, slowest first."""
    total = sum(part["ms"] for part in parts.values())
    names = {
        "without overlap": "serial_ms",
        "by estimate": "estimate_ms",
        "by roofline": "roofline_ms",
        "collectives": "collective_ms",
    }
    lines = [f"{'part':<20}{'ms':>9}{'share':>8}" + "".join(f"{name:>17}" for name in names)]
    lines += [
        f"{name:<20}{part['ms']:>9.2f}{part['ms'] / total:>8.1%}"
        + "".join(f"{part[time]:>17.2f}" for time in names.values())
        for name, part in parts.items()
    ]
    return "\n".join(lines)
