"""The ways a run may end early, each reported to people as one line (see `main`)."""

import difflib
from collections.abc import Mapping
from typing import Any


class BadInputError(ValueError):
    """A user's mistake. The message says what is wrong, where, and how to fix it. Exit code 2."""


class BadExampleError(BadInputError):
    """One image of a set cannot be read or decoded; `data.on_bad_example=skip` goes on without."""


class RunFailedError(RuntimeError):
    """The run itself failed: a non-finite loss, no valid checkpoint. Exit code 3."""


class StoppedError(RuntimeError):
    """Somebody asked the run to stop, and it has saved what it had. Exit code 143."""


def choose(table: Mapping[str, Any], name: str, *, field: str) -> Any:
    """`table[name]`; an unknown name is a BadInputError with the nearest valid one.

    Args:
      table: what may be chosen.
      name: the user's choice.
      field: the config field it came from, for the message.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(str(name), table, n=1, cutoff=0.0)[0]
    raise BadInputError(
        f"{field}={name!r} is unknown; choose one of {', '.join(table)} (--{field}={near}?)"
    )


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raises BadInputError, naming the config field, unless low <= value <= high; NaN never is."""
    if not low <= value <= high:
        raise BadInputError(f"{field}={value} must be between {low:g} and {high:g}")
