"""Learning curves of runs, and helpers that all figures share."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot, which opens windows and keeps figures alive

from widenet_jax.files import write_bytes
from widenet_jax.run.metrics import JsonLines

STYLES = {"train": {"alpha": 0.7}, "eval": {"ls": "--", "marker": "o", "ms": 3}}
MOST_NAMES = 50  # class names that fit beside a figure
CROSS_ENTROPY = "cross_entropy"
# Training may smooth or mix its targets; its loss then does not approach 0.
LABELS = {CROSS_ENTROPY: "cross-entropy (in training: of the training targets)"}


def draw_learning_curves(
    workdirs: Sequence[epath.Path],
    out: epath.Path,
    *,
    metric: str,
    names: Sequence[str] | None = None,
    splits: Sequence[str] = ("train", "eval"),
) -> None:
    """Draws the loss (left) and the headline metric (right) against steps.

    Each run has a colour; evaluation is dashed with dots. A curve is left out if its split does not
    record the metric.

    Args:
      workdirs: of runs of one task.
      out: a PNG file.
      metric: on the right: the task's headline metric.
      names: one for each run, for the legend.
      splits: "train", "eval" or both.
    """
    figure, axes = subplots(1, 2, size=(10, 4))
    labels = names or ["" for _ in workdirs]
    runs = [JsonLines(epath.Path(workdir) / "metrics.jsonl").read() for workdir in workdirs]
    metrics = (loss_of(runs), metric)
    for index, (records, label) in enumerate(zip(runs, labels, strict=True)):
        # Ten colours tell runs apart; more runs take a continuous range.
        colour = f"C{index}" if len(labels) <= 10 else colormaps["viridis"](index / len(labels))
        for split in splits:
            rows = [r for r in records if r["split"] == split]
            which = ("test" if split == "eval" else "train") if len(splits) > 1 or not label else ""
            for axis, metric in zip(axes, metrics, strict=True):
                points = [(r["step"], r[metric]) for r in rows if r.get(metric) is not None]
                steps, values = zip(*points, strict=True) if points else ((), ())
                # A line of one point would be invisible.
                style = STYLES["eval" if len(points) == 1 else split]
                axis.plot(steps, values, color=colour, label=f"{label} {which}".strip(), **style)
    axes[0].set_yscale("log")
    write_decimals(axes[0])
    drawn = [value for line in axes[1].lines for value in line.get_ydata()]
    if all(0 <= value <= 1 for value in drawn):
        axes[1].set_ylim(0, 1)
    for axis, metric in zip(axes, metrics, strict=True):
        axis.set(xlabel="step", ylabel=LABELS.get(metric, metric.replace("_", " ")))
        axis.grid(alpha=0.3)
    if len(labels) <= 2:
        axes[1].legend()
    else:  # beside the curves, not over them
        handles, texts = axes[1].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside right upper", fontsize=8)
        figure.set_size_inches(14, max(4, 0.5 + 0.18 * len(texts)))
    save(figure, out)


def loss_of(runs: Sequence[Sequence[Mapping]]) -> str:
    """Returns the loss that both splits can share: cross-entropy if recorded, else the total."""
    recorded = any(CROSS_ENTROPY in record for records in runs for record in records)
    return CROSS_ENTROPY if recorded or not any(runs) else "loss"


def write_decimals(axis: Axes) -> None:
    """Labels a logarithmic y axis in decimals, where matplotlib would write powers of ten."""
    low, high = axis.get_ylim()
    axis.yaxis.set_major_formatter(decimals)
    # Over more than a decade the labels of all minor ticks would run into each other.
    axis.yaxis.set_minor_formatter(decimals if high < 10 * low else few_decimals)


def decimals(value: float, _: int) -> str:
    """Writes a tick."""
    return f"{value:.10f}".rstrip("0").rstrip(".")


def few_decimals(value: float, place: int) -> str:
    """Writes a minor tick that begins with 2 or 5."""
    return decimals(value, place) if f"{value:e}"[0] in "25" else ""


def subplots(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any
) -> tuple[Figure, Any]:
    """Returns a new figure of `size` in inches, and its axes as `Figure.subplots` makes them."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Figure, out: epath.PathLike) -> None:
    """Writes a figure as PNG, whole or not at all."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    write_bytes(out, data.getvalue())
