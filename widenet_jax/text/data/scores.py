"""Tables of texts, or pairs of texts, whose labels are numbers: STS-B, and your own."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.data.contract import ArraySpec
from widenet_jax.errors import raise_first
from widenet_jax.text.data import sequences
from widenet_jax.text.data.tables import Row, Table, rows_of


class Scores(Table):
    """One split of a table, tokenised when opened; `source[i]["label"]` is a float.

    Attributes:
      record_scores: the label of each row, float32 [n].
      The rest: as of `Table`, without classes.
    """

    def _read_labels(self, rows: Sequence[Row], *_: Any) -> list[str]:
        self.record_scores, bad = scores_of(rows)
        raise_first(bad)
        self._labels, self.info = self.record_scores, {}
        return [describe(self.record_scores)]


def number_of(label: str) -> float:
    """Returns a label as a number that float32 holds; NaN of any other."""
    with contextlib.suppress(ValueError):
        if abs(number := float(label.replace("_", "x"))) <= float(np.finfo(np.float32).max):
            return number
    return math.nan


def scores_of(rows: Sequence[Row]) -> tuple[np.ndarray, list[str]]:
    """Returns labels as numbers, float32 [n], and a line for each reason to refuse them."""
    scores = np.array([number_of(row.label) for row in rows], np.float32)
    wrong = [f"{rows[k].where}: label {rows[k].label!r}" for k in np.flatnonzero(scores != scores)]
    if not np.ptp(scores):
        alike = f"{rows[0].where}: all {len(rows):,} scores are {scores[0]:g}; a correlation needs"
        return scores, [f"{alike} others, too: name a split that has scores"]
    return scores, [f"{one} is no finite number; write scores as 3.5" for one in wrong]


def describe(scores: np.ndarray) -> str:
    """Returns a line on scores; those that the usual rates take long to reach are to be scaled."""
    mean, deviation = scores.mean(dtype=np.float64), scores.std(dtype=np.float64)
    text = f"scores from {scores.min():g} to {scores.max():g}, mean {mean:.4g}"
    advice = "; they are learned as they are: scale them to about 0 to 5"
    return text + advice if max(abs(mean), deviation) > 10 else text


def splits_of(train: Any, evaluation: Any, _: Any, data: Mapping[str, Any]) -> tuple[Scores, ...]:
    """Returns both splits of Python objects; see `specs.TaskSpec` and `tables.rows_of`."""
    rows = {"train": rows_of(train, "data"), "eval": rows_of(evaluation, "eval_data")}
    return tuple(Scores(data, data[f"{split}_split"], {}, own) for split, own in rows.items())


def example_of(config: Any, _: Any) -> dict[str, ArraySpec]:
    """Returns the arrays of one example in a batch."""
    return {**sequences.sequence_spec(config.data.max_length), "label": ArraySpec((), "float32")}
