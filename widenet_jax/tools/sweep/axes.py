"""Which settings a sweep tries: lists of {field: value}, and how lists are combined.

This module is what a config's `get_sweep(sweep)`, or V-MoE's `get_hyper(hyper)`, is given:

  def get_sweep(sweep):
      return sweep.product([
          sweep.sweep("seed", range(3)),
          sweep.zipit([
              sweep.sweep("model.depth", [2, 4]),
              sweep.sweep("optimizer.learning_rate", [3e-3, 1e-3]),
          ]),
      ])

A field is named as on the command line, with or without "config." before it. The field `variant`
is the config's argument, what stands after the colon in `--config=configs/digits.py:vit_tiny`.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from widenet_jax.errors import BadInputError

Settings = dict[str, Any]


def sweep(name: str, values: Iterable[Any]) -> list[Settings]:
    """One trial a value."""
    return [{field_name(name): value} for value in values]


def fixed(name: str, value: Any, length: int = 1) -> list[Settings]:
    """`length` trials with the same value; of length 1, it goes with any list in `zipit`."""
    return sweep(name, [value] * length)


def product(axes: Iterable[Iterable[Settings]]) -> list[Settings]:
    """Every combination, the last axis fastest; of no axes, one trial with nothing set."""
    return [merge(parts) for parts in itertools.product(*axes)]


def zipit(axes: Iterable[Iterable[Settings]]) -> list[Settings]:
    """The first of each axis together, then the second of each, ...

    Raises:
      BadInputError: axes of different lengths; one of length 1 goes with all.
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
    """The trials of the first axis, then those of the second, ..."""
    return [settings for axis in axes for settings in axis]


def field_name(name: str) -> str:
    return name.removeprefix("config.")


def merge(parts: Sequence[Settings]) -> Settings:
    merged: Settings = {}
    for part in parts:
        for name in part.keys() & merged.keys():
            raise BadInputError(f"{name} is swept twice in one product or zip; keep one of them")
        merged |= part
    return merged


def parse_axis(text: str, flag: str) -> list[Settings]:
    """ "seed=0,1,2" -> [{"seed": "0"}, {"seed": "1"}, {"seed": "2"}].

    Semicolons part values that have commas: "variant=widenet_b;widenet_b,share_norms=true".
    Values stay text: the config says what they are.
    """
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise BadInputError(f"{flag} {text!r}: write it as FIELD=VALUE,VALUE as in seed=0,1,2")
    return sweep(name, parse_values(values))


def parse_values(text: str) -> list[str]:
    return [value.strip() for value in text.split(";" if ";" in text else ",")]
