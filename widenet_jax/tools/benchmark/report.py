"""Benchmark rows as a table and as a bar chart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widenet_jax.tools.analysis.figures import save, subplots
from widenet_jax.tools.markdown import markdown_table

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
    """Draws one bar per row, in the order of the table, as a PNG file."""
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
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def describe(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name.replace('_', ' ')} {value}"
