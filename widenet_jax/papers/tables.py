"""Tables with the paper's numbers and ours side by side, and a comparison of the two."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from widenet_jax.ops.plan.printed import FINETUNING, PRETRAINING, TEXT
from widenet_jax.ops.sweep.trials import DONE
from widenet_jax.papers.experiment import PaperExperiment
from widenet_jax.papers.runs import DIVERGED, Measurements, mean_of, std_of
from widenet_jax.papers.scales import Scale, run_of
from widenet_jax.run.markdown import markdown_table, table_of

SIGNIFICANT = 0.05  # of Welch's t-test, two-sided
AS, OTHER = "as in the paper", "the other way round"
CLOSE, LOST = "too close to tell", "with a seed that diverged"


def rows_of(
    experiment: PaperExperiment, scale: Scale, measured: Measurements
) -> list[dict[str, Any]]:
    """Makes a dict for each row.

    Returns:
      label, size, variant (at this scale), params, paper and paper_millions (as printed), values
      (the experiment's metric, one for each seed that ended), mean, std, statuses (one for each
      seed), training (the same metric in training), rate (in `unit` a second), slip (whether
      paper_millions is one), and for Table 4 paper_core_days. `same_as` is the label of an earlier
      row that is the same run at this scale, else None.
    """
    metric = experiment.metric
    in_vision = FINETUNING if experiment.finetuned else PRETRAINING
    printed = {row.variant: row for row in (TEXT if experiment.text else in_vision)}
    rows, seen = [], {}
    for row in experiment.rows:
        run = run_of(scale, experiment, row)
        of = measured[run]
        values, training = of.values(metric), of.training.get(metric.name)
        in_paper = printed.get(row.variant)
        found = {
            "label": row.label,
            "size": row.size,
            "variant": run.model,
            "same_as": seen.get(run),
            "params": of.params,
            "paper": row.paper,
            "paper_millions": in_paper and in_paper.millions,
            "slip": bool(getattr(in_paper, "slip", False)),
            "values": values,
            "mean": mean_of(values),
            "std": std_of(values),
            "training": None if training is None else metric.scale * training,
            "rate": of.rate,
            "unit": of.unit,
            "statuses": of.statuses,
        }
        if experiment.name == "table4":
            found["paper_core_days"] = in_paper.core_days
        rows.append(found)
        seen.setdefault(run, row.label.strip())
    return rows


def markdown(experiment: PaperExperiment, scale: Scale, rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes the title, the table, and what agrees with the paper."""
    metric, decimals = experiment.metric.label, experiment.metric.decimals
    columns = {
        "": lambda row: indented(row["label"]),
        "model here": lambda row: f"`{row['variant']}`",
        "parameters": lambda row: known(row["params"], ","),
        f"paper, {experiment.paper_label or metric}": lambda row: number(row["paper"], decimals),
        f"ours, {metric}": lambda row: ours(row, decimals),
    }
    if units := [row["unit"] for row in rows if row["rate"] is not None]:
        columns[f"ours, {units[0]}/s"] = lambda row: known(row["rate"], ",.0f")
    if experiment.reference:
        columns[f"against {experiment.reference}"] = lambda row: against(experiment, row, rows)
    if any("paper_core_days" in row for row in rows):
        columns["paper, core-days"] = lambda row: str(row["paper_core_days"])
    if any(row["paper_millions"] for row in rows):
        columns["paper, parameters"] = lambda row: known(row["paper_millions"], "d", "M")
    about = scale.about_of(experiment)
    parts = [f"## {experiment.title}", f"Ours: {about}.", table_of(columns, rows)]
    lines = comparison(experiment, rows)
    if slips := [row["label"] for row in rows if row["slip"]]:
        named = " and ".join(slips)
        lines.append(f"The printed parameters of {named} are slips: see plan.py --counts.")
    parts.append("\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts) + "\n"


def norms_markdown(
    experiment: PaperExperiment, scale: Scale, curves: Mapping[str, np.ndarray]
) -> str:
    """Writes Figs. 4 and 5 in numbers: eq. 9 of each block.

    Args:
      experiment: Fig. 4 or 5.
      scale: of the runs.
      curves: label -> [seeds, L].
    """
    parts = [f"## {experiment.title}", f"Ours: {scale.about_of(experiment)}."]
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
    """Keeps leading spaces, which Markdown drops."""
    text = label.lstrip()
    return "&nbsp;" * (len(label) - len(text)) + text


def number(value: float | str | None, decimals: int) -> str:
    """Formats a printed value."""
    if value is None:
        return "not printed"
    if isinstance(value, str):
        return value
    return "NaN" if math.isnan(value) else f"{value:.{decimals}f}"


def ours(row: Mapping[str, Any], decimals: int) -> str:
    """Formats our value: "45.12 ± 0.30 (3 seeds)", with the seeds that diverged or are missing.

    `decimals` are those of the paper.
    """
    if row["same_as"]:
        return f"as {row['same_as']}"
    lost, done = lost_of(row), row["statuses"].count(DONE)
    parts = []
    if done:
        spread = "" if row["std"] is None else f" ± {row['std']:.{decimals + 1}f}"
        parts.append(
            f"{row['mean']:.{decimals + 1}f}{spread} ({done} seed{'s' if done > 1 else ''})"
        )
    if lost:
        total = len(row["statuses"])
        parts.append(f"NaN in {lost} of {total}" if total > 1 else "NaN")
    others = [status for status in row["statuses"] if status not in (DONE, DIVERGED)]
    parts += [f"{others.count(why)} {why}" for why in dict.fromkeys(others)]
    return "; ".join(parts)


def lost_of(row: Mapping[str, Any]) -> int:
    """Counts the seeds that diverged."""
    return row["statuses"].count(DIVERGED)


def known(value: float | None, spec: str, unit: str = "") -> str:
    """Formats a value; "" where there is none."""
    return "" if value is None else format(value, spec) + unit


def comparison(experiment: PaperExperiment, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines that state the paper's conclusion and which pairs of rows stand as in the paper."""
    lines, decimals = [f"The paper: {experiment.claim}"], experiment.metric.decimals
    pairs: dict[str, list] = {AS: [], OTHER: [], CLOSE: [], LOST: []}
    for one, other in compared(experiment, rows):
        if verdict := compare(one, other, paper_sign(experiment, one, other)):
            pairs[verdict].append((one, other))
    total = sum(map(len, pairs.values()))
    if total:
        counts = ", ".join(f"{len(of)} {verdict}" for verdict, of in pairs.items() if of)
        lines.append(f"Pairs of rows that the paper orders: {total}, of which {counts}.")
    for one, other in pairs[OTHER]:
        printed = " (paper: {}, {})".format(*(number(of["paper"], decimals) for of in (one, other)))
        lines.append(
            f"The other way round: {said(one, decimals)} against {said(other, decimals)}"
            f"{'' if one['paper'] is None else printed}."
        )
    if pairs[CLOSE]:
        close = "; ".join(
            f"{said(one, decimals)} against {said(other, decimals)}" for one, other in pairs[CLOSE]
        )
        lines.append(f"Too close to tell: {close}.")
    seeds = [len(row["values"]) for of in pairs.values() for pair in of for row in pair]
    if any(count > 1 for count in seeds):
        lines.append(
            f"Too close to tell means that Welch's t-test over the seeds gives p >= {SIGNIFICANT}, "
            "without a correction for the number of pairs."
        )
    if 1 in seeds:
        lines.append("A single seed has no error bar: there only the sign counts.")
    return lines + divergence_lines(rows)


def divergence_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines about the rows that diverged in the paper or here."""
    lines = []
    for row in (row for row in rows if not row["same_as"] and row["values"]):
        lost, label = lost_of(row), row["label"].strip()
        in_paper = isinstance(row["paper"], float) and math.isnan(row["paper"])
        if lost:
            how = ", as in the paper" if in_paper else ""
            lines.append(f"{label} diverged in {lost} of {len(row['statuses'])} seeds here{how}.")
        elif in_paper:
            lines.append(f"{label} diverged in the paper, and did not here.")
    return lines


def said(row: Mapping[str, Any], decimals: int) -> str:
    """Formats a row within a sentence; `decimals` are those of the paper."""
    return f"{row['label'].strip()} {row['mean']:.{decimals + 1}f}"


def compared(experiment: PaperExperiment, rows: Sequence[Mapping[str, Any]]) -> list[tuple]:
    """Lists the pairs of rows that the experiment compares."""
    distinct = [row for row in rows if not row["same_as"]]
    if experiment.worsens:
        return list(itertools.pairwise(distinct))
    if experiment.reference:
        (first,) = [row for row in distinct if row["label"] == experiment.reference] or [None]
        return [(row, first) for row in distinct if first is not None and row is not first]
    return [
        (one, other)
        for one, other in itertools.combinations(distinct, 2)
        if not experiment.within_size or one["size"] == other["size"]
    ]


def against(
    experiment: PaperExperiment, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> str:
    """Compares a row with the experiment's reference: "worse (paper: better)".

    "undecided" is a difference that is not significant, see `compare`; "by one seed" one that has
    no test; "" a row that did not run.
    """
    pairs = [pair for pair in compared(experiment, rows) if pair[0] is row]
    if not pairs or not all(one["values"] for one in pairs[0]):
        return ""
    ((one, other),) = pairs
    words = {-1: "worse", 0: "undecided", 1: "better"}
    direction = 1 if experiment.metric.higher_is_better else -1
    printed = paper_sign(experiment, one, other) * direction
    in_paper = f" (paper: {words[printed] if printed else 'equal'})"
    if one["paper"] is None or other["paper"] is None:
        in_paper = ""
    if lost_of(one) or lost_of(other):
        return f"a seed diverged{in_paper}"
    sign = np.sign(one["mean"] - other["mean"]) * significant(one["values"], other["values"])
    untested = " by one seed" if min(len(of["values"]) for of in (one, other)) == 1 else ""
    return words[int(sign) * direction] + untested + in_paper


def paper_sign(
    experiment: PaperExperiment, one: Mapping[str, Any], other: Mapping[str, Any]
) -> int:
    """Sign of the first row's value minus the second's in the paper; 0 where it orders neither."""
    if experiment.worsens:
        return 1 if experiment.metric.higher_is_better else -1
    printed = one["paper"], other["paper"]
    if not all(isinstance(value, float) and math.isfinite(value) for value in printed):
        return 0
    return int(np.sign(printed[0] - printed[1]))


def compare(one: Mapping[str, Any], other: Mapping[str, Any], sign: int) -> str | None:
    """Compares the order of our two rows with the paper's.

    Differences that are not significant by Welch's t-test over the seeds are too close to tell.
    Where a row has a single seed there is no such test, and only the sign counts.

    Args:
      one: a row of `rows_of`.
      other: another.
      sign: of `one` minus `other` in the paper, as `paper_sign` returns it.

    Returns:
      AS, OTHER, CLOSE or LOST; None where the paper gives no order, or a row has no runs.
    """
    if not (sign and one["values"] and other["values"]):
        return None
    if lost_of(one) or lost_of(other):
        return LOST
    difference = one["mean"] - other["mean"]
    if difference == 0 or not significant(one["values"], other["values"]):
        return CLOSE
    return AS if (difference > 0) == (sign > 0) else OTHER


def significant(one: Sequence[float], other: Sequence[float]) -> bool:
    """Tells whether Welch's t-test finds a difference; True where a side has a single value."""
    if min(len(one), len(other)) < 2:
        return True
    if np.ptp(one) == np.ptp(other) == 0:  # without variance every difference is significant
        return True
    return bool(stats.ttest_ind(one, other, equal_var=False).pvalue < SIGNIFICANT)
