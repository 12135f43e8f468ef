"""What may import what, read from the syntax trees. docs/ARCHITECTURE.md says why."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "widenet_jax"
LEAVES = {"typing", "errors"}  # what everything may import

# unit -> what else of the package it may import. A unit is a module or a folder at the root.
MAY_IMPORT = {
    "errors": set(),
    "typing": set(),
    "param_names": set(),
    "sharding": set(),
    "config": set(),
    "layers": {"sharding"},
    "moe": {"layers", "sharding"},
    "models": {"layers", "moe"},
    "data": set(),
    "optim": {"config", "param_names"},
    "tasks": {"sharding"},
    "step": set(),
    "checkpoint": {"param_names", "step"},
    "run": {"checkpoint", "data", "experiment", "param_names", "sharding"},
    "weights": {"checkpoint", "config", "models", "param_names", "sharding"},
    "experiment": {"config", "models", "moe", "optim", "sharding", "step", "tasks"},
    "evaluation": {"data", "experiment", "moe", "run", "sharding"},
    "loop": {
        *("checkpoint", "data", "evaluation", "experiment", "moe", "run", "sharding", "step"),
    },
    "tools": {
        *("checkpoint", "cli", "config", "data", "evaluation", "experiment", "models", "moe"),
        *("run", "sharding", "step", "tasks", "weights"),
    },
    "cli": {"config", "tools", "weights"},
    "main": {"config", "run", "train"},
}


def imports(path: Path) -> set[str]:
    """Units of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "widenet_jax":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("widenet_jax."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("widenet_jax.")
            }
    return found


def unit_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if p.name != "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path):
    unit = unit_of(path)
    if unit == "train":  # the one module that imports across
        assert "main" not in imports(path)
        return
    assert imports(path) - {unit} <= MAY_IMPORT[unit] | LEAVES


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda p: p.stem)
def test_configs_import_only_sizes(path: Path):
    modules = {
        node.module for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    }  # fmt: skip
    assert modules <= {"ml_collections", "widenet_jax.models.sizes"}


def test_training_needs_neither_tensorflow_nor_nnx():
    """In a fresh interpreter: nothing that `train` imports loads them."""
    code = (
        "import sys; import widenet_jax.train; "
        "print([m for m in ('tensorflow', 'flax.nnx', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_command_line_is_understood_before_jax_is_imported():
    code = "import sys; import widenet_jax.main; print('jax' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
