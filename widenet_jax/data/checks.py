"""What checks of data find."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from widenet_jax.errors import BadInputError

Check = Callable[[], object]  # raises BadInputError for a bad line or record


class Checked(NamedTuple):
    """What a check found.

    Attributes:
      what: what was read: "3 files, 1,200 lines, rows and records".
      problems: lines that each name a mistake and its place, by file or split.
      notes: lines on files that were not read, or are not for training.
      advice: what to do about the mistakes.
    """

    what: str
    problems: Mapping[str, list[str]]
    notes: Sequence[str] = ()
    advice: str = "repair what is named"


def problem_of(check: Check) -> str | None:
    """Returns the line of a mistake; None where there is none."""
    try:
        check()
    except BadInputError as error:
        return str(error)
    return None
