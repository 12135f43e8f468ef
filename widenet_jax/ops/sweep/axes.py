"""Settings that a sweep tries, as lists of {field: value}.

A config's `get_sweep(sweep)` receives this module:

  def get_sweep(sweep):
      return sweep.product([
          sweep.sweep("seed", range(3)),
          sweep.zipit([
              sweep.sweep("model.mlp_dim", [64, 128]),
              sweep.sweep("optimizer.learning_rate", [3e-3, 1e-3]),
          ]),
      ])

Fields are named as on the command line, with or without "config." before them. The field `variant`
is the config's argument, the text after the colon in `--config=configs/digits.py:vit_tiny`.
"""

import itertools
from collections.abc import Iterable
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
      BadInputError: the axes differ in length.
    """
    axes = [list(axis) for axis in axes]
    if len({len(axis) for axis in axes}) > 1:
        names = ", ".join(f"{'+'.join(axis[0])} has {len(axis)}" for axis in axes if axis)
        raise BadInputError(f"axes zipped together must be of one length: {names}")
    return [merge(parts) for parts in zip(*axes, strict=True)]


def field_name(name: str) -> str:
    """Drops "config." from a field's name."""
    return name.removeprefix("config.")


def merge(parts: Iterable[Settings]) -> Settings:
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


def split_axis(text: str, flag: str, form: str) -> tuple[str, str]:
    """Splits "FIELD=VALUES" of a flag at the equals sign; `form` is what a mistake should be."""
    name, equals, values = text.partition("=")
    if not (field_name(name) and equals and values):
        raise BadInputError(f"{flag} {text!r}: write {form}")
    return field_name(name), values


def parse_axis(text: str, flag: str) -> list[Settings]:
    """Parses --sweep and --zip: "seed=0,1" -> [{"seed": "0"}, {"seed": "1"}].

    Values stay text; the config decides about their types.
    """
    name, values = split_axis(text, flag, "it as FIELD=VALUE,VALUE as in seed=0,1,2")
    if name == "variant" and "" in parse_values(values):
        raise BadInputError(f"{flag} {text!r}: a variant is empty; part those with commas by ';'")
    return sweep(name, parse_values(values))


def parse_values(text: str) -> list[str]:
    """Splits "1,2", or "a,b;c" where values contain commas; "a,b;" is one."""
    return [value.strip() for value in text.removesuffix(";").split(";" if ";" in text else ",")]
