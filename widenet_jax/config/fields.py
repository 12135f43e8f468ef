"""The fields of a config with their values, meanings and limits, from the rows of configs/.

A row is (default, meaning), perhaps followed by the least value, by the least and the most, or by
a tuple of all values.
"""

import ast
import functools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from widenet_jax.config.imports import configs_module
from widenet_jax.errors import BadInputError, check_range, choose
from widenet_jax.specs import PYTHON, TASKS, added, task_spec

TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
EMPTY = "empty section"
PLAIN = "a number, a text, true or false, or a tuple of these"
LOSSES = "model.moe.losses"  # weights of losses, also of those that imported files have added
# Types that a value may have beside its default's, by that type or by the field.
ALSO = {float: (int,), tuple: (list,), "model.ffn_blocks": (tuple, list)}
LARGEST = 1e300  # of numbers without a limit: finite


class Field(NamedTuple):
    """A field of a config.

    Attributes:
      name: with its sections, "optimizer.learning_rate".
      value: None for an empty section.
      type: in words.
      comment: its meaning; "" for a field that a user's config file has added.
    """

    name: str
    value: Any
    type: str
    comment: str

    @property
    def text(self) -> str:
        """The value as a flag would give it, text in quotation marks; "" for None."""
        if self.value is None:
            return ""
        return json.dumps(self.value) if isinstance(self.value, bool | str) else str(self.value)


def described(config: ConfigDict) -> list[Field]:
    """Returns every field of a config, in its order."""
    rows = rows_of(task_of(config))
    return [
        field_of(name, (value, rows.get(name, (None, ""))[1]))
        for name, value in fields_of(config)
        if not isinstance(value, ConfigDict)
    ]


def field_of(name: str, row: tuple) -> Field:
    """Returns the field of a row."""
    value, meaning = row[:2]
    kind = EMPTY if value is None else TYPES.get(type(value), type(value).__name__)
    return Field(name, value, kind, meaning)


def task_of(config: Mapping) -> str:
    """Returns `config.task.name`; "" where a config has none."""
    return config.get("task", {}).get("name", "")


def rows_of(task: str) -> dict[str, tuple]:
    """Returns the rows of all fields by their full names; an unknown task adds none."""
    defaults = configs_module("defaults")
    of_task = task_spec(task).sections if task in TASKS else {}
    return named(defaults.RUN) | named(defaults.MODELS) | named(of_task)


def named(sections: Mapping[str, Mapping[str, tuple]]) -> dict[str, tuple]:
    """Returns the rows of some sections by their full names, such as "model.moe.mlp_dim"."""
    return {
        f"{section}.{name}".lstrip("."): row
        for section, rows in sections.items()
        for name, row in rows.items()
    }


def field_names() -> set[str]:
    """Returns the names of all fields, whatever the task and the model."""
    return set().union(*map(rows_of, TASKS))


def limits(row: tuple) -> tuple[float, float]:
    """Returns the least and the largest value of a number's row."""
    usual = (1, 2**31 - 1) if type(row[0]) is int else (0, LARGEST)
    return (*row[2:], *usual[len(row[2:]) :])


