"""Accuracy of a trained classifier over a source: top-1, top-5, by class; calibration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from matplotlib.ticker import MaxNLocator

from widenet_jax.data.contract import Source
from widenet_jax.inference.over_source import totals_over_source
from widenet_jax.losses import label_cross_entropy
from widenet_jax.run.figures import PALETTE, save, shortened, subplots, write_in_cells
from widenet_jax.run.intervals import balanced_interval, bootstrap_mean, wilson
from widenet_jax.run.tables import csv_text
from widenet_jax.step import forward
from widenet_jax.task import Evaluation
from widenet_jax.trained import Trained
from widenet_jax.typing import Array, PyTree

TOP = 5
EXCLUDED = -1e9  # a logit; finite, so that an excluded label has a finite loss
BINS = 15  # of confidences, as in Guo et al. 2017
MOST_CELLS = 30  # classes a side; numbers in more cells could not be read
MOST_PAIRS = 25
Rows = Mapping[str, np.ndarray]  # arrays [n], by name
HEADER = ("file", "index", "truth", "prediction", "probability")  # of predictions


@dataclass(frozen=True)
class Accuracy:
    """Counts over the examples of a source.

    Attributes:
      class_names: label k is class_names[k].
      confusion: [V, V] int64, examples of class (row) that the model gave class (column).
      in_top: [V] int64, examples of each class with that class among the TOP most probable ones.
      losses: [n] cross-entropy of each example, in nats.
      calibration_error: see the function.
      choices: how many classes the model chose among.
    """

    class_names: tuple[str, ...]
    confusion: np.ndarray
    in_top: np.ndarray
    losses: np.ndarray
    calibration_error: float
    choices: int

    def as_json(self, unit: str) -> dict[str, Any]:
        """Returns the number of examples, called `unit`, and the numbers over them.

        "top_5" is left out where there are no more than 5 choices. "largest_class" is the share of
        the most frequent class, which always answering it would get right. "per_class" is the top-1
        accuracy of every class that has examples, "balanced_accuracy" its mean over these classes.
        "intervals" has the 95% interval of every metric, by Wilson, or of the loss by bootstrap
        (None where all examples have the same loss).
        """
        counts, right = self.confusion.sum(axis=1), np.diag(self.confusion)
        n, present = int(counts.sum()), counts > 0
        classes = zip(self.class_names, right, counts, strict=True)
        shares = {"top_1": float(right.sum() / n)}
        if self.choices > TOP:
            shares[f"top_{TOP}"] = float(self.in_top.sum() / n)
        intervals = {name: wilson(share, n) for name, share in shares.items()}
        right, counts = right[present], counts[present]
        intervals["balanced_accuracy"] = balanced_interval(right, counts)
        intervals["cross_entropy"] = bootstrap_mean(self.losses)
        return {
            unit: n,
            **shares,
            "largest_class": float(counts.max() / n),
            "balanced_accuracy": float((right / counts).mean()),
            "cross_entropy": float(self.losses.mean()),
            "calibration_error": self.calibration_error,
            "choices": self.choices,
            "intervals": intervals,
            "per_class": {name: float(hits / count) for name, hits, count in classes if count},
        }

    def confused(self, most: int) -> list[tuple[str, str, int]]:
        """Lists (class, predicted class, count), the most frequent mistakes first."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        names = self.class_names
        return [(names[i], names[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]


def calibration_error(right: np.ndarray, confidences: np.ndarray) -> float:
    """Returns the expected calibration error (ECE): how far confidences are from accuracies.

    Bin k of BINS holds confidences in ((k - 1) / BINS, k / BINS]. The differences between the
    bins' accuracies and mean confidences are weighted by the bins' shares of the examples.
    """
    confidences = confidences.astype(np.float64)
    bins = np.digitize(confidences, np.arange(1, BINS) / BINS, right=True)
    return float(np.abs(np.bincount(bins, right - confidences)).sum() / len(right))


def classify_source(
    trained: Trained, source: Source, transform: Any, choices: Sequence[int]
) -> Rows:
    """Returns the `example_rows` of the n examples of a source, in their order.

    Args:
      trained: the model.
      source, transform: as `over_source.open_source` returns them.
      choices: as of `example_rows`.
    """

    def evaluate(params: PyTree, batch: dict[str, Array]) -> Evaluation:
        logits, _ = forward(trained.model, params, trained.task.inputs(batch))
        return Evaluation({}, {}, example_rows(logits, batch, choices))

    return totals_over_source(trained, evaluate, source, transform).rows


def example_rows(logits: Array, batch: Mapping[str, Array], choices: Sequence[int]) -> Rows:
    """Returns rows [B] for each example of a batch.

    The rows are `mask` (whether it could be read), `label`, `predicted`, `probability` of the
    predicted class, `in_top` and `loss`. `choices` lists the classes that may be predicted.
    """
    label, V = batch["label"], logits.shape[-1]
    logits = jnp.where(np.isin(np.arange(V), choices), logits, EXCLUDED)
    _, top = jax.lax.top_k(logits, min(TOP, V))
    return {
        "mask": batch["mask"],
        "label": label,
        "predicted": top[:, 0],
        "probability": jax.nn.softmax(logits).max(axis=-1),
        "in_top": (top == label[:, None]).any(axis=1),
        "loss": label_cross_entropy(logits, label),
    }


def accuracy_of(class_names: Sequence[str], rows: Rows, choices: int) -> Accuracy:
    """Counts the rows of `classify_source` that could be read."""
    V, read = len(class_names), rows["mask"].astype(bool)
    label, predicted, in_top = (rows[name][read] for name in ("label", "predicted", "in_top"))
    confusion = np.bincount(label * V + predicted, minlength=V * V).reshape(V, V)
    losses = rows["loss"][read].astype(np.float64)
    top = np.bincount(label[in_top], minlength=V)
    error = calibration_error(label == predicted, rows["probability"][read])
    return Accuracy(tuple(class_names), confusion, top, losses, error, choices)


def predictions_csv(class_names: Sequence[str], source: Source, rows: Rows) -> str:
    """Returns CSV with a row for each example that could be read: its file or place, and classes.

    The index is the example's in its split; the probability is the predicted class's.
    """
    lines: list[Sequence[Any]] = [HEADER]
    for k in np.flatnonzero(rows["mask"]).tolist():
        names = (class_names[rows[which][k]] for which in ("label", "predicted"))
        lines.append((source.describe(k), k, *names, f"{rows['probability'][k]:.6f}"))
    return csv_text(lines)


def confusion_csv(accuracy: Accuracy) -> str:
    """Returns the confusion matrix as CSV: a row for each class, a column for each predicted."""
    names = accuracy.class_names
    rows = ([name, *row] for name, row in zip(names, accuracy.confusion.tolist(), strict=True))
    return csv_text([["class \\ predicted", *names], *rows])


def draw_confusion(accuracy: Accuracy, out: epath.Path, *, title: str = "") -> None:
    """Draws the confusion matrix; of more than MOST_CELLS classes the most confused pairs."""
    draw = draw_matrix if len(accuracy.class_names) <= MOST_CELLS else draw_confused
    draw(accuracy, out, title=title)


def draw_matrix(accuracy: Accuracy, out: epath.Path, *, title: str) -> None:
    """Draws counts by class (row) and predicted class (column), coloured by share of the row.

    Cells off the diagonal without examples stay blank.
    """
    counts = accuracy.confusion.sum(axis=1)
    shares = accuracy.confusion / np.maximum(counts, 1)[:, None]
    names = [*map(shortened, accuracy.class_names)]
    V, longest = len(counts), max(map(len, names))
    side = 2.6 + 0.45 * V + 0.1 * longest
    figure, axis = subplots(size=(side + 1.5, side))
    figure.suptitle(title, fontsize=10)
    image = axis.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    figure.colorbar(image, ax=axis, label="colour: share of the class")
    shown = (accuracy.confusion > 0) | np.diag(counts > 0)
    texts = np.where(shown, accuracy.confusion.astype(str), "")
    write_in_cells(axis, texts, shares > 0.6, fontsize=8)
    axis.set(xlabel="predicted class", ylabel="true class")
    axis.set_xticks(range(V), names, rotation=90)
    axis.set_yticks(range(V), names)
    save(figure, out)


def draw_confused(accuracy: Accuracy, out: epath.Path, *, title: str) -> None:
    """Draws the most frequent mistakes as bars, with their counts and shares of the class."""
    pairs = accuracy.confused(MOST_PAIRS)
    counts = dict(zip(accuracy.class_names, accuracy.confusion.sum(axis=1), strict=True))
    figure, axis = subplots(size=(9, 1.5 + 0.28 * max(len(pairs), 3)))
    figure.suptitle(title, fontsize=10)
    bars = axis.barh(range(len(pairs)), [count for _, _, count in pairs], color=PALETTE[0])
    texts = [f"{count:,} ({count / counts[name]:.1%})" for name, _, count in pairs]
    axis.bar_label(bars, texts, padding=3, fontsize=8)
    names = [(shortened(name), shortened(other)) for name, other, _ in pairs]
    axis.set_yticks(range(len(pairs)), [f"{name} taken for {other}" for name, other in names])
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("mistakes (share of the class)")
    if not pairs:
        axis.text(0.5, 0.5, "no mistakes", ha="center", transform=axis.transAxes)
    save(figure, out)
