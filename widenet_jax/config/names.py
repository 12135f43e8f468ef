"""The field that a user means: of a misspelt name, or of one from another library."""

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from widenet_jax.errors import nearest, refuse, similar

# Our activation for each of Hugging Face's names of the same function.
ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
    "relu": "relu",
}
ELSEWHERE = Path(__file__).with_name("elsewhere.toml")


@cache
def elsewhere() -> dict[str, str]:
    """Returns our field, perhaps with an example of a value, for each name of other libraries."""
    names = tomllib.loads(ELSEWHERE.read_text())
    return {name: ours for ours, theirs in names.items() for name in theirs.split()}


def same_name(asked: str, fields: Collection[str]) -> str | None:
    """Returns the field of this name in another section, or what other libraries call so.

    Args:
      asked: what the user wrote, such as "lr" or "model.batch_size".
      fields: the full names of the fields that there are.

    Returns:
      A field, perhaps with an example of a value, as in 'duration="10 epochs"'; None for none.
    """
    last = last_of(asked)
    fields = sorted(fields)  # of equally similar fields, the same is found in every process
    if here := [field for field in fields if last_of(field) == last]:
        return nearest(asked, here)
    foreign = from_elsewhere(fields)
    return foreign.get(last, foreign.get(asked.replace(".", "_")))


def nearest_name(asked: str, fields: Collection[str]) -> str | None:
    """Returns the field that the user may mean; None where no name is similar.

    In this order: a field that was taken for a section, one of a similar name in the section asked
    for, `same_name`, and one of a similar name in any section. Arguments as in `same_name`.
    """
    section, _, last = asked.rpartition(".")
    if section in fields:
        return section
    inside = {last_of(field): field for field in fields if field.rpartition(".")[0] == section}
    if section and (near := similar(last, inside)):
        return inside[near]
    if found := same_name(asked, fields):
        return found
    known = from_elsewhere(fields)
    for field in sorted(fields, key=lambda field: (-len(field), field)):  # the shortest stays
        known |= {last_of(field): field, field: field}
    near = similar(last_of(asked), known)
    return known[near] if near else None


def from_elsewhere(fields: Collection[str]) -> dict[str, str]:
    """Returns the entries of `elsewhere` whose field is among `fields`."""
    return {name: ours for name, ours in elsewhere().items() if ours.partition("=")[0] in fields}


def last_of(name: str) -> str:
    """Returns a name without its sections, as "learning_rate" of "optimizer.Learning-Rate"."""
    return name.rpartition(".")[2].lower().replace("-", "_")


def activation_of(config: Mapping[str, Any], default: str, *, source: str) -> str:
    """Returns our name of `hidden_act`; raises BadInputError if our models do not have it."""
    name = config.get("hidden_act", default)
    problem = "is not an activation of our models; they have "
    known = isinstance(name, str) and name in ACTIVATIONS
    refuse(source, (not known, f"hidden_act={name!r} {problem}{', '.join(ACTIVATIONS)}"))
    return ACTIVATIONS[name]
