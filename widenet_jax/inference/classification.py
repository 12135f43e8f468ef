"""Accuracy of a trained classifier over a source: top-1, top-5, by class, confusions."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from matplotlib.ticker import MaxNLocator

from widenet_jax.inference.over_source import sums_over_source
from widenet_jax.losses import softmax_cross_entropy
from widenet_jax.run.figures import save, subplots, write_in_cells
from widenet_jax.run.tables import csv_text
from widenet_jax.step import forward
from widenet_jax.trained import Trained
from widenet_jax.typing import Array, PyTree

TOP = 5
MOST_CELLS = 30  # classes a side; numbers in more cells could not be read
MOST_PAIRS = 25


@dataclass(frozen=True)
class Accuracy:
    """Counts over the examples of a source.

    Attributes:
      class_names: label k is class_names[k].
      confusion: [V, V] int64, examples of class (row) that the model gave class (column).
      in_top: [V] int64, examples of each class with that class among the TOP most probable ones.
      cross_entropy: mean over the examples, in nats.
    """

    class_names: tuple[str, ...]
    confusion: np.ndarray
    in_top: np.ndarray
    cross_entropy: float

    def as_json(self, unit: str) -> dict[str, Any]:
        """Returns the number of examples, called `unit`, and the numbers over them.

        "top_5" is left out where there are no more than 5 classes. "per_class" is the top-1
        accuracy of every class that has examples.
        """
        counts, right = self.confusion.sum(axis=1), np.diag(self.confusion)
        classes = zip(self.class_names, right, counts, strict=True)
        in_top = {f"top_{TOP}": float(self.in_top.sum() / counts.sum())}
        return {
            unit: int(counts.sum()),
            "top_1": float(right.sum() / counts.sum()),
            **(in_top if len(counts) > TOP else {}),
            "cross_entropy": self.cross_entropy,
            "per_class": {name: float(hits / count) for name, hits, count in classes if count},
        }

    def confused(self, most: int) -> list[tuple[str, str, int]]:
        """Lists (class, predicted class, count), the most frequent mistakes first."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        names = self.class_names
        return [(names[i], names[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]


def measure_accuracy(trained: Trained) -> Accuracy:
    """Measures the model over the source and split that its config names.

    Raises:
      BadInputError: as `over_source.open_source`.
    """
    sums = sums_over_source(trained, partial(accuracy_sums, trained))
    confusion, in_top = (sums[name].astype(np.int64) for name in ("confusion", "in_top"))
    cross_entropy = float(sums["cross_entropy"] / confusion.sum())
    return Accuracy(trained.class_names, confusion, in_top, cross_entropy)


def accuracy_sums(
    trained: Trained, params: PyTree, batch: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Returns the logits [B, V], and sums over a batch's real examples.

    The sums are `confusion` [V, V], `in_top` [V] and `cross_entropy`.
    """
    mask, label = batch["mask"], batch["label"]
    inputs = trained.task.inputs(batch)
    logits, _ = forward(trained.model, params, inputs)
    V = logits.shape[-1]
    target = jax.nn.one_hot(label, V)
    one_hot = target.astype(jnp.int32) * mask[:, None]
    _, top = jax.lax.top_k(logits, min(TOP, V))
    found = (top == label[:, None]).any(axis=1)
    return logits, {
        "confusion": jnp.einsum("bi,bj->ij", one_hot, jax.nn.one_hot(top[:, 0], V, dtype=int)),
        "in_top": (one_hot * found[:, None]).sum(axis=0),
        "cross_entropy": jnp.where(mask, softmax_cross_entropy(logits, target), 0.0).sum(),
    }


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
    V = len(counts)
    side = 3 + 0.45 * V
    figure, axis = subplots(size=(side + 1.5, side))
    figure.suptitle(title, fontsize=10)
    image = axis.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    figure.colorbar(image, ax=axis, label="colour: share of the class")
    shown = (accuracy.confusion > 0) | np.diag(counts > 0)
    texts = np.where(shown, accuracy.confusion.astype(str), "")
    write_in_cells(axis, texts, shares > 0.6, fontsize=8)
    axis.set(xlabel="predicted class", ylabel="class")
    axis.set_xticks(range(V), accuracy.class_names, rotation=90)
    axis.set_yticks(range(V), accuracy.class_names)
    save(figure, out)


def draw_confused(accuracy: Accuracy, out: epath.Path, *, title: str) -> None:
    """Draws the most frequent mistakes as bars, with their counts and shares of the class."""
    pairs = accuracy.confused(MOST_PAIRS)
    counts = dict(zip(accuracy.class_names, accuracy.confusion.sum(axis=1), strict=True))
    figure, axis = subplots(size=(9, 1.5 + 0.28 * max(len(pairs), 3)))
    figure.suptitle(title, fontsize=10)
    bars = axis.barh(range(len(pairs)), [count for _, _, count in pairs])
    texts = [f"{count:,} ({count / counts[name]:.1%})" for name, _, count in pairs]
    axis.bar_label(bars, texts, padding=3, fontsize=8)
    axis.set_yticks(range(len(pairs)), [f"{name} taken for {other}" for name, other, _ in pairs])
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("mistakes (share of the class)")
    if not pairs:
        axis.text(0.5, 0.5, "no mistakes", ha="center", transform=axis.transAxes)
    save(figure, out)
