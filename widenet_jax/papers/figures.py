"""Draws the paper's figures from our runs, and a picture of every table."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from widenet_jax.config.files import load_config
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.norm_divergence import norm_divergence
from widenet_jax.ops.analysis.routing_figures import plot_divergence
from widenet_jax.papers.experiments import Metric, PaperExperiment
from widenet_jax.papers.runs import Measurements
from widenet_jax.papers.scales import Scale, run_of
from widenet_jax.papers.tables import number
from widenet_jax.run.figures import run_colour, save, subplots
from widenet_jax.run.metrics import JsonLines

# Horizontal axis of a figure: its name, and how to read its value from a `config.model`.
AXES: dict[str, tuple[str, Callable[[ConfigDict], int]]] = {
    "fig2": ("experts", lambda model: model.moe.num_experts),
    "fig3": ("groups of blocks", lambda model: model.routing_groups or model.depth),
}
MARK = {"fmt": "o", "capsize": 3}


def draw_table(experiment: PaperExperiment, rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Draws every row's metric: the paper's on the left, ours with its spread on the right."""
    metric = experiment.metric.label
    figure, (paper, own) = subplots(1, 2, size=(11, 1.5 + 0.35 * len(rows)), sharey=True)
    figure.suptitle(experiment.title)
    for place, row in enumerate(rows):
        if isinstance(row["paper"], float) and np.isfinite(row["paper"]):
            paper.plot(row["paper"], place, "o", color="C0")
        else:
            text = number(row["paper"], experiment.metric.decimals)
            paper.text(0.02, place, text, transform=paper.get_yaxis_transform(), va="center")
        for value in row["values"]:
            own.plot(value, place, "|", color="C1", alpha=0.6)
        if row["mean"] is not None and np.isfinite(row["mean"]):
            own.errorbar(row["mean"], place, xerr=row["std"], color="C1", **MARK)
        elif row["mean"] is not None:
            own.text(0.02, place, "NaN", transform=own.get_yaxis_transform(), va="center")
    paper.set_yticks(range(len(rows)), [row["label"] for row in rows])
    paper.set_ylim(len(rows) - 0.5, -0.5)
    paper.set(xlabel=f"{experiment.paper_label or metric}, the paper")
    own.set(xlabel=f"{metric}, ours\n(bars: one standard deviation; strokes: seeds)")
    if not paper.lines:  # no numbers, so no axis of numbers
        paper.set_xticks([])
    for axis in (paper, own):
        axis.grid(alpha=0.3)
    save(figure, out)


def draw_curves(
    experiment: PaperExperiment, scale: Scale, measured: Measurements, out: Path
) -> None:
    """Draws the metric of every evaluation against steps.

    A line is the mean over the seeds that are done, a band their range; the legend's order is the
    order in which the lines end. A run that stands for several rows is drawn once.
    """
    labels: dict[tuple[str, ...], str] = {}  # workdirs -> label
    for row in experiment.rows:
        workdirs = measured[run_of(scale, experiment, row)].workdirs
        labels.setdefault(workdirs, row.label.strip())
    curves = [(label, *evaluations(seeds, experiment.metric)) for seeds, label in labels.items()]
    curves = sorted((c for c in curves if c[1]), key=lambda curve: -curve[2][:, -1].mean())
    if not curves:
        return
    figure, axis = subplots(size=(9, 5))
    for index, (label, steps, values) in enumerate(curves):
        colour = run_colour(index, len(curves))
        axis.plot(steps, values.mean(axis=0), color=colour, marker="o", ms=3, label=label)
        axis.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.15, lw=0)
    axis.set(xlabel="step", ylabel=f"{experiment.metric.label}, evaluated in training")
    axis.set_title(f"{experiment.title}\n(lines: means; bands: range of the seeds)", fontsize=9)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    save(figure, out)


def evaluations(workdirs: Sequence[str], metric: Metric) -> tuple[list[int], np.ndarray]:
    """Returns the steps [N] at which every run was evaluated, and the metric then [runs, N]."""
    runs = []
    for workdir in workdirs:
        records = JsonLines(epath.Path(workdir) / "metrics.jsonl").read()
        found = [r for r in records if r["split"] == "eval" and r.get(metric.name) is not None]
        runs.append({r["step"]: metric.scale * r[metric.name] for r in found})
    steps = sorted(set.intersection(*map(set, runs))) if runs else []
    return steps, np.array([[run[step] for step in steps] for run in runs])


def draw_against(
    experiment: PaperExperiment, scale: Scale, rows: Sequence[Mapping[str, Any]], out: Path
) -> None:
    """Draws Figs. 2 and 3: our test and training metric.

    The training curve is worse where training examples are augmented and mixed (as in Fig. 2).
    """
    name, number = AXES[experiment.name]
    points = []
    for row in (row for row in rows if not row["same_as"] and row["mean"] is not None):
        model = load_config(f"{scale.pretrain.config}:{row['variant']}").model
        points.append((number(model), row["mean"], row["std"] or 0.0, row["training"]))
    points.sort(key=lambda point: point[0])
    figure, axis = subplots(size=(6, 4))
    places, means, spread, training = zip(*points, strict=True) if points else ((),) * 4
    axis.errorbar(places, means, yerr=spread, ls="-", color="C0", label="test", **MARK)
    learnt = [(x, y) for x, y in zip(places, training, strict=True) if y is not None]
    if learnt:
        axis.plot(*zip(*learnt, strict=True), "x:", color="C2", label="training, augmented")
        figure.legend(loc="outside lower center", ncols=2)
    axis.set(xlabel=name, ylabel=f"{experiment.metric.label}, ours", title=experiment.title)
    axis.set_xticks(places)
    axis.grid(alpha=0.3)
    save(figure, out)


def divergences(
    experiment: PaperExperiment, scale: Scale, measured: Measurements
) -> dict[str, np.ndarray]:
    """Measures how far apart the blocks' norms are (eq. 9): label -> [seeds that are done, L].

    Rows without a finished seed are left out.

    Raises:
      BadInputError: the blocks share their norms, because of a flag for all runs.
    """
    curves = {}
    for row in experiment.rows:
        workdirs = measured[run_of(scale, experiment, row)].workdirs
        found = [norm_divergence(open_trained(w).params)[experiment.norms].block for w in workdirs]
        if found:
            curves[row.label] = np.stack(found)
    return curves


def draw_norms(experiment: PaperExperiment, curves: Mapping[str, np.ndarray], out: Path) -> None:
    """Draws Figs. 4 and 5: for each model the mean over seeds, and a band between the extremes."""
    figure, axis = subplots(size=(6, 4))
    plot_divergence(axis, {name: y.mean(axis=0) for name, y in curves.items()}, experiment.norms)
    for line, y in zip(axis.lines, curves.values(), strict=True):
        low, high = y.min(axis=0), y.max(axis=0)
        axis.fill_between(range(len(low)), low, high, color=line.get_color(), alpha=0.2)
    axis.set(title=experiment.title)
    if curves:
        axis.legend()
    save(figure, out)
