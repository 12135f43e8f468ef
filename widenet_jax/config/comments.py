"""The fields of a config with their values, types and meanings, for people.

A field's meaning is written once: as the comment at its line in configs/defaults.py or, of
`config.model`, in *sizes.py. It stands at the end of the line of the field's name or, where
it does not fit, in the line above. `--print_config` and docs/CONFIG.md read it from there.
"""

import ast
import io
import json
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from widenet_jax.config.files import CONFIGS, fields_of

# Where the comments of sections stand: file, function or constant, section. The first one counts.
PLACES = (
    (CONFIGS / "defaults.py", "get_config", ""),
    (CONFIGS / "sizes.py", "vision_model", "model."),
    (CONFIGS / "text_sizes.py", "text_model", "model."),
    (CONFIGS / "language_sizes.py", "language_model", "model."),
    (CONFIGS / "sizes.py", "attention_section", "model.attention."),
    (CONFIGS / "sizes.py", "experts_section", "model.moe."),
    (CONFIGS / "language_sizes.py", "moe_section", "model.moe."),
    (CONFIGS / "sizes.py", "NOISE", "model.moe.router."),
    (CONFIGS / "sizes.py", "EXPERT_DROPOUT", "model.moe.router."),
    (CONFIGS / "sizes.py", "router_section", "model.moe.router."),
    (CONFIGS / "sizes.py", "losses_section", "model.moe.losses."),
    (CONFIGS / "feed_forward_sizes.py", "top_k_section", "model.top_k_mlp."),
    (CONFIGS / "feed_forward_sizes.py", "product_key_section", "model.product_key."),
)
TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
EMPTY = "empty section"


class Field(NamedTuple):
    """A field of a config.

    Attributes:
      name: with its sections, "optimizer.learning_rate".
      value: what it holds; None for a section that is empty.
      type: in words.
      comment: what it means; "" for a field that a config file of one's own has added.
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
    known = comments(config.get("task", {}).get("name", ""))
    return [
        Field(name, value, type_of(value), comment_of(name, known))
        for name, value in fields_of(config)
        if not isinstance(value, ConfigDict)
    ]


def type_of(value: Any) -> str:
    """Returns the type of a value in words."""
    return EMPTY if value is None else TYPES.get(type(value), type(value).__name__)


def comment_of(name: str, known: dict[str, str]) -> str:
    """Returns the comment of a field: its own, or that of its name in a section above."""
    *sections, last = name.split(".")
    places = [".".join([*sections[:count], last]) for count in range(len(sections), -1, -1)]
    return next((known[place] for place in places if place in known), "")


@cache
def comments(task: str) -> dict[str, str]:
    """Returns the comments of all fields of a task, by name.

    Args:
      task: `config.task.name`; a function of configs/defaults.py returns its sections. Those of a
        name that is not there are left out.
    """
    found: dict[str, str] = {}
    for path, place, section in PLACES:
        for name, comment in _read(path)[place].items():
            found.setdefault(section + name, comment)
    return found | _read(CONFIGS / "defaults.py").get(task, {})


def field_names() -> set[str]:
    """Returns the names of all fields that have a comment, whatever the task and the model."""
    of_tasks = _read(CONFIGS / "defaults.py").values()
    return set().union(comments(""), *of_tasks)


@cache
def _read(path: Path) -> dict[str, dict[str, str]]:
    """Returns the comments of a file by the function or constant they are in, and by name."""
    code = path.read_text()
    told: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("# ")
            if token.line.lstrip().startswith("#"):
                told[line + 1] = text
            else:
                told[line] = text
    found = {}
    for node in ast.parse(code).body:
        match node:
            case ast.FunctionDef(name=place) | ast.Assign(targets=[ast.Name(id=place)]):
                lines = [(name, told[line]) for name, line in _names(node, "") if line in told]
                found[place] = dict(reversed(lines))  # the first comment of a name counts
    return found


def _names(node: ast.AST, section: str) -> Iterator[tuple[str, int]]:
    """Yields the names of fields in some code, with their lines.

    They are keys of dicts, `config.NAME = ...`, `config.SECTION.update(NAME=...)` and
    `section["NAME"] = ...`.
    """
    match node:
        case ast.Dict():
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield f"{section}{key.value}", key.lineno
                    yield from _names(value, f"{section}{key.value}.")
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="config"), attr=name)]):
            yield name, node.lineno
            yield from _names(node.value, f"{name}.")
        case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))]):
            yield name, node.lineno
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=name), attr="update")):
            yield from ((f"{name}.{keyword.arg}", keyword.lineno) for keyword in node.keywords)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _names(child, section)