def fields_of(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every section and field with its full name: ("model", ...), ("model.mlp_dim", 64)."""
    for key, value in config.items():
        if not isinstance(key, str):
            raise BadInputError(f"config.{prefix}{key!r}: the name of a field is a text")
        yield prefix + key, value
        if isinstance(value, ConfigDict):
            yield from fields_of(value, f"{prefix}{key}.")


def override(config: ConfigDict, flags: Sequence[str]) -> ConfigDict:
    """Sets every `--config.FIELD=VALUE` of `flags` in `config`, checks its numbers and returns it.

    Fields can no longer be added to the config afterwards.

    Raises:
      BadInputError: no such field, or a value of the wrong type or out of range.
    """
    task = task_of(config)
    whole_to_numbers(config)
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not (equals and name.startswith("--config.")):
            raise BadInputError(f"{flag!r} is no flag; fields are set as --config.FIELD=VALUE")
        set_field(config, name.removeprefix("--config."), text)
    check_task(config, task)
    check_numbers(config)
    return config.lock()


def whole_to_numbers(config: ConfigDict) -> None:
    """Makes floats of the whole numbers that a config file may write for numbers."""
    rows = rows_of(task_of(config))
    for name, value in [*fields_of(config)]:
        if type(value) is int and type(rows.get(name, (value,))[0]) is float:
            *sections, last = name.split(".")
            section = functools.reduce(operator.getitem, sections, config)
            with section.ignore_type():
                section[last] = float(value)


def without_effect(config: ConfigDict, flags: Sequence[str]) -> list[str]:
    """Returns a line for each field that flags set and that other fields make idle.

    Also where a flag freezes all matrices that Muon would move.
    """
    rows, fields = configs_module("defaults").WITHOUT_EFFECT, dict(fields_of(config))
    named = {flag.removeprefix("--config.").partition("=")[0] for flag in flags}
    lines = [
        f"--config.{name} has no effect beside "
        + " and ".join(f"config.{other}={fields[other]}" for other in others)
        for name, others in rows
        if name in named and all(fields.get(other) in of for other, of in others.items())
    ]
    optimizer = config.optimizer if named & {"optimizer.freeze", "optimizer.name"} else {}
    if optimizer.get("name") == "muon" and optimizer.freeze != "none":
        lines.append(
            f"config.optimizer.name=muon trains no matrix beside freeze={optimizer.freeze}: AdamW "
            f"trains the rest, at adam_rate={optimizer.adam_rate} of the learning rate"
        )
    return lines


def check_task(config: ConfigDict, before: str) -> None:
    """Checks that flags left a config that its task can read.

    Args:
      config: with the flags' values.
      before: the task that the config file chose.

    Raises:
      BadInputError: flags name a task whose fields the config lacks, or a source of another task.
    """
    task, fields = task_of(config), dict(fields_of(config))
    if task not in TASKS:
        return
    spec = task_spec(task)
    lacking = [name for name in named(spec.sections) if name not in fields]
    if task != before and lacking:
        raise BadInputError(
            f"--config.task.name={task}: this config is of the task {before} and has no "
            f"config.{lacking[0]}, which {task} reads; choose a config file of that task"
        )
    if spec.sources and fields.get("data.source", PYTHON) != PYTHON:
        choose(spec.sources, config.data.source, field="config.data.source")


def check_numbers(config: ConfigDict) -> None:
    """Raises BadInputError at a number that is NaN, infinite, too small or too large.

    Fields that a user's config file has added have no limits.
    """
    rows = rows_of(task_of(config))
    for name, value in fields_of(config):
        if type(value) in (int, float):
            least, most = limits(rows[name]) if name in rows else (-LARGEST, LARGEST)
            check_range(f"--config.{name}", value, least, most)


def set_field(config: ConfigDict, field: str, text: str) -> None:
    """Sets one field ("model.mlp_dim") to the value of `text`, in the field's type.

    Raises:
      BadInputError: no such field, one that is empty in this config, or a value of another type.
    """
    fields = dict(fields_of(config))
    for name, value in fields.items():
        if value is None and f"{field}.".startswith(f"{name}."):
            raise BadInputError(
                f"--config.{field}: config.{name} is empty in this config; set it in the config "
                "file, or choose a variant that has it"
            )
    if field not in fields and not (LOSSES in fields and is_loss(field)):
        raise BadInputError(f"--config.{field}: {no_such_field(field, fields)}")
    value = parse_value(field, text, fields.get(field, 0.0))
    *sections, name = field.split(".")
    for section in sections:
        config = config[section]
    with config.unlocked():
        config[name] = value


def is_loss(field: str) -> bool:
    """Whether a field is the weight of a loss of experts, perhaps of an imported file's."""
    section, _, name = field.rpartition(".")
    of_files = added("widenet_jax.nn.moe.losses", "LOSSES")
    return section == LOSSES and (field in field_names() or name in of_files)


def no_such_field(field: str, fields: Mapping[str, Any]) -> str:
    """Returns what to tell a user who asked for a field that is not among `fields`.

    The fields of the section that the user named, or else of the suggested field's, are listed.
    """
    from widenet_jax.config.names import nearest_name  # only a mistake needs it

    sections = {name: value for name, value in fields.items() if isinstance(value, ConfigDict)}
    near = nearest_name(field, fields.keys() - sections.keys()) or ""
    section = field.rpartition(".")[0]
    if section not in sections:
        section = near.partition("=")[0].rpartition(".")[0]
    there = [*sections[section]] if section else [name for name in fields if "." not in name]
    if section == LOSSES:
        there += added("widenet_jax.nn.moe.losses", "LOSSES", known=there)
    return (
        f"the config has no such field; {near and f'did you mean --config.{near}? '}"
        f"{f'config.{section}'.removesuffix('.')} has {', '.join(there)}"
    )


def parse_value(field: str, text: str, current: Any) -> Any:
    """Converts the text of a flag to the type that the field has now.

    Raises:
      BadInputError: `text` is of another type, or the field is a section.
    """
    if isinstance(current, ConfigDict):
        raise BadInputError(
            f"--config.{field}={text}: this is a section; set one of its fields, as in "
            f"--config.{field}.{next(iter(current))}=..."
        )
    kind = type(current)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float, str):
            return kind(text)
        value = ast.literal_eval(text)
        if isinstance(value, kind):
            return value
    except (KeyError, ValueError, SyntaxError):
        pass
    raise BadInputError(f"--config.{field}={text}: {needed(current)}") from None


def needed(example: Any) -> str:
    """Returns what to tell of a value that is not of the type of an example."""
    kind = type(example)
    wanted = TYPES[bool] if kind is bool else f"a {TYPES.get(kind, kind.__name__)}"
    return f"this field needs {wanted}, such as {example}"


def wrong_types(config: ConfigDict) -> Iterator[str]:
    """Yields a line for each value of another type than its field's row has.

    A whole number may stand for a number, and a list for a tuple.
    """
    fields = dict(fields_of(config))
    rows = rows_of(str(fields.get("task.name")))
    sections = {name.rpartition(".")[0] for name in rows}
    for name, value in fields.items():
        default = rows.get(name, (value,))[0]
        kinds = type(default), *ALSO.get(name, ALSO.get(type(default), ()))
        if name in sections:
            if not isinstance(value, ConfigDict) and not (value is None and name in rows):
                yield f"config.{name}={value!r} must be a section of fields"
        elif not isinstance(value, kinds) or isinstance(value, bool) != (bool in kinds):
            yield f"config.{name}={value!r}: {needed(default if default != '' else repr(default))}"
        elif not is_plain(value):
            yield f"config.{name}={value!r}: a {type(value).__name__}; give {PLAIN}"


def is_plain(value: Any) -> bool:
    """Returns whether a field that a user's config has added may have the value (no dict in it)."""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, ConfigDict))
