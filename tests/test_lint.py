"""The linter has one release; functions are short."""

import ast
import tomllib

from small_runs import ROOT

LONGEST = 60  # lines of a function
MAY_BE_LONGER = {"train.py run"}  # the whole run, top to bottom
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_release_of_the_linter():
    pins = PROJECT["project"]["optional-dependencies"]["test"]
    assert [pin for pin in pins if pin.startswith("ruff==")]


def test_functions_fit_on_a_screen():
    longer = set()
    for path in (ROOT / "widenet_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST:
                longer.add(f"{path.name} {node.name}")
    assert longer == MAY_BE_LONGER
