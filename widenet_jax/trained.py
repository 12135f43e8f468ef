"""A trained model, and what it finds for single examples: probabilities, features, outputs.

Each example is its own token group, so that no other example changes what is found for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.errors import refuse
from widenet_jax.experiment import input_spec
from widenet_jax.nn.build import for_vmap
from widenet_jax.step import forward
from widenet_jax.task import Apply, Task
from widenet_jax.typing import Array, PyTree

Rows = Sequence[Mapping[str, np.ndarray]]  # arrays of each example, as in a batch of the task
# Of a task, its model and a batch [B, ...]: an array [B, ...].
Finder = Callable[[Task, Apply, Mapping[str, Array]], Array]


@dataclass(frozen=True)
class Stored:
    """What a checkpoint or an export has of a model.

    Attributes:
      params: host arrays.
      config: the config of its run: plain dicts as stored, a ConfigDict once it is opened.
      info: of the data that it was trained on: class_names, pairs, tokenizer, vocab_size.
      step: the checkpoint's step.
      result: the run's `result.json`; empty if the run has not finished.
      card: further rows of the model card, text by title.
    """

    params: PyTree
    config: Any
    info: Mapping[str, Any]
    step: int
    result: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    card: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Label k is class_names[k]; empty for a task without classes."""
        return tuple(self.info.get("class_names", ()))

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a text model; None for a model of bytes."""
        return Tokenizer(self.info["tokenizer"]) if "tokenizer" in self.info else None


@dataclass(frozen=True)
class Trained(Stored):
    """A model ready for evaluation, prediction and analysis, with the caller's changes.

    Attributes:
      place: the directory it was read from, with `@CHECKPOINT` where one was chosen.
      task: of its run.
      model: the Linen module.
    """

    place: str
    task: Task
    model: nn.Module


class Predictions(NamedTuple):
    """What `scripts/predict.py` shows.

    Attributes:
      key: of the rows in --json.
      rows: each with its lines for people.
      pictures: title and uint8 [h, w, C] of the images to draw.
      unreadable: a line for each input that could not be read.
    """

    key: str
    rows: list[tuple[dict[str, Any], list[str]]]
    pictures: Sequence[tuple[str, np.ndarray]] = ()
    unreadable: Sequence[str] = ()


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

    model = for_vmap(trained.model, input_spec(trained.task))

    def of_one(params: PyTree, row: dict[str, Array]) -> Array:
        batch = {name: array[None] for name, array in row.items()}
        return find(trained.task, partial(forward, model, params), batch)[0]

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
    """Returns a function from examples to the probabilities of their classes, [n, V].

    Raises:
      BadInputError: public weights without a classifier.
    """
    lacks = "holds weights without a classifier; read their features, or finetune them"
    refuse(trained.place, (not any(trained.class_names), lacks))
    return over_rows(trained, probabilities)


def scorer(trained: Trained) -> Callable[[Rows], np.ndarray]:
    """Returns a function from examples to the scores of a regression, [n]."""
    return over_rows(trained, lambda task, apply, batch: apply(task.inputs(batch), None)[0][:, 0])


def best(probs: np.ndarray, trained: Trained, count: int) -> list[dict]:
    """Lists the most probable classes: [{"class": ..., "probability": ...}, ...], best first."""
    order = np.argsort(-probs, kind="stable")[:count]
    return [{"class": trained.class_names[k], "probability": float(probs[k])} for k in order]


def of_one(
    trained: Trained, function: Callable[[Apply, Mapping[str, Array]], PyTree]
) -> Callable[[Mapping[str, np.ndarray]], PyTree]:
    """Returns `function`, of the model and a batch, as a compiled function of one example."""

    @jax.jit
    def run(params: PyTree, batch: Mapping[str, Array]) -> PyTree:
        return function(partial(forward, trained.model, params), batch)

    def of_example(row: Mapping[str, np.ndarray]) -> PyTree:
        batch = {name: np.asarray(array)[None] for name, array in (row | {"mask": True}).items()}
        return jax.device_get(run(trained.params, batch))

    return of_example


def shares(top: list[dict], key: str) -> list[str]:
    """Formats probabilities, a line for each."""
    return [f"  {one['probability']:7.2%}  {one[key]}" for one in top]
