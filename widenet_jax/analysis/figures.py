"""Pictures of runs."""

from collections.abc import Sequence

from etils import epath
from matplotlib.figure import Figure  # not pyplot: files, never a window, nothing to close

from widenet_jax.metrics import JsonLines

STYLES = {"train": {"alpha": 0.7}, "eval": {"ls": "--", "marker": "o", "ms": 3}}


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
    with epath.Path(out).open("wb") as file:
        figure.savefig(file, format="png", dpi=120)
