"""Tables with the paper's numbers and ours side by side, and what agrees between the two."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from widenet_jax.models.sizes import CIFAR10_ROWS, IMAGENET_ROWS, TABLE_5_SLIPS
from widenet_jax.tools.markdown import markdown_table
from widenet_jax.tools.plan.report import PAPER_CORE_DAYS
from widenet_jax.tools.reproduce.experiments import Experiment
from widenet_jax.tools.reproduce.runs import DIVERGED, Measured
from widenet_jax.tools.reproduce.scales import Run, Scale, run_of
from widenet_jax.tools.sweep.runner import DONE

PRINTED_MILLIONS = {variant: printed for _, _, variant, printed in IMAGENET_ROWS}
PRINTED_MILLIONS_FINETUNED = {variant: printed for _, _, variant, printed in CIFAR10_ROWS}
SIGNIFICANT = 0.05  # of Welch's t-test, two-sided
AS, OTHER, CLOSE, LOST = (
    "as in the paper",
    "the other way round",
    "too close to tell",
    "with a seed that diverged",
)


def rows_of(
    experiment: Experiment, scale: Scale, measured: Mapping[Run, Measured]
) -> list[dict[str, Any]]:
    """A dict a row: label, size, variant (at this scale), params, paper and paper_millions (as
    printed), accuracies (percent, one a seed that ended), mean, std, statuses (one a seed),
    training_accuracy (percent), images_per_second, and for Table 4 paper_core_days.

    `same_as` is the label of an earlier row that this scale makes the same run, else None.
    """
    printed = PRINTED_MILLIONS_FINETUNED if experiment.finetuned else PRINTED_MILLIONS
    rows, seen = [], {}
    for row in experiment.rows:
        run = run_of(scale, experiment, row)
        of = measured[run]
        found = {
            "label": row.label,
            "size": row.size,
            "variant": run.variant,
            "same_as": seen.get(run),
            "params": of.params,
            "paper": row.paper,
            "paper_millions": printed.get(row.variant),
            "accuracies": of.accuracies,
            "mean": of.mean,
            "std": of.std,
            "training_accuracy": of.training_accuracy,
            "images_per_second": of.images_per_second,
            "statuses": of.statuses,
        }
        if experiment.name == "table4":
            found["paper_core_days"] = PAPER_CORE_DAYS[row.variant]
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
    if any(row["paper_millions"] for row in rows):
        columns["paper, parameters"] = lambda row: millions(row["paper_millions"])
    cells = [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    parts = [f"## {experiment.title}", f"Ours: {scale.about}.", markdown_table(cells)]
    lines = comparison(experiment, rows)
    if experiment.finetuned:
        slips = [row.label for row in experiment.rows if row.variant in TABLE_5_SLIPS]
        lines.append(
            f"The printed parameters of {' and '.join(slips)} are slips: see plan.py --counts."
        )
    parts.append("\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts) + "\n"


def norms_markdown(experiment: Experiment, scale: Scale, curves: Mapping[str, np.ndarray]) -> str:
    """Figs. 4 and 5 in numbers: eq. 9 of each block.

    Args:
      curves: label -> [seeds, L].
    """
    parts = [f"## {experiment.title}", f"Ours: {scale.about}."]
    if curves:
        blocks = max(y.shape[1] for y in curves.values())
        cells = [["block", *map(str, range(blocks)), "mean", "seeds"]]
        for name, y in curves.items():
            spread = f" ± {y.mean(axis=1).std(ddof=1):.4f}" if len(y) > 1 else ""
            by_block = (f"{value:.4f}" for value in y.mean(axis=0))
            cells.append([name, *by_block, f"{y.mean():.4f}{spread}", str(len(y))])
        parts.append(markdown_table(cells))
    lines = [f"The paper: {experiment.claim}"]
    lines += [f"{row.label}: not run." for row in experiment.rows if row.label not in curves]
    if len(curves) == len(experiment.rows) == 2:
        (one, low), (other, high) = curves.items()
        above = int((high.mean(axis=0) > low.mean(axis=0)).sum())
        lines.append(
            f"Here {other}'s mean is {high.mean() / low.mean():.2f} times {one}'s, and it is above "
            f"in {above} of {low.shape[1]} blocks."
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
    lost, done = lost_of(row), row["statuses"].count(DONE)
    parts = []
    if done:
        spread = "" if row["std"] is None else f" ± {row['std']:.2f}"
        parts.append(f"{row['mean']:.2f}{spread} ({done} seed{'s' if done > 1 else ''})")
    if lost:
        total = len(row["statuses"])
        parts.append(f"NaN in {lost} of {total}" if total > 1 else "NaN")
    others = [status for status in row["statuses"] if status not in (DONE, DIVERGED)]
    parts += [f"{others.count(why)} {why}" for why in dict.fromkeys(others)]
    return "; ".join(parts)


def lost_of(row: Mapping[str, Any]) -> int:
    """How many seeds diverged."""
    return row["statuses"].count(DIVERGED)


def rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def millions(value: int | None) -> str:
    return "" if value is None else f"{value}M"


def comparison(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines that say what the paper concludes and which pairs of rows stand as in the paper."""
    lines = [f"The paper: {experiment.claim}"]
    pairs: dict[str, list] = {AS: [], OTHER: [], CLOSE: [], LOST: []}
    for one, other in compared(experiment, rows):
        if verdict := compare(one, other, first_is_ahead(experiment, one, other)):
            pairs[verdict].append((one, other))
    total = sum(map(len, pairs.values()))
    if total:
        counts = ", ".join(f"{len(of)} {verdict}" for verdict, of in pairs.items() if of)
        lines.append(f"Of {total} pairs of rows that the paper orders: {counts}.")
    for one, other in pairs[OTHER]:
        printed = f" (paper: {number(one['paper'])}, {number(other['paper'])})"
        lines.append(
            f"The other way round: {said(one)} against {said(other)}"
            f"{'' if one['paper'] is None else printed}."
        )
    if pairs[CLOSE]:
        close = "; ".join(f"{said(one)} against {said(other)}" for one, other in pairs[CLOSE])
        lines.append(f"Too close to tell: {close}.")
    if any(len(row["accuracies"]) > 1 for of in pairs.values() for pair in of for row in pair):
        lines.append(
            f"Too close to tell is what Welch's t-test gives p >= {SIGNIFICANT}, with the seeds "
            "above; no correction for the number of pairs."
        )
    if any(len(row["accuracies"]) == 1 for of in pairs.values() for pair in of for row in pair):
        lines.append("A single seed has no error bar: there the sign alone counts.")
    for row in (row for row in rows if not row["same_as"] and row["accuracies"]):
        lost, label = lost_of(row), row["label"].strip()
        in_paper = isinstance(row["paper"], float) and math.isnan(row["paper"])
        if lost:
            how = ", as in the paper" if in_paper else ""
            lines.append(f"{label} diverged in {lost} of {len(row['statuses'])} seeds here{how}.")
        elif in_paper:
            lines.append(f"{label} diverged in the paper, and did not here.")
    return lines


