"""Allowed imports between units, checked on syntax trees. See docs/ARCHITECTURE.md for reasons."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "widenet_jax"
# Every unit may import the leaves; leaves import other leaves only.
LEAVES = {"cores", "errors", "files", "param_names", "paper", "typing"}

# unit -> other units that it may import. A unit is a module or a folder at the package's root.
MAY_IMPORT = {
    **dict.fromkeys(LEAVES, LEAVES),
    "sharding": set(),
    "config": set(),
    "data": set(),
    "layers": {"sharding"},
    "moe": {"layers", "sharding"},
    "models": {"layers", "moe"},
    "optim": {"config"},
    "tasks": {"data", "sharding"},  # of data: the contract
    "step": {"tasks"},  # the contract
    "checkpoint": {"optim", "step", "tasks"},  # of optim: the average of the parameters
    "weights": {
        "checkpoint",
        "config",
        "data",
        "experiment",
        "models",
        "run",
        "sharding",
        "tasks",
    },
    "experiment": {"config", "data", "models", "optim", "sharding", "step", "tasks"},
    "evaluation": {"data", "experiment", "run", "sharding", "tasks"},
    "run": {
        "checkpoint",
        "config",
        "data",
        "evaluation",
        "experiment",
        "models",
        "moe",
        "optim",
        "sharding",
        "step",
        "tasks",
        "tools",
    },
    "tools": {
        "checkpoint",
        "config",
        "data",
        "evaluation",
        "experiment",
        "models",
        "moe",
        "run",
        "sharding",
        "step",
        "tasks",
        "weights",
    },
    "cli": {"config", "data", "experiment", "moe", "tools", "weights"},
    "api": {"models", "tools", "weights"},
    "main": {"cli", "config", "run", "tools", "train", "weights"},
}
# unit -> the only modules of another unit that it may import.
ONLY = {
    ("tasks", "data"): {"widenet_jax.data.contract"},
    ("step", "tasks"): {"widenet_jax.tasks.contract"},
    ("checkpoint", "tasks"): {"widenet_jax.tasks.contract"},
    ("checkpoint", "optim"): {"widenet_jax.optim.average"},
    ("run", "tasks"): {"widenet_jax.tasks.contract"},
    ("run", "tools"): {"widenet_jax.tools.analysis.figures"},  # the learning curve
    ("weights", "data"): {"widenet_jax.data.contract", "widenet_jax.data.text.tokenizer"},
    ("weights", "run"): {"widenet_jax.run.metrics"},  # the records of a run
    ("weights", "tasks"): {"widenet_jax.tasks", "widenet_jax.tasks.contract"},
    ("main", "weights"): {"widenet_jax.weights.stored"},
    ("main", "tools"): {"widenet_jax.tools.markdown"},
}


def imports(path: Path) -> set[str]:
    """Returns the modules of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("widenet_jax"):
            within = node.module.startswith("widenet_jax.")
            names = [node.module] if within else [f"widenet_jax.{a.name}" for a in node.names]
            found.update(names)
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("widenet_jax.")}
    return found


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem[0] != "_"
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path):
    unit = unit_of(path)
    for module in imports(path):
        other = module.split(".")[1]
        if other == unit or (other in LEAVES and unit != other):
            continue
        if unit == "train":  # the only module that may import from all units
            assert other != "main"
            continue
        assert other in MAY_IMPORT[unit], module
        assert module in ONLY.get((unit, other), {module}), module


def test_leaves_import_leaves_only():
    for leaf in LEAVES:
        assert {m.split(".")[1] for m in imports(PACKAGE / f"{leaf}.py")} <= LEAVES


def test_the_root_stays_small():
    entries = [path for path in PACKAGE.iterdir() if path.name[0] != "_"]
    assert sum(path.suffix == ".py" for path in entries) <= 13
    assert sum(path.is_dir() for path in entries) <= 13


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda p: p.stem)
def test_configs_import_only_plain_data(path: Path):
    modules = {
        node.module for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    }  # fmt: skip
    sizes = {f"widenet_jax.models.{name}" for name in ("sizes", "text_sizes", "language_sizes")}
    plain = sizes | {"widenet_jax.paper"}
    assert modules <= plain | {"ml_collections", "configs", "configs.defaults"}


def test_training_needs_neither_tensorflow_nor_nnx():
    """In a fresh interpreter, nothing that `train` imports loads them."""
    code = (
        "import sys; import widenet_jax.train; "
        "print([m for m in ('tensorflow', 'flax.nnx', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_command_line_is_read_before_jax_is_imported():
    code = "import sys; import widenet_jax.main; print('jax' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
