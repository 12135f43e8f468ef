"""Metrics as rows of the tables that a run and `scripts/evaluate.py` print."""

from collections.abc import Mapping
from typing import Any


def number(value: float) -> str:
    """Formats a metric; whole numbers are counts."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def beside(metric: str, facts: Mapping[str, Any]) -> str:
    """Returns the task's baseline, " (unigram entropy 6.6201)"; "" beside other metrics.

    Args:
      metric: as in the task's `summarize`.
      facts: may have "baseline", a `tasks.Baseline` as a dict.
    """
    baseline = facts.get("baseline", {})
    if metric != baseline.get("metric"):
        return ""
    return f" ({baseline['name']} {baseline['value']:.4f})"


def routing_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns rows on "drop_rate" and "expert_load", over all blocks; [] for a dense model."""
    if "drop_rate" not in facts:
        return []
    load = "  ".join(f"{share:.1%}" for share in facts["expert_load"])
    return [("token drop rate", f"{facts['drop_rate']:.2%}"), ("expert load", load)]