def said(row: Mapping[str, Any]) -> str:
    return f"{row['label'].strip()} {row['mean']:.2f}"


def compared(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> list[tuple]:
    """The pairs of rows whose order means something."""
    alone = [row for row in rows if not row["same_as"]]
    if experiment.falls:
        return list(itertools.pairwise(alone))
    return [
        (one, other)
        for one, other in itertools.combinations(alone, 2)
        if not experiment.within_size or one["size"] == other["size"]
    ]


def first_is_ahead(
    experiment: Experiment, one: Mapping[str, Any], other: Mapping[str, Any]
) -> bool | None:
    """Whether the paper has the first of two rows ahead; None where it does not order them."""
    if experiment.falls:
        return True
    printed = one["paper"], other["paper"]
    if not all(isinstance(value, float) and math.isfinite(value) for value in printed):
        return None
    return None if printed[0] == printed[1] else printed[0] > printed[1]


def compare(one: Mapping[str, Any], other: Mapping[str, Any], ahead: bool | None) -> str | None:
    """How our two rows stand to the paper's order; None without such an order, or without runs.

    Differences that Welch's t-test over the seeds calls not significant are too close to tell;
    where a row has one seed there is no such test, and the sign alone counts.
    """
    if ahead is None or not (one["accuracies"] and other["accuracies"]):
        return None
    if lost_of(one) or lost_of(other):
        return LOST
    difference = one["mean"] - other["mean"]
    if difference == 0 or not significant(one["accuracies"], other["accuracies"]):
        return CLOSE
    return AS if (difference > 0) == ahead else OTHER


def significant(one: Sequence[float], other: Sequence[float]) -> bool:
    """Of Welch's t-test; True where a side has one value."""
    if min(len(one), len(other)) < 2:
        return True
    if np.ptp(one) == np.ptp(other) == 0:  # nothing varies: any difference is one
        return True
    return bool(stats.ttest_ind(one, other, equal_var=False).pvalue < SIGNIFICANT)
