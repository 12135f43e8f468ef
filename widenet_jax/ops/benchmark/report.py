"""Benchmark rows as a table and as a bar chart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from widenet_jax.run.figures import save, subplots
from widenet_jax.run.markdown import markdown_table

# benchmark -> (columns that name a row, column of the bars, axis label)
PICTURES = {
    "train_step": (("config", "batch_size"), "examples_per_second", "examples/s"),
    "dispatch": (
        ("method", "images", "tokens", "examples_per_group", "experts", "selected", "embed_dim",
         "mlp_dim"),
        "ms", "ms, forward and backward",
    ),
    "checkpoint": (("config",), "save_s", "s until a checkpoint is written and read back"),
    "input": (("operations", "pipeline"), "images_per_second", "images/s"),
    "text": (("pipeline",), "sequences_per_second", "sequences/s"),
}  # fmt: skip
# benchmark -> (columns of sizes, of which the first that varies is the horizontal axis; the column
# of the lines; columns of the vertical axes and their labels)
CURVES = {
    "feed_forward": (
        ("embed_dim", "experts", "expert_dim", "selected", "tokens", "length"), "method",
        {"ms": "ms, forward and backward", "memory_gib": "GiB"},
    ),
}  # fmt: skip


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


def draw(benchmark: str, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws the rows as a PNG file: as curves over a size, or as bars in the table's order."""
    figure = draw_curves(benchmark, rows) if benchmark in CURVES else draw_bars(benchmark, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def draw_curves(benchmark: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws one line per method against the first size that varies."""
    sizes, kind, values = CURVES[benchmark]
    varying = [name for name in sizes if len({row[name] for row in rows}) > 1] or sizes[:1]
    across = varying[0]
    # Sizes that differ at one point of the axis tell lines apart; others follow from it.
    points = sorted({row[across] for row in rows})
    others = [
        name
        for name in varying[1:]
        if any(len({row[name] for row in rows if row[across] == x}) > 1 for x in points)
    ]
    figure, axes = subplots(1, len(values), size=(5 * len(values), 4))
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = ", ".join(describe(n, row[n]) for n in (kind, *others))
        lines.setdefault(name, []).append(row)
    for axis, (value, label) in zip(axes, values.items(), strict=True):
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
    fixed = [describe(n, rows[0][n]) for n in sizes if n not in varying]
    figure.suptitle(f"{rows[0]['device']}: {', '.join(fixed)}", fontsize=10)
    return figure


def draw_bars(benchmark: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws one bar per row, in the order of the table."""
    names, value, label = PICTURES[benchmark]
    varying = [n for n in names if len({row[n] for row in rows}) > 1] or names[:1]
    labels = [", ".join(describe(n, row[n]) for n in varying) for row in rows]
    values = [row[value] for row in rows]
    figure, axes = subplots(size=(9, 1.2 + 0.32 * len(rows)))
    first = names[0]
    kinds = list(dict.fromkeys(row[first] for row in rows))
    bars = axes.barh(labels, values, color=[f"C{kinds.index(row[first]) % 10}" for row in rows])
    axes.bar_label(bars, [cell(float(v)) for v in values], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel(label)
    fixed = [describe(n, rows[0][n]) for n in names if n not in varying]
    axes.set_title(f"{benchmark}: {', '.join(fixed)}" if fixed else benchmark, fontsize=10)
    return figure


def describe(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name.replace('_', ' ')} {value}"
