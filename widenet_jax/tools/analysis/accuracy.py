"""How well a trained model names the images of a source: top-1, top-5, each class, confusions."""

import csv
import io
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.experiment import make_forward
from widenet_jax.tasks.classification import to_unit_range
from widenet_jax.tasks.losses import softmax_cross_entropy
from widenet_jax.tools.analysis.over_source import sums_over_source
from widenet_jax.typing import Array, PyTree
from widenet_jax.weights.trained import Trained

TOP = 5


@dataclass(frozen=True)
class Accuracy:
    """Counts over a source of images.

    Attributes:
      class_names: label k is class_names[k].
      confusion: [V, V] int64, images of class (row) that were taken for class (column).
      in_top: [V] int64, images of each class whose class was among the TOP most probable.
      cross_entropy: the mean over the images.
    """

    class_names: tuple[str, ...]
    confusion: np.ndarray
    in_top: np.ndarray
    cross_entropy: float

    @property
    def images(self) -> int:
        return int(self.confusion.sum())

    @property
    def top_1(self) -> float:
        return float(np.trace(self.confusion) / self.images)

    @property
    def top_5(self) -> float:
        return float(self.in_top.sum() / self.images)

    @property
    def per_class(self) -> dict[str, float]:
        """Top-1 of each class that has an image."""
        counts = self.confusion.sum(axis=1)
        return {
            name: float(self.confusion[k, k] / counts[k])
            for k, name in enumerate(self.class_names)
            if counts[k]
        }

    def confused(self, most: int) -> list[tuple[str, str, int]]:
        """(class, what it was taken for, how often), the most frequent mistakes first."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        names = self.class_names
        return [(names[i], names[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]


def measure_accuracy(trained: Trained) -> Accuracy:
    """Over the source and split that the model's config names.

    Raises:
      BadInputError: as `over_source.open_source`.
    """
    sums = sums_over_source(trained, partial(accuracy_sums, model=trained.model))
    confusion = sums["confusion"].astype(np.int64)
    return Accuracy(
        class_names=trained.class_names,
        confusion=confusion,
        in_top=sums["in_top"].astype(np.int64),
        cross_entropy=float(sums["cross_entropy"] / confusion.sum()),
    )


def accuracy_sums(params: PyTree, batch: dict[str, Array], *, model: nn.Module) -> dict[str, Array]:
    """Counts over the real images of a batch: `confusion` [V, V], `in_top` [V]; `cross_entropy`."""
    mask, label = batch["mask"], batch["label"]
    logits, _ = make_forward(model)(params, to_unit_range(batch["image"]), mask, None)
    V = logits.shape[-1]
    target = jax.nn.one_hot(label, V)
    one_hot = target.astype(jnp.int32) * mask[:, None]
    _, top = jax.lax.top_k(logits, min(TOP, V))
    found = (top == label[:, None]).any(axis=1)
    return {
        "confusion": jnp.einsum("bi,bj->ij", one_hot, jax.nn.one_hot(top[:, 0], V, dtype=int)),
        "in_top": (one_hot * found[:, None]).sum(axis=0),
        "cross_entropy": jnp.where(mask, softmax_cross_entropy(logits, target), 0.0).sum(),
    }


def confusion_csv(accuracy: Accuracy) -> str:
    """A row a class, a column for each that it was taken for."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class \\ predicted", *accuracy.class_names])
    for name, row in zip(accuracy.class_names, accuracy.confusion, strict=True):
        writer.writerow([name, *row.tolist()])
    return text.getvalue()


def as_json(accuracy: Accuracy) -> dict[str, Any]:
    """What `scripts/evaluate.py --json` says, the confusion matrix apart."""
    return {
        "images": accuracy.images,
        "top_1": accuracy.top_1,
        "top_5": accuracy.top_5,
        "cross_entropy": accuracy.cross_entropy,
        "per_class": accuracy.per_class,
    }
