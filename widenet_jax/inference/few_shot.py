"""Accuracy of a linear layer fitted to a few images of each class, as in big_vision's few-shot LSR.

Least squares on the inputs of the model's last layer, against targets of 1 and -1. The columns are
standardised; a column of 100s is a bias that the penalty hardly reaches.
"""

from functools import partial
from typing import Any

import numpy as np

from widenet_jax.data.contract import Source
from widenet_jax.data.labelled import LABELS_READ, Subset, labels_at, names_text
from widenet_jax.data.sources import build_transforms, open_splits
from widenet_jax.errors import raise_first, refuse
from widenet_jax.inference.over_source import bad_examples, other_examples, totals_over_source
from widenet_jax.run.intervals import wilson
from widenet_jax.specs import task_spec
from widenet_jax.step import forward
from widenet_jax.task import Evaluation
from widenet_jax.trained import Trained, features
from widenet_jax.typing import Array, PyTree

SEEDS = 3
L2 = 2.0**10
BIAS = 100.0


def few_shot(trained: Trained, shots: int) -> dict[str, Any]:
    """Fits layers to images of the training split, and measures them on the evaluation split.

    The set's classes need not be the model's.

    Returns:
      `shots` of each class; `fitted`, the images of the smallest draw that could be read; the set's
      number of `classes`; how many `images` were evaluated, and `bad_examples` above 0; the
      accuracy over them of the `draws` with seeds 0, 1, ...; their mean, `few_shot`, and its 95%
      interval over images.

    Raises:
      BadInputError: as `sources.open_splits` and `draw`; a split's arrays are not the model's.
    """
    data = trained.config.data
    same = data.train_split == data.eval_split
    problem = f"are both {data.eval_split}; a layer is not measured on the images it is fitted to"
    refuse("config.data.train_split and config.data.eval_split", (same, problem))
    train, evaluation = open_splits(trained.config, dict(data), None)
    names = train.info["class_names"]
    _, transform = build_transforms(
        trained.config, train.info
    )  # which bounds labels by its classes
    for source in (train, evaluation):
        raise_first(other_examples(trained, source, transform))
    draws = [draw(train, shots, seed) for seed in range(SEEDS)]
    drawn = np.unique(np.concatenate(draws))
    chosen = Subset(train, drawn, names, range(len(names)))
    x, y, read = features_of(trained, chosen, transform, limit=1.0)  # few, of a large split
    own = [np.isin(drawn, records) & read for records in draws]
    layers = [fit(x[one], y[one], len(names)) for one in own]
    x, y, read = features_of(trained, evaluation, transform)
    x, y = x[read], y[read]
    found = [float(np.mean((x @ w + b).argmax(axis=1) == y)) for w, b in layers]
    mean = float(np.mean(found))
    return {
        "shots": shots,
        "fitted": min(int(one.sum()) for one in own),
        "classes": len(names),
        "images": len(y),
        "draws": found,
        "few_shot": mean,
        "intervals": {"few_shot": wilson(mean, len(y))},
        **bad_examples(evaluation, len(y)),
    }


def draw(source: Source, shots: int, seed: int) -> np.ndarray:
    """Returns records of `shots` images of each class: the first ones in a random order.

    Raises:
      BadInputError: a class has fewer.
    """
    names = source.info["class_names"]
    lacking, found = np.full(len(names), shots), []
    order = np.random.default_rng(seed).permutation(len(source))
    for first in range(0, len(order), LABELS_READ):
        part = order[first : first + LABELS_READ]
        for record, label in zip(part, labels_at(source, part), strict=True):
            if label >= 0 and lacking[label]:
                lacking[label] -= 1
                found.append(record)
        if not lacking.any():
            break
    few = [name for name, count in zip(names, lacking, strict=True) if count]
    refuse(f"--shots={shots}", (few, f"there are fewer training images of {names_text(few)}"))
    return np.array(found)


def features_of(
    trained: Trained, source: Source, transform: Any, *, limit: float | None = None
) -> tuple[np.ndarray, ...]:
    """Returns features [n, D] and labels [n] of all examples, and which could be read: bool [n].

    Args and errors: as of `totals_over_source`.
    """
    layer = task_spec(trained.config.task.name).last_layer

    def evaluate(params: PyTree, batch: dict[str, Array]) -> Evaluation:
        found = features(layer, trained.task, partial(forward, trained.model, params), batch)
        return Evaluation({}, {}, {"x": found, "y": batch["label"], "mask": batch["mask"]})

    rows = totals_over_source(trained, evaluate, source, transform, limit=limit).rows
    return rows["x"], rows["y"], rows["mask"].astype(bool)


def fit(
    x: np.ndarray, y: np.ndarray, num_classes: int, l2: float = L2
) -> tuple[np.ndarray, np.ndarray]:
    """Fits a layer to features `x` [n, D] and labels `y` [n] by least squares, in float64.

    Returns:
      Weights [D, V] of features as they are, and biases [V].
    """
    x = x.astype(np.float64)
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    columns = np.pad((x - mean) / std, ((0, 0), (0, 1)), constant_values=BIAS)
    targets = 2.0 * np.eye(num_classes)[y] - 1.0
    penalty = l2 * np.eye(columns.shape[1])
    solution = np.linalg.solve(columns.T @ columns + penalty, columns.T @ targets)
    weights = solution[:-1] / std[:, None]
    return weights, BIAS * solution[-1] - mean @ weights
