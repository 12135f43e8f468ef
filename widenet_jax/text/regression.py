"""Regression of texts and pairs of texts on scores, as in STS-B, and its correlations."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from scipy.stats import rankdata

from widenet_jax.data.contract import DataInfo, Source
from widenet_jax.run.intervals import varies
from widenet_jax.task import Apply, Evaluation, Metrics, PrimaryMetric, Rngs, add_layer_losses
from widenet_jax.text.classification import TextClassification
from widenet_jax.typing import Array


@dataclass(frozen=True)
class TextRegression(TextClassification):
    """Mean squared error of the scores as they are, plus the feed-forwards' own losses.

    The model is a classifier's with one class, whose logit is the score (BERT). A batch has the
    same arrays; its label [B] is float32.
    """

    primary_metric = PrimaryMetric("spearman")  # BERT's, of GLUE's two

    @classmethod
    def build(cls, _: ConfigDict, data_info: DataInfo) -> "TextRegression":
        return cls(data_info.info["vocab_size"], 1, data_info.example)

    def loss(self, apply: Apply, batch: Mapping[str, Array], rngs: Rngs) -> tuple[Array, Metrics]:
        logits, aux = apply(self.inputs(batch), rngs)
        error = jnp.square(logits[:, 0] - batch["label"]).mean()
        return add_layer_losses(error, {"squared_error": error}, aux)

    def evaluate(self, apply: Apply, batch: Mapping[str, Array]) -> Evaluation:
        """Returns as rows the score, the label and the mask of each example."""
        logits, aux = apply(self.inputs(batch), None)
        rows = {"score": logits[:, 0], "label": batch["label"], "mask": batch["mask"]}
        return Evaluation(
            {self.unit: batch["mask"].sum(dtype=jnp.int32)}, aux.get("sums", {}), rows
        )

    def summarize(
        self, sums: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], source: Source
    ) -> dict[str, float]:
        read = rows["mask"].astype(bool)
        scores, labels = (rows[name][read].astype(np.float64) for name in ("score", "label"))
        return {
            "spearman": spearman(scores, labels),
            "pearson": pearson(scores, labels),
            "squared_error": float(np.square(scores - labels).mean()),
            self.unit: int(sums[self.unit]),
        }


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Returns Pearson's correlation of float64 arrays [n].

    It is 0 where x or y is constant, and no correlation is defined: a model that answers one number
    is no better than a guess, and a run goes on.
    """
    if not (varies(x) and varies(y)):
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Returns Spearman's correlation: Pearson's of the ranks; NaN unless all numbers are finite."""
    return pearson(rankdata(x), rankdata(y)) if np.isfinite([x, y]).all() else float("nan")
