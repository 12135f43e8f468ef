"""Contrasts: sums of some rows minus sums of others, paired by seed, with intervals and tests.

A difference has one row on each side; an interaction two: how much more looping costs with experts
than without is (MoE looped + dense plain) - (MoE plain + dense looped). Runs of one seed see the
same data in the same order, so that the differences vary less than the rows.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from widenet_jax.ops.sweep import seeds
from widenet_jax.ops.sweep.seeds import SIGNS, Found
from widenet_jax.papers.experiments import PaperExperiment
from widenet_jax.run.figures import PALETTE, save, subplots
from widenet_jax.run.tables import table_of

HOW = (
    "Contrasts are paired by seed. 95%: Student's t, not corrected. p: t-test against 0, corrected "
    "by Holm for all {number} contrasts of the experiment. Equal: two one-sided t-tests at 5% put "
    "the mean within the margin of {margin:g} that was fixed before the runs; undecided: neither. "
    "Seeds without spread have no test, and are equal if their mean is within the margin."
)


def contrasts_of(experiment: PaperExperiment, rows: Sequence[Mapping[str, Any]]) -> list[Found]:
    """Computes the contrasts of an experiment from the rows of `tables.rows_of`."""
    by_label = {row["label"].strip(): row["by_seed"] for row in rows}
    values = {
        one.label: seeds.paired(*([by_label.get(name, {}) for name in side] for side in one[1:3]))
        for one in experiment.contrasts
    }
    claims = {one.label: one.paper for one in experiment.contrasts}
    return seeds.compare(values, experiment.margin, claims)


def markdown(experiment: PaperExperiment, found: Sequence[Found]) -> str:
    """Writes the contrasts as a table, and how they were computed."""

    form = f"{{:+.{experiment.metric.decimals + 2}f}}".format
    columns = {
        f"contrast, {experiment.metric.label}": lambda one: one.label,
        "the paper": lambda one: SIGNS[one.paper],
        "mean": lambda one: form(one.mean),
        "95%": lambda one: seeds.interval_text(one.interval, len(one.values), form),
        "seeds": lambda one: str(len(one.values)),
        "p": lambda one: "" if math.isnan(one.p) else f"{one.p:.3f}",
        "verdict": lambda one: one.verdict,
    }
    if not any(one.paper for one in found):
        del columns["the paper"]
    shown = [one for one in found if one.values]
    how = HOW.format(margin=experiment.margin, number=len(found))
    if any(len(one.values) < experiment.seeds for one in found):
        how += f" Provisional: not all contrasts have the {experiment.seeds} seeds that were fixed."
    return f"\n{table_of(columns, shown)}\n\n{how}\n"


def draw(experiment: PaperExperiment, found: Sequence[Found], out: Path) -> None:
    """Draws each contrast's seeds, mean and interval, beside 0, the margin and a paper's sign."""
    shown = [one for one in found if one.values]
    figure, axis = subplots(1, 1, size=(9, 1.4 + 0.4 * len(shown)))
    axis.axvspan(-experiment.margin, experiment.margin, color="0.9")
    plot_seeds(axis, {one.label: one.values for one in shown})
    axis.margins(x=0.1)  # room for the marks
    for sign, mark in ((1, ">"), (-1, "<")):
        if places := [place for place, one in enumerate(shown) if one.paper == sign]:
            edge = [0.5 + 0.48 * sign] * len(places)  # of the axis, whatever its limits
            style = {"color": "0.4", "label": f"the paper: {SIGNS[sign]}"}
            axis.plot(edge, places, mark, transform=axis.get_yaxis_transform(), **style)
    figure.suptitle(experiment.title)
    figure.supxlabel(
        f"difference, {experiment.metric.label}: each seed, mean and 95% interval, not corrected\n"
        f"grey: within the margin; {experiment.above_0}",
        fontsize="medium",
    )
    if any(one.paper for one in shown):
        figure.legend(loc="outside right center", fontsize="small", borderaxespad=0.2)
    save(figure, out)


def plot_seeds(axis: Axes, by_label: Mapping[str, Sequence[float]]) -> None:
    """Plots, on a line for each label, the seeds' values, their mean and interval, beside 0.

    Labels say why a mean has no interval.
    """
    names = []
    axis.axvline(0, color="0.4", linewidth=1)
    for place, (label, values) in enumerate(by_label.items()):
        axis.plot(values, [place] * len(values), "o", color=PALETTE[0], alpha=0.4)
        ends = seeds.mean_over_seeds(values)
        axis.plot(ends or (), [place, place] if ends else (), color=PALETTE[1], linewidth=2)
        names.append(label if ends else f"{label} ({seeds.no_interval(len(values))})")
        axis.plot(seeds.mean_of(values), place, "D", color=PALETTE[1])
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
