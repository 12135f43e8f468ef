"""Plans as text: one plan as rows of name and value, several as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from widenet_jax.moe.layer import dispatch_text
from widenet_jax.paper import PRETRAINING
from widenet_jax.tools.markdown import markdown_table

PAPER_CORE_DAYS = {row.variant: row.core_days for row in PRETRAINING if row.core_days}
# Every model of the paper, and WideNet with groups of one image, whose dispatch is cheaper.
PAPER_VARIANTS = (
    *(row.variant for row in PRETRAINING),
    *("widenet_b,examples_per_group=1", "widenet_l,examples_per_group=1"),
)


def plan_rows(facts: Mapping[str, Any]) -> str:
    """Formats one plan."""
    memory = f"{facts['hbm_peak_gib']:.1f} of {facts['hbm_limit_gib']:.1f} GiB: "
    memory += "fits" if facts["fits"] else "does not fit"
    rows = [
        ("config", facts["config"]),
        ("slice", slice_text(facts)),
        ("parameters, unique", f"{facts['params']:,}"),
        ("parameters, unrolled", f"{facts['params_unrolled']:,}"),
        ("training GFLOPs", f"{facts['gflops_per_example']:.1f} per example"),
        ("memory per device", memory),
    ]
    if facts["dispatch"]:
        rows.insert(-1, ("dispatch", dispatch_text(facts["dispatch"])))
    if facts["step_ms"] is not None:
        share = facts["compiler_priced_share"]
        priced = f"{share:.1%} priced by the compiler, {1 - share:.1%} by roofline"
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
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def slice_text(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['topology']}: {facts['cores']} cores, batch {facts['batch_size']}, "
        f"{facts['examples_per_core']:g} {facts['unit']} per core"
    )


def advice_text(advice: Mapping[str, Any]) -> str:
    if advice["flags"] is None:
        tried = "; ".join(advice["tried"]) or "the config allows no change"
        return f"none found (tried: {tried}). Use more cores or a smaller model"
    return (
        f"add {' '.join(advice['flags'])}: {advice['hbm_peak_gib']:.1f} GiB, "
        f"{advice['step_ms']:.1f} ms (compiled)"
    )


def comparison(plans: Sequence[Mapping[str, Any]], paper: bool) -> str:
    """Formats several plans as a Markdown table; `paper` adds the core-days of Table 4."""
    header = ["config", "parameters", "HBM GiB", "ms/step", "at 100% MFU", "priced by compiler",
              "collectives ms (MB)", f"{plans[0]['unit']}/s/core", "MFU", "core-days"]  # fmt: skip
    header += ["paper"] if paper else []
    header += ["cost"] if any(facts["cost"] is not None for facts in plans) else []
    rows = [header] + [
        [
            facts["config"],
            f"{facts['params'] / 1e6:.1f}M",
            f"{facts['hbm_peak_gib']:.1f}{'' if facts['fits'] else ' (does not fit)'}",
            *time_cells(facts),
            *([str(PAPER_CORE_DAYS.get(facts["config"].partition(":")[2], "-"))] if paper else []),
            *([number(facts["cost"], ",.0f")] if "cost" in header else []),
        ]
        for facts in plans
    ]
    notes = [f"{plan['config']}: {advice_text(plan['advice'])}" for plan in plans if plan["advice"]]
    return "\n".join([markdown_table(rows), *([""] if notes else []), *notes])


def time_cells(facts: Mapping[str, Any]) -> list[str]:
    collectives = "-"
    if facts["collective_ms"] is not None:
        collectives = f"{facts['collective_ms']:.1f} ({facts['collective_mb']:,.0f})"
    return [
        number(facts["step_ms"], ".1f"),
        f"{facts['limit_ms']:.1f}",
        number(facts["compiler_priced_share"], ".1%"),
        collectives,
        number(facts["examples_per_second_per_core"], ".1f"),
        number(facts["mfu"], ".1%"),
        number(facts["core_days"], ".1f"),
    ]


def number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def breakdown_table(parts: Mapping[str, Mapping[str, float]]) -> str:
    """Formats the parts of a step, slowest first."""
    total = sum(part["ms"] for part in parts.values())
    lines = [f"{'part':<20}{'ms':>9}{'share':>8}{'by roofline':>13}{'collectives':>13}"]
    lines += [
        f"{name:<20}{part['ms']:>9.2f}{part['ms'] / total:>8.1%}{part['roofline_ms']:>13.2f}"
        f"{part['collective_ms']:>13.2f}"
        for name, part in parts.items()
    ]
    return "\n".join(lines)
