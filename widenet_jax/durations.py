"""Durations of a run, each written in steps, examples or epochs, whichever suits."""

import math
import numbers
from collections.abc import Mapping
from typing import Any

from widenet_jax.errors import BadInputError

# The order decides which of several fields an error proposes to keep: steps first.
UNITS = ("steps", "examples", "epochs")


def field_names(prefix: str) -> list[str]:
    """The fields a duration may be written in, such as train_steps, train_examples, ..."""
    return [f"{prefix}_{unit}" for unit in UNITS]


def to_steps(
    section: Mapping[str, Any],
    prefix: str,
    *,
    batch_size: int,
    num_examples: int,
    total_steps: int | None = None,
    required: bool = True,
    where: str = "config",
) -> int:
    """The duration `prefix` in steps, read from `<prefix>_steps`, `_examples` or `_epochs`.

    One of the three is set; absent, None and 0 mean unset. Steps are epochs * num_examples /
    batch_size or examples / batch_size, rounded to the nearest (half up), and at least 1: a set
    duration never vanishes. An epoch may end inside a batch.

    Args:
      section: the part of the config that has the fields.
      prefix: name of the duration: train, warmup, checkpoint_every, ...
      batch_size: examples a step, over all hosts.
      num_examples: examples an epoch.
      total_steps: length of the run, when a longer duration would be a mistake.
      required: whether it is an error that none is set; otherwise that is 0 steps.
      where: the section's name in messages.

    Raises:
      BadInputError: none or several fields are set, a value is no such number, or the duration is
        longer than `total_steps`.
    """
    names = field_names(prefix)
    values = {name: _number(section.get(name), f"{where}.{name}") for name in names}
    chosen = [name for name in names if values[name]]
    if not chosen and required:
        fields = ", ".join(f"{where}.{name}" for name in names)
        raise BadInputError(f"no length for {prefix!r}: set one of {fields} above 0")
    if not chosen:
        return 0
    if len(chosen) > 1:
        given = " and ".join(f"{where}.{name}={values[name]:g}" for name in chosen)
        flags = " ".join(f"--{where}.{name}=0" for name in chosen[1:])
        raise BadInputError(f"{given} are set, only one may be; to use {chosen[0]} add {flags}")
    [name] = chosen
    given = f"{where}.{name}={values[name]:g}"
    examples_a_unit = _examples_a_unit(name, given, batch_size, num_examples)
    steps = max(1, math.floor(values[name] * examples_a_unit / batch_size + 0.5))
    if total_steps is not None and steps > total_steps:
        raise BadInputError(
            f"{given} is {steps} steps, longer than the run of {total_steps}; shorten it, or add "
            f"--{where}.{name}=0 --{where}.{prefix}_steps=N with N up to {total_steps}"
        )
    return steps


def _examples_a_unit(name: str, given: str, batch_size: int, num_examples: int) -> int:
    unit = name.rsplit("_", 1)[1]
    count = {"steps": batch_size, "examples": 1, "epochs": num_examples}[unit]
    if batch_size < 1 or count < 1:
        raise BadInputError(
            f"{given} needs a batch and a data set; they have {batch_size} and {num_examples} "
            f"examples: set the batch size to at least 1, or check the data set"
        )
    return count


def _number(value: Any, name: str) -> float:
    """`value` as a number >= 0, unset as 0; whole unless it counts epochs."""
    if value is None:
        return 0
    whole = not name.endswith("_epochs")
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (whole and value != int(value)):
        kind = "a whole number" if whole else "a finite number"
        raise BadInputError(f"{name}={value!r} is no length; give {kind}, 0 (unset) or more")
    return value
