"""Tables with the paper's numbers and ours side by side, and a comparison of the two."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from widenet_jax.ops.plan.printed import TEXT
from widenet_jax.ops.sweep import seeds
from widenet_jax.ops.sweep.trials import Status
from widenet_jax.papers.experiments import EXPERIMENTS, PaperExperiment, PaperRow
from widenet_jax.papers.runs import Measured, Measurements
from widenet_jax.papers.scales import Scale, run_of
from widenet_jax.run.intervals import varies
from widenet_jax.run.tables import markdown_table, table_of

Row = Mapping[str, Any]
TEST = (
    "Too close to tell means that Welch's t-test over the seeds gives p >= "
    f"{seeds.SIGNIFICANT}, without a correction for the number of pairs; of a single seed, and of "
    "seeds without spread, only the sign counts."
)
INTERVALS = (
    "95%: of the mean over seeds, by Student's t; of a single seed's accuracy over its test "
    "examples, by Wilson."
)
AS, OTHER = "as in the paper", "the other way round"
CLOSE, LOST = "too close to tell", "with a seed that diverged"
# Columns of Table 2 -> the share of exact matches, beside F1; "" where the set has none.
TEXT_COLUMNS = {"squad1": "exact", "squad2": "best_exact", "mnli": "", "sst2": ""}


def page(title: str, about: str, table: str, lines: Sequence[str]) -> str:
    """Writes a table or figure in Markdown: title, our data, the numbers, sentences."""
    parts = [f"## {title}", f"Ours: {about}.", table, "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(filter(None, parts)) + "\n"


def rows_of(
    experiment: PaperExperiment, scale: Scale, measured: Measurements
) -> list[dict[str, Any]]:
    """Makes a dict for each row.

    Returns:
      label, size, variant (at this scale), params, paper (as printed), values (the experiment's
      metric, one for each seed that ended), by_seed (the same), mean, std, interval
      (`Measured.interval`), statuses (one for each seed). `same_as` is the label of an earlier row
      that is the same run at this scale, else None.
    """
    rows, seen = [], {}
    for row in experiment.rows:
        run = run_of(scale, experiment, row)
        of = measured[run]
        values = of.values(experiment.metric)
        found = {"label": row.label, "size": row.size, "variant": run.model}
        found |= {"same_as": seen.get(run), "params": of.params, "paper": row.paper}
        found |= {"values": values, "by_seed": of.by_seed(experiment.metric)}
        found |= {"mean": seeds.mean_of(values), "std": seeds.std_of(values)}
        found |= {"interval": of.interval(experiment.metric)}
        rows.append(found | {"statuses": [outcome.status for outcome in of.outcomes]})
        seen.setdefault(run, row.label.strip())
    return rows


def markdown(experiment: PaperExperiment, scale: Scale, rows: Sequence[Row]) -> str:
    """Writes the title, the table, and what agrees with the paper."""
    metric, decimals = experiment.metric.label, experiment.metric.decimals
    columns = {
        "": lambda row: row["label"].replace("  ", "&nbsp;" * 2),  # Markdown drops spaces
        "model here": lambda row: f"`{row['variant']}`",
        "parameters": lambda row: f"{row['params']:,}" if row["params"] else "",
        f"paper, {experiment.paper_label or metric}": lambda row: number(row["paper"], decimals),
        f"ours, {metric}": lambda row: ours(row, decimals),
    }
    if experiment.contrasts:  # no paper has these; they are paired by seed
        del columns[f"paper, {metric}"]
        columns["each seed"] = lambda row: ", ".join(
            f"{value:.{decimals + 2}f}" for value in row["by_seed"].values()
        )
    if experiment.reference:
        columns[f"against {experiment.reference}"] = lambda row: against(experiment, row, rows)
    about, lines = scale.about_of(experiment), comparison(experiment, rows)
    lines += [INTERVALS] * any(row["interval"] for row in rows)
    return page(experiment.title, about, table_of(columns, rows), lines)


def table_2(scale: Scale, measured: Measurements) -> str:
    """Writes Table 2 whole: every text model with its four columns and their mean."""
    experiments = {name: EXPERIMENTS[f"table2_{name}"] for name in TEXT_COLUMNS}
    names = [one.title.removeprefix("Table 2: ") for one in experiments.values()]
    header = [text for name in (*names, "mean") for text in (f"paper, {name}", f"ours, {name}")]
    cells = [["", "paper, parameters", *header]]
    for printed in TEXT:
        cells.append([printed.model, f"{printed.millions}M"])
        means = []
        for column, experiment in experiments.items():
            metrics = [experiment.metric]
            if exact := TEXT_COLUMNS[column]:
                metrics.append(replace(experiment.metric, name=exact))
            of = Measured(())
            if column in scale.text:
                run = run_of(scale, experiment, PaperRow(printed.model, printed.variant))
                of = measured.get(run, of)
            values = [seeds.mean_of(of.values(metric)) for metric in metrics]
            means.append(None if None in values else seeds.mean_of(values))
            in_paper = getattr(printed, column)
            cells[-1] += [joined(in_paper if isinstance(in_paper, list) else [in_paper])]
            cells[-1] += [joined(values)]
        mean = None if None in means else statistics.fmean(means)  # NaN of a column that diverged
        cells[-1] += [joined([printed.mean]), joined([mean])]
    lines = ["Ours is the mean over the seeds that are done; of SQuAD F1/exact match."]
    return page("Table 2: text models", scale.about["text"], markdown_table(cells), lines)


def joined(values: Sequence[float | None]) -> str:
    """Formats a cell, such as "89.3/82.3"."""
    return "not run" if None in values else "/".join(number(value, 1) for value in values)


def number(value: float | str | None, decimals: int) -> str:
    """Formats a printed value."""
    if value is None:
        return "not printed"
    if isinstance(value, str):
        return value
    return "NaN" if math.isnan(value) else f"{value:.{decimals}f}"


def ours(row: Row, decimals: int) -> str:
    """Formats our value: "45.12 ± 0.30 (3 seeds; 95%: 44.37 to 45.87)".

    Without spread: "45.12 (2 seeds; no spread)". Seeds that diverged or are missing follow.
    `decimals` are the paper's.
    """
    if row["same_as"]:
        return f"as {row['same_as']}"
    counts, parts = Counter(row["statuses"]), []
    if done := counts.pop(Status.DONE, 0):
        form, spread = f"{{:.{decimals + 1}f}}".format, ""
        behind = f"{done} seed{'s' if done > 1 else ''}"
        if row["interval"]:
            spread = "" if row["std"] is None else f" ± {form(row['std'])}"
            behind += "; 95%: " + seeds.interval_text(row["interval"], done, form)
        elif row["std"] is not None:
            behind += f"; {seeds.no_interval(done)}"
        parts.append(f"{form(row['mean'])}{spread} ({behind})")
    return "; ".join([*parts, *(f"{count} {status}" for status, count in counts.items())])


def comparison(experiment: PaperExperiment, rows: Sequence[Row]) -> list[str]:
    """Lines that state the paper's conclusion and which pairs of rows stand as in the paper."""
    whose = "Why" if experiment.contrasts else "The paper"
    lines, spec = [f"{whose}: {experiment.claim}"], f".{experiment.metric.decimals + 1}f"
    lines += [f"Not as fixed before the first run: {one}" for one in experiment.deviations]
    pairs: dict[str, list] = {AS: [], OTHER: [], CLOSE: [], LOST: []}
    for one, other in compared(experiment, rows):
        printed = paper_sign(experiment, one, other)
        if printed and one["values"] and other["values"]:
            pairs[verdict(sign_of(one, other), printed)].append((one, other))
    if total := sum(map(len, pairs.values())):
        counts = ", ".join(f"{len(of)} {verdict}" for verdict, of in pairs.items() if of)
        lines.append(f"Pairs of rows that the paper orders: {total}; {counts}.")
    for kind in (kind for kind in (OTHER, CLOSE) if pairs[kind]):
        sides = [
            [f"{of['label'].strip()} {of['mean']:{spec}}" for of in pair] for pair in pairs[kind]
        ]
        lines.append(f"{kind.capitalize()}: {'; '.join(map(' against '.join, sides))}.")
    return [*lines, TEST] if total else lines


