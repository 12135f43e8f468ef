"""Plans for people: one as rows of name and value, several as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from widenet_jax.models.sizes import IMAGENET_ROWS
from widenet_jax.models.vit import dispatch_text
from widenet_jax.tools.markdown import markdown_table

# Table 4 of the paper: core-days of TPUv3 for 300 epochs on ImageNet.
PAPER_CORE_DAYS = {
    "vit_l": 80,
    "vit_l,share=true": 70,
    "vit_l,share=true,mlp_dim=8192": 90,
    "widenet_l,depth=12": 70,
    "widenet_l": 140,
}
# Every model once (two rows of Table 3 name the same run), and WideNet with the cheaper dispatch.
PAPER_VARIANTS = (
    *dict.fromkeys(variant for _, _, variant, _ in IMAGENET_ROWS),
    *("widenet_b,images_per_group=1", "widenet_l,images_per_group=1"),
)


def plan_rows(facts: Mapping[str, Any]) -> str:
    """One plan."""
    rows = [
        ("config", facts["config"]),
        ("slice", slice_text(facts)),
        ("parameters, unique", f"{facts['params']:,}"),
        ("parameters, unrolled", f"{facts['params_unrolled']:,}"),
        ("GFLOPs an image, training", f"{facts['gflops_per_image']:.1f}"),
        ("memory of a device", memory_text(facts)),
    ]
    if facts["dispatch"]:
        rows.insert(-1, ("dispatch", dispatch_text(facts["dispatch"])))
    if facts["step_ms"] is not None:
        share = facts["compiler_priced_share"]
        rows += [
            (
                "step",
                f"{facts['step_ms']:.1f} ms, {share:.1%} of it priced by the compiler, "
                f"{1 - share:.1%} by roofline",
            ),
            (
                "collectives, apart",
                f"{facts['collective_ms']:.1f} ms for {facts['collective_mb']:,.0f} MB a device",
            ),
            ("images/s a core", f"{facts['images_per_second_per_core']:.1f}"),
            ("MFU", f"{facts['mfu']:.1%} (at 100% a step takes {facts['limit_ms']:.1f} ms)"),
            (
                "the run",
                f"{facts['steps']:,} steps: {facts['hours']:.1f} hours, "
                f"{facts['core_days']:.1f} core-days",
            ),
        ]
    if facts["cost"] is not None:
        rows.append(("cost", f"{facts['cost']:,.2f}"))
    if facts["advice"]:
        rows.append(("to make it fit", advice_text(facts["advice"])))
    rows.append(("compiled in", f"{facts['compile_seconds']:.0f} s"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def slice_text(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['topology']}: {facts['cores']} cores, batch {facts['batch_size']}, "
        f"{facts['images_per_core']:g} images a core"
    )


def memory_text(facts: Mapping[str, Any]) -> str:
    verdict = "fits" if facts["fits"] else "does not fit"
    return f"{facts['hbm_peak_gib']:.1f} of {facts['hbm_limit_gib']:.1f} GiB: {verdict}"


def advice_text(advice: Mapping[str, Any]) -> str:
    if advice["flags"] is None:
        tried = "; ".join(advice["tried"]) or "no change that this config allows"
        return f"nothing that was tried: {tried}. Use more cores or a smaller model"
    return (
        f"add {' '.join(advice['flags'])}: {advice['hbm_peak_gib']:.1f} GiB, "
        f"{advice['step_ms']:.1f} ms (compiled)"
    )


def comparison(plans: Sequence[Mapping[str, Any]], paper: bool) -> str:
    """Several plans as a Markdown table; with Table 4's core-days where `paper` is set."""
    header = ["config", "parameters", "HBM GiB", "ms/step", "at 100% MFU", "priced by compiler",
              "collectives ms (MB)", "images/s/core", "MFU", "core-days"]  # fmt: skip
    header += ["paper"] if paper else []
    header += ["cost"] if any(facts["cost"] is not None for facts in plans) else []
    rows = [header] + [
        [
            facts["config"],
            f"{facts['params'] / 1e6:.1f}M",
            memory_cell(facts),
            *time_cells(facts),
            *([paper_cell(facts)] if paper else []),
            *([number(facts["cost"], ",.0f")] if "cost" in header else []),
        ]
        for facts in plans
    ]
    notes = [
        f"{facts['config']}: {advice_text(facts['advice'])}" for facts in plans if facts["advice"]
    ]
    return "\n".join([markdown_table(rows), *([""] if notes else []), *notes])


def memory_cell(facts: Mapping[str, Any]) -> str:
    return f"{facts['hbm_peak_gib']:.1f}" + ("" if facts["fits"] else " (does not fit)")


def time_cells(facts: Mapping[str, Any]) -> list[str]:
    collectives = "-"
    if facts["collective_ms"] is not None:
        collectives = f"{facts['collective_ms']:.1f} ({facts['collective_mb']:,.0f})"
    return [
        number(facts["step_ms"], ".1f"),
        f"{facts['limit_ms']:.1f}",
        number(facts["compiler_priced_share"], ".1%"),
        collectives,
        number(facts["images_per_second_per_core"], ".1f"),
        number(facts["mfu"], ".1%"),
        number(facts["core_days"], ".1f"),
    ]


def paper_cell(facts: Mapping[str, Any]) -> str:
    variant = facts["config"].partition(":")[2]
    return str(PAPER_CORE_DAYS.get(variant, "-"))


def number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def breakdown_table(parts: Mapping[str, Mapping[str, float]]) -> str:
    """Parts of the step, dearest first."""
    total = sum(part["ms"] for part in parts.values())
    lines = [f"{'part':<20}{'ms':>9}{'share':>8}{'by roofline':>13}{'collectives':>13}"]
    lines += [
        f"{name:<20}{part['ms']:>9.2f}{part['ms'] / total:>8.1%}{part['roofline_ms']:>13.2f}"
        f"{part['collective_ms']:>13.2f}"
        for name, part in parts.items()
    ]
    return "\n".join(lines)
