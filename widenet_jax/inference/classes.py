"""Class probabilities and features of examples, images and texts alike.

Each example is its own token group, so that no other example changes what is found for it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import flax.linen as nn
import jax
import numpy as np

from widenet_jax.inference.trained import Trained
from widenet_jax.step import forward
from widenet_jax.task import Apply, Task
from widenet_jax.typing import Array, PyTree

# The layer of each task's models that turns features into logits.
LAST_LAYER = {"classification": "head", "text_classification": "classifier"}

Rows = Sequence[Mapping[str, np.ndarray]]  # arrays of each example, as in a batch of the task
# Of a task, its model and a batch [B, ...]: an array [B, ...].
Finder = Callable[[Task, Apply, Mapping[str, Array]], Array]


def probabilities(task: Task, apply: Apply, batch: Mapping[str, Array]) -> Array:
    """Returns the probabilities of the classes: float32 [B, V]."""
    return jax.nn.softmax(apply(task.inputs(batch), None)[0])


def features(layer: str, task: Task, apply: Apply, batch: Mapping[str, Array]) -> Array:
    """Returns what the layer of that name reads while the model is applied: float32 [B, D]."""
    read = []

    def note(call: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext):
        if context.module.path == (layer,):
            read.append(args[0])
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        apply(task.inputs(batch), None)
    (found,) = read
    return found


def each_example(trained: Trained, find: Finder) -> Callable[[PyTree, dict[str, Array]], Array]:
    """Returns (params, batch [n, ...]) -> what `find` returns for each example by itself, [n, ...].

    The size n may be symbolic (`jax.export`): only `jax.vmap` sees it.
    """

    def of_one(params: PyTree, row: dict[str, Array]) -> Array:
        batch = {name: array[None] for name, array in row.items()}
        return find(trained.task, partial(forward, trained.model, params), batch)[0]

    return jax.vmap(of_one, in_axes=(None, 0))


def over_rows(trained: Trained, find: Finder) -> Callable[[Rows], np.ndarray]:
    """Returns a function from n >= 1 examples to its results: float32 [n, ...].

    It runs in batches of the next power of two, so that few sizes are compiled.
    """
    run, params = jax.jit(each_example(trained, find)), jax.device_put(trained.params)

    def of_rows(rows: Rows) -> np.ndarray:
        size = 1 << (len(rows) - 1).bit_length()
        filled = [*rows, *[rows[0]] * (size - len(rows))]
        batch = {name: np.stack([row[name] for row in filled]) for name in rows[0]}
        return np.asarray(run(params, batch))[: len(rows)]

    return of_rows


def classifier(trained: Trained) -> Callable[[Rows], np.ndarray]:
    """Returns a function from examples to the probabilities of their classes, [n, V]."""
    return over_rows(trained, probabilities)


def feature_reader(trained: Trained) -> Callable[[Rows], np.ndarray]:
    """Returns a function from examples to their features, [n, D].

    Features are what the layer of the logits reads: behind the pooling and, where the model has
    it, the representation layer or the pooler.
    """
    return over_rows(trained, partial(features, LAST_LAYER[trained.config.task.name]))


def best(probs: np.ndarray, trained: Trained, count: int) -> list[dict]:
    """Lists the most probable classes: [{"class": ..., "probability": ...}, ...], best first."""
    order = np.argsort(-probs, kind="stable")[:count]
    return [{"class": trained.class_names[k], "probability": float(probs[k])} for k in order]