def compared(experiment: PaperExperiment, rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Lists the pairs of rows that the experiment compares."""
    distinct = [row for row in rows if not row["same_as"]]
    if experiment.worsens:
        return list(itertools.pairwise(distinct))
    if experiment.reference:
        first = [row for row in distinct if row["label"] == experiment.reference]
        return [(row, of) for of in first for row in distinct if row is not of]
    return [
        (one, other)
        for one, other in itertools.combinations(distinct, 2)
        if not experiment.within_size or one["size"] == other["size"]
    ]


def against(experiment: PaperExperiment, row: Row, rows: Sequence[Row]) -> str:
    """Compares a row with the experiment's reference here: "worse".

    "undecided" is a difference that is not significant; "by one seed" and "without spread" one that
    has no test; "" a row that did not run.
    """
    pair = next((of for of in compared(experiment, rows) if of[0] is row), ())
    values = [of["values"] for of in pair]
    if not pair or not all(values):
        return ""
    if (sign := sign_of(*pair)) is None:
        return "a seed diverged"
    untested = "" if any(map(varies, values)) else " without spread"
    untested = " by one seed" if 1 in map(len, values) else untested
    return seeds.judged(sign, higher_is_better=experiment.metric.higher_is_better) + untested


def paper_sign(experiment: PaperExperiment, one: Row, other: Row) -> int:
    """Sign of the first row's value minus the second's in the paper; 0 where it orders neither."""
    if experiment.worsens:
        return 1 if experiment.metric.higher_is_better else -1
    printed = one["paper"], other["paper"]
    if not all(isinstance(value, float) and math.isfinite(value) for value in printed):
        return 0
    return int(np.sign(printed[0] - printed[1]))


def sign_of(one: Row, other: Row) -> int | None:
    """Returns `seeds.order_of` the rows' seeds here; None where a seed diverged."""
    if Status.DIVERGED in (*one["statuses"], *other["statuses"]):
        return None
    return seeds.order_of(one["values"], other["values"])


def verdict(ours: int | None, printed: int) -> str:
    """Compares the order of our two rows with the paper's: AS, OTHER, CLOSE or LOST."""
    if ours is None:
        return LOST
    return (AS if ours == printed else OTHER) if ours else CLOSE
