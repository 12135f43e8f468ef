"""What `prepare_data.py check` finds: examples that are read as in a run, and are not kept."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import tqdm

from widenet_jax.data.blocks import in_threads, tried
from widenet_jax.errors import BadInputError

Check = Callable[[], object]  # raises BadInputError for a bad line, record or file


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


def run_checks(checks: Mapping[str, Iterable[Check]], unit: str) -> Checked:
    """Runs the checks of each split or place in threads, under a progress bar."""
    count, problems = 0, {}
    for place, some in checks.items():
        lines: dict[str, None] = {}  # all records of a damaged shard have the same line
        bar = tqdm.tqdm(some, desc="check", unit=unit)
        try:
            for _, problem in in_threads(partial(tried, kind=BadInputError), bar):
                count += 1
                lines[problem] = None
        except BadInputError as error:  # the split cannot be opened, or not be read on
            lines[str(error)] = None
        problems[place] = [*filter(None, lines)]
    return Checked(f"{count:,} {unit}", problems)
