"""Tables with the paper's numbers and ours side by side, and what agrees between the two."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.markdown import markdown_table
from widenet_jax.models.sizes import IMAGENET_ROWS
from widenet_jax.plan.report import PAPER_CORE_DAYS
from widenet_jax.reproduce.experiments import Experiment
from widenet_jax.reproduce.runs import DIVERGED, Measured
from widenet_jax.reproduce.scales import Run, Scale, run_of

PRINTED_MILLIONS = {variant: printed for _, _, variant, printed in IMAGENET_ROWS}
STANDARD_ERRORS = 2.0  # two means that lie nearer than this do not tell which model is better


def rows_of(
    experiment: Experiment, scale: Scale, measured: Mapping[Run, Measured]
) -> list[dict[str, Any]]:
    """A dict a row: label, variant (at this scale), params, paper, accuracies (percent, one a
    seed), mean, std, images_per_second, missing, and for Table 4 paper_core_days.

    `same_as` is the label of an earlier row that this scale makes the same run, else None.
    """
    rows, seen = [], {}
    for row in experiment.rows:
        run = run_of(scale, experiment, row)
        of = measured[run]
        found = {
            "label": row.label,
            "variant": run.variant,
            "same_as": seen.get(run),
            "params": of.params,
            "paper": row.paper,
            "accuracies": of.accuracies,
            "mean": of.mean,
            "std": of.std,
            "images_per_second": of.images_per_second,
            "missing": of.missing,
        }
        if experiment.name == "table4":
            found["paper_core_days"] = PAPER_CORE_DAYS[row.variant]
        if not experiment.finetuned:
            found["paper_millions"] = PRINTED_MILLIONS.get(row.variant)
        rows.append(found)
        seen.setdefault(run, row.label.strip())
    return rows


def markdown(experiment: Experiment, scale: Scale, rows: Sequence[Mapping[str, Any]]) -> str:
    """Title, table, and what agrees with the paper."""
    columns = {
        "": lambda row: indented(row["label"]),
        "model here": lambda row: f"`{row['variant']}`",
        "parameters": lambda row: "" if row["params"] is None else f"{row['params']:,}",
        "paper, top-1 %": lambda row: number(row["paper"]),
        "ours, top-1 %": ours,
        "ours, images/s": lambda row: rate(row["images_per_second"]),
    }
    if any("paper_core_days" in row for row in rows):
        columns["paper, core-days"] = lambda row: str(row["paper_core_days"])
    if any(row.get("paper_millions") for row in rows):
        columns["paper, parameters"] = lambda row: millions(row.get("paper_millions"))
    cells = [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    parts = [f"## {experiment.title}", f"Ours: {scale.about}.", markdown_table(cells)]
    parts.append("\n".join(f"- {line}" for line in comparison(experiment, rows)))
    return "\n\n".join(parts) + "\n"


def norms_markdown(experiment: Experiment, scale: Scale, curves: Mapping[str, np.ndarray]) -> str:
    """Figs. 4 and 5 in numbers: eq. 9 of each block."""
    parts = [f"## {experiment.title}", f"Ours: {scale.about}."]
    if curves:
        blocks = max(map(len, curves.values()))
        cells = [["block", *map(str, range(blocks)), "mean"]]
        for name, y in curves.items():
            cells.append([name, *(f"{value:.4f}" for value in y), f"{y.mean():.4f}"])
        parts.append(markdown_table(cells))
    lines = [f"The paper: {experiment.claim}"]
    if len(curves) == len(experiment.rows) == 2:
        (one, low), (other, high) = curves.items()
        above = int((high > low).sum())
        lines.append(
            f"Here {other}'s mean is {high.mean() / low.mean():.2f} times {one}'s, and it is above "
            f"in {above} of {len(low)} blocks."
        )
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in lines)]) + "\n"


def indented(label: str) -> str:
    """Markdown drops leading spaces."""
    text = label.lstrip()
    return "&nbsp;" * (len(label) - len(text)) + text


def number(value: float | str | None) -> str:
    if value is None:
        return "drawn only"
    if isinstance(value, str):
        return value
    return "NaN" if math.isnan(value) else f"{value:.1f}"


def ours(row: Mapping[str, Any]) -> str:
    """ "45.12 ± 0.30 (3 seeds)", with what diverged or is missing."""
    if row["same_as"]:
        return f"as {row['same_as']}"
    total = len(row["accuracies"]) + len(row["missing"])
    lost = sum(math.isnan(accuracy) for accuracy in row["accuracies"])
    parts = []
    if row["mean"] is not None and not math.isnan(row["mean"]):
        spread = "" if row["std"] is None else f" ± {row['std']:.2f}"
        count = len(row["accuracies"]) - lost
        parts.append(f"{row['mean']:.2f}{spread} ({count} seed{'s' if count > 1 else ''})")
    if lost:
        parts.append(f"NaN in {lost} of {total}" if total > 1 else "NaN")
    parts += [f"{row['missing'].count(why)} {why}" for why in dict.fromkeys(row["missing"])]
    return "; ".join(parts)


def rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def millions(value: int | None) -> str:
    return "" if value is None else f"{value}M"


def comparison(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines that say what the paper concludes and which pairs of rows stand as in the paper."""
    lines = [f"The paper: {experiment.claim}"]
    pairs = {"as in the paper": [], "the other way round": [], "too close to tell": []}
    for one, other in itertools.combinations([row for row in rows if not row["same_as"]], 2):
        if verdict := compare(one, other):
            pairs[verdict].append((one, other))
    total = sum(map(len, pairs.values()))
    if total:
        counts = ", ".join(f"{len(of)} {verdict}" for verdict, of in pairs.items())
        lines.append(f"Of {total} pairs of rows that the paper's numbers order: {counts}.")
    for one, other in pairs["the other way round"]:
        lines.append(
            f"The other way round: {one['label'].strip()} {one['mean']:.2f}, "
            f"{other['label'].strip()} {other['mean']:.2f} "
            f"(paper {one['paper']}, {other['paper']})."
        )
    if total and any(row["std"] is None for row in rows if row["mean"] is not None):
        lines.append("One seed has no error bar: every difference is counted, however small.")
    for row in rows:
        lost = sum(map(math.isnan, row["accuracies"]))
        printed_nan = isinstance(row["paper"], float) and math.isnan(row["paper"])
        if printed_nan and row["accuracies"] and not lost:
            lines.append(f"{row['label'].strip()} diverged in the paper, and did not here.")
        elif lost and not row["same_as"]:
            lines.append(f"{row['label'].strip()} {DIVERGED} here.")
    return lines


def compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """How two rows stand to each other; None where a number is missing on either side.

    Two means are too close to tell where they differ by less than STANDARD_ERRORS standard errors
    of their difference; with one seed there is no such measure, and the sign alone counts.
    """
    printed, means = ([row[key] for row in (one, other)] for key in ("paper", "mean"))
    if not all(isinstance(value, float) and math.isfinite(value) for value in [*printed, *means]):
        return None
    if printed[0] == printed[1]:
        return None
    difference = means[0] - means[1]
    spreads = [row["std"] for row in (one, other)]
    if None not in spreads:
        counts = [sum(map(math.isfinite, row["accuracies"])) for row in (one, other)]
        error = math.sqrt(sum(s**2 / n for s, n in zip(spreads, counts, strict=True)))
        if abs(difference) <= STANDARD_ERRORS * error:
            return "too close to tell"
    elif difference == 0:
        return "too close to tell"
    same = (difference > 0) == (printed[0] > printed[1])
    return "as in the paper" if same else "the other way round"
