"""Names of splits: the check that a set has one, and slices such as train[90%:]."""

import re
from collections.abc import Sequence

from widenet_jax.errors import BadInputError

# Shares of a plain file of text, in its order, in percent.
PLAIN_SPLITS = {"train": 90, "valid": 5, "test": 5}


class SplitError(BadInputError):
    """A split that a set does not have, or a slice of nothing; `build_source` adds the field."""


def check_split(split: str, known: Sequence[str], where: str) -> None:
    """Raises SplitError unless `split` is one of `known`; `where` names the set."""
    if split not in known:
        raise SplitError(f"{where}: no split {split!r}; there are {', '.join(known) or 'none'}")


def parts_of(split: str) -> list[str]:
    """Returns the parts of a split that "+" joins: ["dev", "train[:5%]"] of "dev+train[:5%]"."""
    return [part.strip() for part in split.split("+")]


def names_in(split: str) -> list[str]:
    """Returns the names that a split joins, without slices: ["dev", "train"] of the same."""
    return [parse_slice(part)[0] for part in parts_of(split)]


def check_part(part: str, size: int, *, where: str) -> None:
    """Raises SplitError where a part of a split selects nothing.

    Args:
      part: one of `parts_of` the split.
      size: how many examples the part has.
      where: names the set, for the message.
    """
    if not size:
        advice = "leave it out, name another, or take a longer slice"
        raise SplitError(f"{where}: split {part!r} has no rows: {advice}")


_SLICE = re.compile(r"([^\[\]]*)\[(-?\d+%?)?:(-?\d+%?)?\]")


def parse_slice(split: str) -> tuple[str, tuple[str, str] | None]:
    """Splits "train[90%:]" into its name and the bounds: ("train", ("90%", "")); None for no slice.

    The name is "" in "[90%:]", a part of a set that is one file.

    Raises:
      SplitError: brackets that hold something else, or more than 100%.
    """
    if "[" not in split:
        return split, None
    match = _SLICE.fullmatch(split)
    if not match:
        raise SplitError(
            f"split {split!r}: a slice is written as train[90%:], train[:5000] or train[10%:20%]"
        )
    bounds = (match[2] or "", match[3] or "")
    if over := [bound for bound in bounds if bound.endswith("%") and abs(int(bound[:-1])) > 100]:
        raise SplitError(f"split {split!r}: {over[0]} is out of range; give -100% to 100%")
    return match[1], bounds


def slice_of(bounds: tuple[str, str], num_records: int) -> slice:
    """Returns the slice between bounds such as "90%", "-100" and "", as TFDS rounds them.

    It may select nothing: 99% of 40 records is all of them, and so "99%:" has none.
    """

    def place(bound: str) -> int:
        if not bound.endswith("%"):
            return int(bound)
        # Counted from the end here: a small share rounds to -0, which would be the first record.
        end = num_records if bound.startswith("-") else 0
        return end + round(num_records * int(bound[:-1]) / 100)

    return slice(*(place(bound) if bound else None for bound in bounds))
