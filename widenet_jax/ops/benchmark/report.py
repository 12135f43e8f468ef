"""Benchmark rows as a table; the times of layers as curves."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from widenet_jax.run.figures import subplots
from widenet_jax.run.tables import markdown_table

# Columns of sizes; the first that varies is the horizontal axis.
SIZES = ("embed_dim", "experts", "expert_dim", "selected", "tokens", "length")
LABELS = {"ms": "ms, forward and backward", "memory_gib": "GiB"}  # of the vertical axes


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats rows with the same keys as a Markdown table."""
    return markdown_table([list(rows[0]), *([cell(v) for v in row.values()] for row in rows)])


def cell(value: Any) -> str:
    """Formats a value: floats with three significant digits, None as "-", others unchanged."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def draw_layers(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws one line per method of `feed_forward_row` against the first size that varies."""
    varying = [name for name in SIZES if len({row[name] for row in rows}) > 1] or SIZES[:1]
    across = varying[0]
    # Sizes that differ at one point of the axis tell lines apart; others follow from it.
    points = sorted({row[across] for row in rows})
    others = [
        name
        for name in varying[1:]
        if any(len({row[name] for row in rows if row[across] == x}) > 1 for x in points)
    ]
    figure, axes = subplots(1, len(LABELS), size=(5 * len(LABELS), 4))
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = ", ".join(describe(n, row[n]) for n in ("method", *others))
        lines.setdefault(name, []).append(row)
    for axis, (value, label) in zip(axes, LABELS.items(), strict=True):
        for name, line in lines.items():
            known = [row for row in line if row[value] is not None]
            x, y = ([row[n] for row in known] for n in (across, value))
            axis.plot(x, y, marker="o", ms=4, label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(points, [f"{x:,}" for x in points])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(across.replace("_", " "))
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    fixed = [describe(n, rows[0][n]) for n in SIZES if n not in varying]
    figure.suptitle(f"{rows[0]['device']}: {', '.join(fixed)}", fontsize=10)
    return figure


def describe(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name.replace('_', ' ')} {value}"
