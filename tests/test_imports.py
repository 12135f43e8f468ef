"""Imports between units and lengths of functions, checked on syntax trees.

See docs/why/architecture.md for reasons.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "widenet_jax"
# Units from the lowest to the highest; a unit is a module or a folder at the package's root. Each
# imports only units of the lines above its own, but for the slices, which never import each other.
LAYERS = (
    ("typing", "errors"),
    ("object_store",),
    ("files", "param_names", "specs"),
    ("config", "sharding"),
    ("extensions",),
    ("data", "nn"),
    ("task", "optim"),
    ("losses", "step"),
    ("corpus", "checkpoint"),
    ("experiment",),
    ("run",),
    ("evaluation", "trained"),
    ("vision", "text", "language"),  # reached through specs alone
    ("inference",),
    ("ops",),
    ("papers",),
    ("cli", "train"),
    ("main",),
)
SLICES = {"vision", "text", "language"}
RANK = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}


def may_import(unit: str, other: str) -> bool:
    """Returns whether a unit may import another one."""
    if other == "papers":
        return unit == "cli"  # its command
    if other in SLICES:
        return False
    return RANK[other] < RANK[unit]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Returns the modules of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("widenet_jax"):
            within = node.module.startswith("widenet_jax.")
            names = [node.module] if within else [f"widenet_jax.{a.name}" for a in node.names]
            found.update(names)
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("widenet_jax.")}
    return found


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_module_imports_itself_through_others():
    """Imports within functions count, too."""
    names = {name_of(path): path for path in PACKAGE.rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        every = [*ast.walk(tree_of(path))]
        ifs = [n for n in every if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
        for_types = {node for one in ifs for node in one.body}  # which never run
        nodes = {node for node in every if isinstance(node, ast.ImportFrom)} - for_types
        inside = {(node.module, alias.name) for node in nodes for alias in node.names}
        found = {f"{m}.{own}" if f"{m}.{own}" in names else m for m, own in inside}
        graph[name] = found & names.keys()
    before: dict = {}
    while graph != before:  # what imports none of the others, or is imported by none
        before = graph
        imported = set().union(*graph.values())
        graph = {
            k: v & graph.keys() for k, v in graph.items() if v & graph.keys() and k in imported
        }
    assert not graph


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
        if other != unit:
            assert may_import(unit, other), module


def test_a_run_imports_what_it_uses():
    """From its command to its first step; what functions import, other runs or its end need."""
    digits = ("vision.spec", "vision.task", "vision.model", "vision.data.digits")
    digits += ("vision.data.transforms", "nn.attention.full", "nn.moe.layer")
    waiting = {"main", "train", *digits, "nn.moe.routers.softmax"}
    found: set[str] = set()
    while waiting:
        module = waiting.pop()
        path = PACKAGE.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        found |= {
            module,
            *(".".join(module.split(".")[:n]) for n in range(1, module.count(".") + 1)),
        }
        for node in tree_of(path).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("widenet_jax"):
                inside = node.module.partition(".")[2]
                names = [f"{inside}.{one.name}".lstrip(".") for one in node.names]
                files = {str(path.relative_to(PACKAGE).with_suffix("")) for path in FILES}
                own = {name for name in names if name.replace(".", "/") in files}
                waiting |= ({inside} if inside else set()) | own
        waiting -= found
    later = {
        "run": "arguments figures intervals kernel_trial profile replay tables",
        "nn": "attention.rotary loop_modules loop_runs product_key selection",
        "config": "names",
    }
    names = {f"{unit}.{name}" for unit, names in later.items() for name in names.split()}
    assert found.isdisjoint(names)
    assert len(found) <= 84, sorted(found)


def test_the_root_stays_small():
    entries = [path for path in PACKAGE.iterdir() if path.name[0] != "_"]
    assert sum(path.suffix == ".py" for path in entries) <= 16
    assert sum(path.is_dir() for path in entries) <= 14


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda p: p.stem)
def test_configs_import_only_plain_data(path: Path):
    """Other files of configs/, errors, task specs and settings: no JAX."""
    nodes = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.ImportFrom)]
    ours = {node.module for node in nodes if node.module.split(".")[0] == "widenet_jax"}
    assert ours <= {f"widenet_jax.{name}" for name in ("errors", "specs", "nn.stack_settings")}


SETTINGS = ("settings.py", "loop_settings.py", "stack_settings.py", "rules.py")


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if unit_of(p) == "nn" and p.name not in SETTINGS],
    ids=lambda p: p.stem,
)
def test_layers_refuse_nothing(path: Path):
    """Settings and rules do; `extensions` guards users' parts."""
    assert "widenet_jax.errors" not in imports(path)
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(tree_of(path)))


def test_the_run_is_short_and_refuses_nothing():
    """At most 70 lines, its loop 20, without docstrings; mistakes are caught where they enter."""
    tree = tree_of(PACKAGE / "train.py")
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    [run] = [node for node in tree.body if getattr(node, "name", "") == "run"]
    [loop] = [node for node in ast.walk(run) if isinstance(node, ast.For)]
    lines = ast.unparse(run.body[1:]).splitlines()
    assert len(lines) <= 70 and len(ast.unparse(loop.body).splitlines()) <= 20


def test_functions_fit_on_a_screen():
    longer = set()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60:
                longer.add(f"{path.name} {node.name}")
    assert longer == {"train.py run"}  # the whole run, top to bottom
