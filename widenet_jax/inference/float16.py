"""Models in float16: files of half the size, and what the rounding changes."""

import dataclasses

import jax
import numpy as np

from widenet_jax.errors import BadInputError, raise_first
from widenet_jax.inference.exported import as_float32
from widenet_jax.inference.over_source import evaluated
from widenet_jax.inference.trained import without_adapters
from widenet_jax.param_names import named_leaves
from widenet_jax.run.stopping import say
from widenet_jax.run.summary import result_metrics
from widenet_jax.run.tables import primary_text
from widenet_jax.trained import Stored, Trained
from widenet_jax.typing import PyTree

ROW = "in float16"  # of the model card


def in_float16(model: Stored, opened: Trained) -> Stored:
    """Returns a model with parameters in float16, and its card with the primary metric of both.

    The metric is of the run's evaluation split; where that cannot be read, the card says so.

    Args:
      model: as stored.
      opened: the same model, ready for evaluation.

    Raises:
      BadInputError: float16 has no such number.
    """
    with np.errstate(over="ignore"):
        params = jax.tree.map(lambda x: x.astype(np.float16), model.params)
    raise_first(
        f"{opened.place}: {name} has numbers beyond 65,504, the largest of float16; leave --dtype "
        "out"
        for name, leaf in named_leaves(params)
        if not np.isfinite(leaf).all()
    )
    card = {**model.card}
    if ROW not in card:  # else it is float16 already
        rounded = dataclasses.replace(model, params=jax.tree.map(as_float32, params))
        card[ROW] = compare(opened, without_adapters(rounded).params)
    return dataclasses.replace(model, params=params, card=card)


def compare(opened: Trained, rounded: PyTree) -> str:
    """Returns the primary metric with rounded parameters, and with the model's own."""
    try:
        found = primary_of(dataclasses.replace(opened, params=rounded))
        return f"{found}; in float32: {primary_of(opened)}"
    except BadInputError as error:
        say(
            f"warning: the evaluation split cannot be read to compare float16 with float32: {error}"
        )
        return "not compared with float32"


def primary_of(trained: Trained) -> str:
    """Returns the primary metric over the evaluation split, with its interval if it has one."""
    metrics, *_ = evaluated(trained)
    return primary_text(result_metrics(metrics, trained.task))
