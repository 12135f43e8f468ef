"""Names of splits: the check that a set has one, and slices such as train[90%:]."""

import re
from collections.abc import Sequence

from widenet_jax.errors import BadInputError

# Shares of a plain file of text, in its order, in percent.
PLAIN_SPLITS = {"train": 90, "valid": 5, "test": 5}


def check_split(split: str, known: Sequence[str], where: str) -> None:
    """Raises BadInputError unless `split` is one of `known`; `where` names the set."""
    if split not in known:
        raise BadInputError(f"{where}: no split {split!r}; there are {', '.join(known) or 'none'}")


_SLICE = re.compile(r"([^\[\]]*)\[(-?\d+%?)?:(-?\d+%?)?\]")


def parse_slice(split: str) -> tuple[str, tuple[str, str] | None]:
    """Splits "train[90%:]" into its name and the bounds: ("train", ("90%", "")); None for no slice.

    The name is "" in "[90%:]", a part of a set that is one file.

    Raises:
      BadInputError: brackets that hold something else.
    """
    if "[" not in split:
        return split, None
    match = _SLICE.fullmatch(split)
    if not match:
        raise BadInputError(
            f"split {split!r}: a slice is written as train[90%:], train[:5000] or train[10%:20%]"
        )
    return match[1], (match[2] or "", match[3] or "")


def slice_of(bounds: tuple[str, str], num_records: int) -> slice:
    """Returns the slice between bounds such as "90%", "-100" and "", as TFDS rounds them."""

    def place(bound: str) -> int | None:
        share = bound.endswith("%")
        return round(num_records * int(bound[:-1]) / 100) if share else int(bound)

    return slice(*(place(bound) if bound else None for bound in bounds))
