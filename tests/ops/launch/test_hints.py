"""Every flag that a message of the launcher names is one of its flags."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from widenet_jax.cli.launch_tpu import main

PACKAGE = Path(__file__).parents[3] / "widenet_jax"
# Modules whose messages a user of the launcher may read. What plan.py says passes through.
MODULES = [
    PACKAGE / "cli" / "launch_tpu.py",
    *sorted((PACKAGE / "tools" / "launch").glob("*.py")),
    *(PACKAGE / "tools" / "plan" / name for name in ("facts.py", "planner.py", "topology.py")),
    PACKAGE / "tools" / "plan" / "compile.py",
]
SAYS = {"BadInputError", "RunFailedError", "say", "print"}
RENAMED = {"topology": "tpu"}  # `plan_of` does


def messages(path: Path) -> Iterator[str]:
    """Yields the text of every message, without the commands of other programs in backticks."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in SAYS:
            yield re.sub(r"`[^`]*`", "", "".join(constants(node)))


def constants(node: ast.AST) -> Iterator[str]:
    """Yields the strings in a syntax tree; " X " for what an f-string inserts."""
    if isinstance(node, ast.FormattedValue):
        yield " X "
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from constants(child)


def test_every_hint_names_a_flag_that_the_command_has(capsys: pytest.CaptureFixture):
    for words in (["--help"], ["status", "--help"]):
        assert main(words) == 0
    flags = set(re.findall(r"--([a-z_]+)", capsys.readouterr().out))
    named = {
        (path.name, RENAMED.get(flag, flag))
        for path in MODULES
        for text in messages(path)
        for flag in re.findall(r"(?<![\w-])--([a-z][a-z_-]*)\b(?!\.)", text)
    }
    assert len(named) > 10
    assert {(name, flag) for name, flag in named if flag not in flags} == set()
