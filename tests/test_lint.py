"""The linter's result depends neither on its release nor on folders; functions are short."""

import ast
import subprocess
import sys
import tomllib

from small_runs import ROOT

LONGEST = 60  # lines of a function
MAY_BE_LONGER = {"train.py run"}  # the whole run, top to bottom
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_release_of_the_linter():
    pins = PROJECT["project"]["optional-dependencies"]["test"]
    assert [pin for pin in pins if pin.startswith("ruff==")]


def test_folders_at_the_root_do_not_change_the_order_of_imports(tmp_path):
    """A run creates runs/; imports of a module `runs` must still be sorted as before."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    test = tmp_path / "test_it.py"
    test.write_text("import numpy\nimport runs\n\nimport widenet_jax\n\nnumpy, runs, widenet_jax\n")
    for name in ("runs", "data", "build"):
        (tmp_path / name).mkdir()
    ruff = [sys.executable, "-m", "ruff", "check", "--select=I", "--no-cache", str(test)]
    done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_functions_fit_on_a_screen():
    longer = set()
    for path in (ROOT / "widenet_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST:
                longer.add(f"{path.name} {node.name}")
    assert longer == MAY_BE_LONGER
