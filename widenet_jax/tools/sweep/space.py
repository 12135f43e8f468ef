"""The space that a search draws settings from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from widenet_jax.errors import BadInputError
from widenet_jax.tools.sweep import axes

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
        name = axes.field_name(name)
        if not (name and equals and values):
            raise BadInputError(f"--space {text!r}: write FIELD=log:LOW:HIGH or FIELD=VALUE,VALUE")
        if name in space:
            raise BadInputError(f"--space {text!r}: {name} already has a space; keep one of them")
        kind = values.partition(":")[0]
        named = tuple(axes.parse_values(values))
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


def ends_of(space: Space) -> list[axes.Settings]:
    """Lists settings that together cover every named value and both ends of every range."""
    lists = {
        name: list(one) if isinstance(one, tuple) else [one.low, one.high]
        for name, one in space.items()
    }
    most = max(map(len, lists.values()))
    return [{name: v[min(i, len(v) - 1)] for name, v in lists.items()} for i in range(most)]
