"""Parsing of durations: a number and a unit, such as "300 epochs", "500 steps" or "5%"."""

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from widenet_jax.errors import refuse, refuse_value

MOST = 10**12  # steps


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
    (half up), and at least 1 unless the number is 0. An epoch may end inside a batch. A part of a
    run may also be given as a share of it: "5%" follows the length of the run.

    Args:
      text: the number and its unit, singular or plural.
      field: the duration's name in the config, for messages.
      batch_size: examples per step, over all hosts.
      num_examples: examples per epoch.
      total_steps: length of the run, if the duration is a part of it.
      may_be_zero: whether 0 (never, none) is allowed.

    Raises:
      BadInputError: `text` is not a duration, is 0, is longer than `total_steps` or `MOST`, or is a
        share where there are no `total_steps`.
    """
    exact = exact_steps(text, field, batch_size, num_examples, total_steps)
    steps = max(1, math.floor(exact + Fraction(1, 2))) if exact else 0
    longer = f"is {steps} steps, longer than the run of {total_steps}; shorten it, for instance "
    refuse_value(
        f"{field}={text!r}",
        (exact == 0 and not may_be_zero, "must be longer than 0"),
        (steps > MOST, f"is longer than {MOST:,} steps; give a shorter one"),
        (total_steps is not None and steps > total_steps, f"{longer}--{field}=10%"),
    )
    return steps


@dataclass(frozen=True)
class Interval:
    """Steps between events such as evaluations; perhaps no whole number of them.

    The k-th event follows the step nearest to k intervals (half up). So events that are "1 epoch"
    of 44.9 steps apart follow the steps 45, 90, 135, ..., 404 and 449, the last of "10 epochs". If
    the interval itself were rounded, they would follow 405 and 450, beyond the end of the run.

    Attributes:
      steps: at least 1.
    """

    steps: Fraction

    def count(self, step: int) -> int:
        """Returns the number of events up to a step, the one that follows it included."""
        # The k-th has happened if floor(k * steps + 1/2) <= step, or k * steps + 1/2 < step + 1.
        return math.ceil((step + Fraction(1, 2)) / self.steps) - 1

    def ends_at(self, step: int) -> bool:
        """Returns whether an event follows a step."""
        return self.count(step) > self.count(step - 1)


def to_interval(text: str, *, field: str, batch_size: int, num_examples: int) -> Interval:
    """Converts a duration to an interval. Arguments and errors as in `to_steps`."""
    sizes = {"batch_size": batch_size, "num_examples": num_examples}
    to_steps(text, field=field, **sizes)  # raises where `text` is no duration of a step or more
    return Interval(max(exact_steps(text, field, **sizes), Fraction(1)))


def exact_steps(
    text: str, field: str, batch_size: int, num_examples: int, total_steps: int | None = None
) -> Fraction:
    """Returns a duration in steps, without rounding. Arguments and errors as in `to_steps`."""
    number, unit = parse(text, field)
    if unit != "%":
        examples = {"steps": batch_size, "examples": 1, "epochs": num_examples}[unit]
        return number * examples / batch_size
    alone = "only config.optimizer.warmup may be a share of the run; write steps, examples or "
    refuse(
        f"{field}={text!r}", (total_steps is None, f"{alone}epochs, as in --{field}='10 epochs'")
    )
    return number * total_steps / 100


def parse(text: str, field: str) -> tuple[Fraction, str]:
    """Splits "300 epochs" into (300, "epochs"), and "0.5%" into (1/2, "%"), without rounding.

    Raises:
      BadInputError: `text` is not a number of at least 0 followed by a unit.
    """
    match = re.fullmatch(r"\s*([\d.eE+_-]+?)\s*(?:(step|example|epoch)s?|%)\s*", str(text))
    number = math.nan
    with suppress(ValueError):
        number = float(match[1]) if match else number
    told = "is not a duration; write a number and steps, examples or epochs, as in "
    is_number = math.isfinite(number) and number >= 0
    refuse_value(f"{field}={text!r}", (not is_number, f"{told}--{field}='10 epochs'"))
    return Fraction(str(number)), f"{match[2]}s" if match[2] else "%"
