"""Settings that a sweep tries, as lists of {field: value}; the space that a search draws them from.

A config's `get_sweep(sweep)` receives this module:

  def get_sweep(sweep):
      return sweep.product([
          sweep.sweep("seed", range(3)),
          sweep.zipit([
              sweep.sweep("model.depth", [2, 4]),
              sweep.sweep("optimizer.learning_rate", [3e-3, 1e-3]),
          ]),
      ])

Fields are named as on the command line, with or without "config." before them. The field `variant`
is the config's argument, the text after the colon in `--config=configs/digits.py:vit_tiny`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from widenet_jax.errors import BadInputError

Settings = dict[str, Any]


def sweep(name: str, values: Iterable[Any]) -> list[Settings]:
    """Makes one setting for each value."""
    return [{field_name(name): value} for value in values]


def product(axes: Iterable[Iterable[Settings]]) -> list[Settings]:
    """Makes every combination, the last axis fastest; without axes, one empty setting."""
    return [merge(parts) for parts in itertools.product(*axes)]


def zipit(axes: Iterable[Iterable[Settings]]) -> list[Settings]:
    """Combines the first settings of all axes, then the second, and so on.

    Raises:
      BadInputError: the axes differ in length; an axis of length 1 is repeated.
    """
    axes = [list(axis) for axis in axes]
    longest = max(map(len, axes), default=0)
    for axis in axes:
        if len(axis) not in (1, longest):
            names = ", ".join(f"{'+'.join(a[0])} has {len(a)}" for a in axes if a)
            raise BadInputError(f"axes zipped together must be of one length: {names}")
    return [
        merge(parts) for parts in zip(*(a * (longest // len(a)) for a in axes), strict=True)
    ]  # fmt: skip


def chainit(axes: Iterable[Iterable[Settings]]) -> list[Settings]:
    """Lists the settings of the first axis, then those of the second, and so on."""
    return [settings for axis in axes for settings in axis]


def field_name(name: str) -> str:
    """Drops "config." from a field's name."""
    return name.removeprefix("config.")


def merge(parts: Sequence[Settings]) -> Settings:
    """Joins settings of different fields.

    Raises:
      BadInputError: two of them set the same field.
    """
    merged: Settings = {}
    for part in parts:
        for name in part.keys() & merged.keys():
            raise BadInputError(f"{name} is swept twice in one product or zip; keep one of them")
        merged |= part
    return merged


def parse_axis(text: str, flag: str) -> list[Settings]:
    """Parses --sweep and --zip: "seed=0,1" -> [{"seed": "0"}, {"seed": "1"}].

    Semicolons separate values that contain commas: "variant=widenet_b;widenet_b,share_norms=true".
    Values stay text, as the config decides about their types.
    """
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise BadInputError(f"{flag} {text!r}: write it as FIELD=VALUE,VALUE as in seed=0,1,2")
    return sweep(name, parse_values(values))


def parse_values(text: str) -> list[str]:
    """Splits "1,2", or "a,b;c" where values contain commas."""
    return [value.strip() for value in text.split(";" if ";" in text else ",")]


# --- The space that a search draws settings from -------------------------------------------------

KINDS = ("log", "float", "int")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `kind` is one of KINDS."""

    kind: str
    low: float
    high: float


# For each field a Range, or the values to choose from, as text.
Space = Mapping[str, Range | tuple[str, ...]]


def parse_space(texts: Sequence[str]) -> Space:
    """Parses --space: "learning_rate=log:1e-4:1e-2", "model.depth=int:2:6", "model.pool=cls,mean".

    Raises:
      BadInputError: a text of another form, or a field with two spaces.
    """
    space: dict[str, Range | tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = field_name(name)
        if not (name and equals and values):
            raise BadInputError(f"--space {text!r}: write FIELD=log:LOW:HIGH or FIELD=VALUE,VALUE")
        if name in space:
            raise BadInputError(f"--space {text!r}: {name} already has a space; keep one of them")
        kind = values.partition(":")[0]
        named = tuple(parse_values(values))
        space[name] = parse_range(text, *values.split(":")) if kind in KINDS else named
    return space


def parse_range(text: str, kind: str, *ends: str) -> Range:
    """Parses the parts of "log:1e-4:1e-2"; `text` is the flag's value for messages."""
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends)
    except ValueError:
        example = "int:1:8" if kind == "int" else f"{kind}:0.1:1"
        raise BadInputError(f"--space {text!r}: give two numbers, as in {example}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadInputError(f"--space {text!r}: the first number must be below the second")
    if kind == "log" and low <= 0:
        raise BadInputError(f"--space {text!r}: numbers on a logarithmic scale must be above 0")
    return Range(kind, low, high)


def ends_of(space: Space) -> list[Settings]:
    """Lists settings that together cover every named value and both ends of every range."""
    lists = {
        name: list(one) if isinstance(one, tuple) else [one.low, one.high]
        for name, one in space.items()
    }
    most = max(map(len, lists.values()))
    return [{name: v[min(i, len(v) - 1)] for name, v in lists.items()} for i in range(most)]
