"""What may import what, read from the syntax trees. docs/ARCHITECTURE.md says why."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "widenet_jax"
LEAVES = {"typing", "errors"}  # what everything may import

# unit -> what else of the package it may import. A unit is a module or a folder.
MAY_IMPORT = {
    "errors": set(),
    "typing": set(),
    "durations": set(),
    "param_paths": set(),
    "losses": set(),
    "sharding": set(),
    "markdown": set(),
    "mixup": {"sharding"},
    "stopping": set(),
    "watchdog": set(),
    "agreement": set(),
    "layers": {"sharding"},
    "moe": {"layers", "sharding"},
    "models": {"layers", "moe"},
    "data": set(),
    "optim": {"durations", "param_paths"},
    "tasks": {"losses", "mixup"},
    "step": set(),
    "metrics": set(),
    "progress": set(),
    "checkpoint": {"param_paths", "step"},
    "finetune": set(),
    "interop": {"checkpoint", "sharding"},
    "trained": {"checkpoint", "config_files", "interop", "models", "param_paths"},
    "run_record": set(),
    "experiment": {"durations", "models", "moe", "optim", "sharding", "step", "tasks"},
    "evaluation": {"data", "experiment", "moe", "sharding", "stopping"},
    "replay": {"checkpoint", "data", "experiment", "param_paths", "sharding"},
    "loop": {
        *("checkpoint", "data", "evaluation", "experiment", "metrics", "moe", "replay"),
        *("progress", "sharding", "step", "stopping", "watchdog"),
    },
    "analysis": {
        *("data", "evaluation", "experiment", "finetune", "losses", "metrics", "models", "moe"),
        *("sharding", "stopping", "tasks", "trained"),
    },
    "plan": {"durations", "experiment", "markdown", "models"},
    "benchmark": {"checkpoint", "data", "experiment", "markdown", "moe", "plan", "step"},
    "config_files": set(),
    "arguments": set(),
    "sweep": {"analysis", "arguments", "config_files", "metrics", "run_record", "stopping"},
    "launch": {"arguments", "config_files", "plan"},
    "reproduce": {
        *("analysis", "arguments", "config_files", "launch", "markdown", "metrics", "models"),
        *("plan", "sweep", "trained"),
    },
    "main": {"config_files", "train", "stopping"},
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
