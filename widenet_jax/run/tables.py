"""Tables as Markdown, plain text and CSV, and rows on metrics."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows as a Markdown table; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def table_of(columns: Mapping[str, str | Callable[[Any], str]], items: Iterable[Any]) -> str:
    """Formats a Markdown table: `columns` maps each header to the cell of an item.

    A cell is a function of the item, or a template of its keys, such as "{ratio:.2f}".
    """
    cells = [cell.format_map if isinstance(cell, str) else cell for cell in columns.values()]
    return markdown_table([list(columns), *([cell(item) for cell in cells] for item in items)])


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows as plain text; the columns are two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Formats rows as CSV; the first row is the header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def number(value: float) -> str:
    """Formats a metric; whole numbers are counts."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def primary_text(result: Mapping[str, Any]) -> str:
    """Returns the primary metric and how many examples were evaluated: "97.31% of 360 images".

    A metric that is a share (between 0 and 1, higher is better) is a percentage. The accuracy, the
    share of right answers, has its interval behind it; a correlation, too, which is no percentage.
    """
    from widenet_jax.run import intervals  # training needs none

    metric, unit = result["primary_metric"], result["unit"]
    name, count = metric["name"], result[f"test_{unit}"]
    value = result[f"test_{name}"]
    share = metric["higher_is_better"] and 0 <= value <= 1 and name not in intervals.CORRELATIONS
    text = f"{f'{value:.2%}' if share else number(value)} of {count:,} {unit}"
    ends = intervals.accuracy_interval(result) if name == "accuracy" else None
    ends = ends or intervals.correlation_interval(name, value, count)
    return text + intervals.interval_text(ends, percent=share)


def beside(metric: str, result: Mapping[str, Any]) -> str:
    """Returns the task's baseline, " (unigram entropy 6.6201)", and the remark; "" without them.

    Args:
      metric: as in the task's `summarize`.
      result: may have "baseline", a `task.Baseline` as a dict, and "remarks".
    """
    baseline, text = result.get("baseline", {}), remark(metric, result)
    if metric != baseline.get("metric"):
        return text
    share, value = baseline.get("higher_is_better"), baseline["value"]
    return f" ({baseline['name']} {f'{value:.2%}' if share else number(value)}){text}"


def remark(metric: str, result: Mapping[str, Any]) -> str:
    """Returns what the "remarks" of a result say of a metric, in brackets; "" if nothing."""
    text = result.get("remarks", {}).get(metric)
    return f" ({text})" if text else ""


def routing_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns rows on the rates and "expert_load" of all blocks; [] for a dense model."""
    if "drop_rate" not in result:
        return []
    load = "  ".join(f"{share:.1%}" for share in result["expert_load"])
    rates = {"no_expert_rate": "tokens without expert", "drop_rate": "token drop rate"}
    rows = [(title, f"{result[name]:.2%}") for name, title in rates.items() if name in result]
    return [*rows, ("expert load", load)]
