"""Parsing of durations: a number and a unit, such as "300 epochs" or "500 steps"."""

import math
import re

from widenet_jax.errors import BadInputError


def to_steps(
    text: str,
    *,
    field: str,
    batch_size: int,
    num_examples: int,
    total_steps: int | None = None,
    may_be_zero: bool = False,
) -> int:
    """Converts a duration ("2.5 epochs", "93_835 steps" or "1e6 examples") to steps.

    Steps are epochs * num_examples / batch_size or examples / batch_size, rounded to the nearest
    (half up), and at least 1 unless the number is 0. An epoch may end inside a batch.

    Args:
      text: the number and its unit, singular or plural.
      field: the duration's name in the config, for messages.
      batch_size: examples per step, over all hosts.
      num_examples: examples per epoch.
      total_steps: length of the run, if the duration must not be longer.
      may_be_zero: whether 0 (never, none) is allowed.

    Raises:
      BadInputError: `text` is not a duration, is 0, or is longer than `total_steps`.
    """
    number, unit = parse(text, field)
    if number == 0 and not may_be_zero:
        raise BadInputError(f"{field}={text!r} must be longer than 0")
    examples_a_unit = {"steps": batch_size, "examples": 1, "epochs": num_examples}[unit]
    steps = math.floor(number * examples_a_unit / batch_size + 0.5)
    steps = max(1, steps) if number else 0
    if total_steps is not None and steps > total_steps:
        raise BadInputError(
            f"{field}={text!r} is {steps} steps, longer than the run of {total_steps}; shorten it, "
            f"for instance --{field}='{total_steps // 10} steps'"
        )
    return steps


def parse(text: str, field: str) -> tuple[float, str]:
    """Splits "300 epochs" into (300.0, "epochs").

    Raises:
      BadInputError: `text` is not a number of at least 0 followed by a unit.
    """
    match = re.fullmatch(r"\s*([\d.eE+_-]+?)\s*(step|example|epoch)s?\s*", str(text))
    if match:
        try:
            number = float(match[1])
        except ValueError:
            number = math.nan
        if math.isfinite(number) and number >= 0:
            return number, f"{match[2]}s"
    raise BadInputError(
        f"{field}={text!r} is not a duration; write a number and steps, examples or epochs, "
        f"as in --{field}='10 epochs'"
    )
