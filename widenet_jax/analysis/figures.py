"""Pictures of runs."""

from collections.abc import Sequence

import numpy as np
from etils import epath
from matplotlib.figure import Figure  # not pyplot: files, never a window, nothing to close

from widenet_jax.metrics import JsonLines

STYLES = {"train": {"alpha": 0.7}, "eval": {"ls": "--", "marker": "o", "ms": 3}}
MOST_NAMES = 50  # more do not fit beside a picture


def draw_learning_curves(
    workdirs: Sequence[epath.Path], out: epath.Path, *, names: Sequence[str] | None = None
) -> None:
    """Loss (left) and accuracy (right) against steps; one colour a run, test dashed with dots."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss_axis, accuracy_axis = figure.subplots(1, 2)
    labels = names or ["" for _ in workdirs]
    for index, (workdir, label) in enumerate(zip(workdirs, labels, strict=True)):
        records = JsonLines(epath.Path(workdir) / "metrics.jsonl").read()
        colour = f"C{index}"
        for split, style in STYLES.items():
            rows = [r for r in records if r["split"] == split]
            steps = [r["step"] for r in rows]
            name = f"{label} {'test' if split == 'eval' else 'train'}".strip()
            for axis, key in ((loss_axis, "cross_entropy"), (accuracy_axis, "accuracy")):
                axis.plot(steps, [r[key] for r in rows], color=colour, label=name, **style)
    # In training against smoothed, mixed labels: its floor is not 0.
    loss_axis.set(xlabel="step", ylabel="cross-entropy (training: smoothed labels)", yscale="log")
    accuracy_axis.set(xlabel="step", ylabel="accuracy", ylim=(0, 1))
    for axis in (loss_axis, accuracy_axis):
        axis.grid(alpha=0.3)
    accuracy_axis.legend()
    save(figure, out)


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
