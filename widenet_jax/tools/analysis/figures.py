"""Pictures of runs."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from etils import epath
from matplotlib import colormaps
from matplotlib.figure import Figure  # not pyplot: files, never a window, nothing to close

from widenet_jax.run.metrics import JsonLines

STYLES = {"train": {"alpha": 0.7}, "eval": {"ls": "--", "marker": "o", "ms": 3}}
MOST_NAMES = 50  # more do not fit beside a picture


def draw_learning_curves(
    workdirs: Sequence[epath.Path],
    out: epath.Path,
    *,
    names: Sequence[str] | None = None,
    splits: Sequence[str] = ("train", "eval"),
) -> None:
    """Loss (left) and accuracy (right) against steps; one colour a run, test dashed with dots."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss_axis, accuracy_axis = figure.subplots(1, 2)
    labels = names or ["" for _ in workdirs]
    for index, (workdir, label) in enumerate(zip(workdirs, labels, strict=True)):
        records = JsonLines(epath.Path(workdir) / "metrics.jsonl").read()
        # Ten colours tell runs apart; more runs go through a continuous range.
        colour = f"C{index}" if len(labels) <= 10 else colormaps["viridis"](index / len(labels))
        for split in splits:
            rows = [r for r in records if r["split"] == split]
            # A line of one point would not be seen.
            style = STYLES["eval" if len(rows) == 1 else split]
            steps = [r["step"] for r in rows]
            which = ("test" if split == "eval" else "train") if len(splits) > 1 or not label else ""
            name = f"{label} {which}".strip()
            for axis, key in ((loss_axis, "cross_entropy"), (accuracy_axis, "accuracy")):
                axis.plot(steps, [r[key] for r in rows], color=colour, label=name, **style)
    # In training against smoothed, mixed labels: its floor is not 0.
    smoothed = " (training: smoothed labels)" if "train" in splits else ""
    loss_axis.set(xlabel="step", ylabel=f"cross-entropy{smoothed}", yscale="log")
    accuracy_axis.set(xlabel="step", ylabel="accuracy", ylim=(0, 1))
    for axis in (loss_axis, accuracy_axis):
        axis.grid(alpha=0.3)
    if len(labels) <= 2:
        accuracy_axis.legend()
    else:  # beside the curves, not over them
        figure.legend(*accuracy_axis.get_legend_handles_labels(), loc="outside right upper")
        figure.set_figwidth(14)
    save(figure, out)


def draw_metric_against(
    rows: Sequence[Mapping], fields: Sequence[str], metric: str, out: epath.Path
) -> None:
    """A panel for each field: the metric of every row against the field, and the mean a value.

    Numbers that span a factor of 10 or more stand on a logarithmic axis; text in order of
    appearance. A row without the field is left out of its panel, the mean where it says nothing.
    """
    figure = Figure(figsize=(1 + 4 * len(fields), 4), layout="constrained")
    axes = figure.subplots(1, len(fields), sharey=True, squeeze=False)[0]
    for axis, field in zip(axes, fields, strict=True):
        groups: dict[object, list[float]] = {}
        for row in rows:
            if row.get(field) is not None:
                groups.setdefault(row[field], []).append(row[metric])
        numbers = all(type(value) in (int, float) for value in groups)
        values = sorted(groups) if numbers else list(groups)
        places = values if numbers else range(len(values))
        for place, value in zip(places, values, strict=True):
            axis.plot([place] * len(groups[value]), groups[value], "o", color="C0", alpha=0.6)
        if any(len(found) > 1 for found in groups.values()):
            means = [fmean(groups[value]) for value in values]
            # Between names there is nothing to join.
            style = "-_" if numbers else "_"
            axis.plot(places, means, style, color="C1", ms=14, mew=2, label="mean")
            axis.legend()
        logarithmic = numbers and values and values[0] > 0 and values[-1] >= 10 * values[0]
        if logarithmic:
            axis.set_xscale("log")
        if apart(np.log(places) if logarithmic else places):
            texts = [f"{value:.4g}" if numbers else str(value) for value in values]
            turned = {"rotation": 20, "ha": "right"} if max(map(len, texts), default=0) > 6 else {}
            axis.set_xticks(list(places), texts, **turned)
            axis.set_xticks([], minor=True)
        axis.set_xlabel(field)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(metric.replace("_", " "))
    save(figure, out)


def apart(places: Sequence[float]) -> bool:
    """Whether there is room for a label at each place; they rise."""
    gaps = np.diff(places)
    return len(gaps) == 0 or min(gaps) > 0.08 * sum(gaps)


def draw_confusion(confusion: np.ndarray, class_names: Sequence[str], out: epath.Path) -> None:
    """Shares of each class (row) that were taken for each (column); names up to MOST_NAMES."""
    counts = np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    V = len(class_names)
    side = min(12, 4 + 0.3 * V)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(confusion / counts, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    figure.colorbar(
        image,
        ax=axis,
        label="share of the class",
    )
    axis.set(xlabel="taken for", ylabel="class")
    if V <= MOST_NAMES:
        axis.set_xticks(range(V), class_names, rotation=90)
        axis.set_yticks(range(V), class_names)
    save(figure, out)


def save(figure: Figure, out: epath.Path) -> None:
    with epath.Path(out).open("wb") as file:
        figure.savefig(file, format="png", dpi=120)
