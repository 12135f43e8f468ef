"""Python files that register parts of their own: tasks, routers, attention, optimizers.

A file is imported by `--import=FILE`, or it is the config file itself. A run remembers it in
`config.imports`, with its hash, so that a command that opens the run imports the file again. The
hash covers the files beside it that it imports from `configs`.
"""

import ast
import hashlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.errors import STOPPED, BadInputError, refuse
from widenet_jax.files import file_sha256

PACKAGE = Path(__file__).parents[1]
# This project's: within an installed package, or beside the package in a checkout.
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").exists() else PACKAGE.parent / "configs"
# Modules without a table that a file could add to, and functions.
PLAIN = (
    "widenet_jax.errors",
    "widenet_jax.config",
    "widenet_jax.papers",
    "widenet_jax.nn.stack_settings",
    "widenet_jax.specs.added",
    "widenet_jax.specs.own_fields",
    "widenet_jax.specs.task_spec",
)
IMPORTED: dict[str, str] = {}  # in this process: absolute path -> SHA-256
CONFIG_FILES: set[str] = set()  # absolute paths of those that this process read and remembers
NAMED: dict[str, str] = {}  # the files that --import named: absolute path -> name


# Of the content: a command may load hundreds of configs.
compiled = cache(partial(compile, mode="exec"))


class Source(SourceFileLoader):
    """Runs a file as it is now.

    Python would run its compiled copy in `__pycache__` after a change that keeps the file's size
    and the second of its last change, as of `sed` in a script.
    """

    def get_code(self, fullname: str) -> CodeType:
        return compiled(self.get_data(self.path), self.path)


def spec_of(name: str, path: str) -> ModuleSpec:
    """Returns the spec of a module that runs a file as it is now."""
    return importlib.util.spec_from_file_location(name, path, loader=Source(name, path))


class Finder(PathFinder):
    """Finds the files of `configs`, and of another program's package of that name.

    Other finders find its folders without `__init__.py`, and its compiled modules.
    """

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec = super().find_spec(name, path, target) if name.startswith("configs.") else None
        is_file = spec and type(spec.loader) is SourceFileLoader
        return spec_of(name, spec.origin) if is_file else None


sys.meta_path.insert(0, Finder)


def import_files(paths: Iterable[str | os.PathLike[str]], *, flag: str = "--import") -> list[str]:
    """Imports files that a user names, and returns their paths.

    Raises:
      BadInputError: a file is missing, or its code fails; or one path stands for a list of them.
    """
    if isinstance(paths, str | os.PathLike):
        path = os.fspath(paths)
        raise BadInputError(f"{flag}={path!r} is one file: give a list, as in [{path!r}]")
    paths = [*map(os.fspath, paths)]
    for path in paths:
        import_once(path, f"{flag}={path}")
        NAMED[str(Path(path).expanduser().resolve())] = Path(path).name
    return paths


def find_configs_beside(path: str | Path) -> dict[str, ModuleType]:
    """Makes `from configs import NAME` find NAME.py beside a file, or else this project's.

    It does so from whichever directory the command was started. Returns the modules of `configs` so
    far, which are forgotten: they may be from another folder.
    """
    before = forget_configs()
    package = ModuleType("configs")
    package.__path__ = [str(Path(path).resolve().parent), str(CONFIGS)]
    sys.modules["configs"] = package
    return before


def forget_configs() -> dict[str, ModuleType]:
    """Removes all modules of `configs` from `sys.modules` and returns them."""
    names = [name for name in sys.modules if name.split(".")[0] == "configs"]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def errors_of_file(path: str | Path, named_by: str, plain: type | tuple = ()) -> Iterator[None]:
    """Raises BadInputError, with `place_of`, in place of every error of a user's file.

    Args:
      path: of the file.
      named_by: begins messages, such as "--import=mine.py".
      plain: errors that stand without their place in the file.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED:
            raise  # of the launcher, which received SIGTERM
        text = error if isinstance(error, plain) else place_of(error, str(path))
        raise BadInputError(f"{named_by}: {text}") from error


def import_once(path: str, named_by: str) -> None:
    """Imports a file; not again where this process has imported it unchanged.

    Args:
      path: of the file.
      named_by: begins messages, such as "--import=mine.py".

    Raises:
      BadInputError: a file is missing, or its code fails.
    """
    file = Path(path).expanduser().resolve()
    is_python = file.suffix == ".py" and file.is_file()
    refuse(named_by, (not is_python, f"there is no Python file {str(file)!r}"))
    digest = digest_of(file)
    if IMPORTED.get(str(file)) == digest:
        return
    spec = spec_of(f"imported_{file.stem}", str(file))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    before = find_configs_beside(file)
    try:
        with errors_of_file(file, named_by):
            spec.loader.exec_module(module)
    finally:
        forget_configs()
        sys.modules.update(before)
    import cloudpickle  # Grain's

    cloudpickle.register_pickle_by_value(module)  # worker processes do not import the file
    IMPORTED[str(file)] = digest


def digest_of(file: Path) -> str:
    """Returns the SHA-256 of a file; of all digests where files beside it belong to it."""
    digests = [file_sha256(one) for one in with_files_beside(file)]
    alone = len(digests) == 1
    return digests[0] if alone else hashlib.sha256("".join(digests).encode()).hexdigest()


def with_files_beside(file: Path) -> dict[Path, frozenset[str]]:
    """Returns the names that a file imports, and the same of each file beside it that it needs.

    These are the files that it imports from `configs`, directly or by each other; but not this
    project's own experiments, whose values are in the config.
    """
    found, waiting = {}, [file]
    while waiting:
        one = waiting.pop()
        try:
            found[one] = imported_names(one.read_text())
        except (SyntaxError, UnicodeDecodeError):
            found[one] = frozenset()  # importing it says so
        if one != file and one.parent == CONFIGS and not adds_parts(found[one]):
            del found[one]
            continue
        parts = (name.split(".") for name in found[one] if name.startswith("configs."))
        beside = {file.with_name(f"{name}.py") for _, name, *_ in parts}
        waiting += [other for other in sorted(beside - found.keys()) if other.is_file()]
    return dict(sorted(found.items()))


def remember(config: ConfigDict, paths: Sequence[str]) -> None:
    """Adds files to `config.imports`, each as "sha256:HASH PATH"."""
    files = [Path(path).expanduser().resolve() for path in paths]
    records = [f"sha256:{digest_of(file)} {file}" for file in files]
    if records:
        with config.unlocked():
            config.imports = (*config.get("imports", ()), *records)


def import_remembered(config: Mapping[str, Any], place: str) -> None:
    """Imports the files that a stored config remembers, if they are as they were.

    A file that has moved or changed is taken where `--import` names it: a run from elsewhere cannot
    make a command execute any file but one that its user names, or a copy of one.

    Args:
      config: a stored config.
      place: the run, for messages.

    Raises:
      BadInputError: a file is missing or has changed, or its code fails.
    """
    for record in config.get("imports", ()):
        digest, _, path = record.removeprefix("sha256:").partition(" ")
        if digest in IMPORTED.values() or Path(path).name in NAMED.values() or path in CONFIG_FILES:
            continue
        file = Path(path)
        # Older runs hashed the file alone.
        if not file.is_file() or digest not in (digest_of(file), file_sha256(file)):
            problem, named = "it is not there", f"FILE/{file.name}"
            if file.is_file():
                problem, named = "it, or a file that it imports, has changed since", path
            raise BadInputError(
                f"{place} needs {path}, which registered parts of its model or task; {problem}; "
                f"to use the file as it is now, add --import={named}"
            )
        import_once(path, f"{place} needs {path}")


def import_file(path: str) -> ModuleType:
    """Imports a config file as a module; `configs` is as `find_configs_beside` makes it."""
    find_configs_beside(path)
    spec = spec_of("config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def configs_module(name: str) -> ModuleType:
    """Imports a file of this project's configs/, such as "sizes", for use within the package."""
    others = forget_configs()
    try:
        return import_file(str(CONFIGS / f"{name}.py"))
    finally:
        forget_configs()
        sys.modules.update(others)


def registers_parts(file: Path) -> bool:
    """Returns whether a config file, or one beside it that it imports, can add parts."""
    return any(map(adds_parts, with_files_beside(file).values()))


def adds_parts(names: Iterable[str]) -> bool:
    """Returns whether one of these imports has a table that parts could be added to."""
    return any(name.startswith("widenet_jax") and not name.startswith(PLAIN) for name in names)


@cache  # of the text: a command may load hundreds of configs
def imported_names(source: str) -> frozenset[str]:
    """Returns the modules that code imports, and what it takes from them: {"configs.digits"}."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def place_of(error: Exception, path: str) -> str:
    """Describes an error of a file: "mine.py, line 12: NameError: name 'x' is not defined".

    The line is the innermost one in that file.
    """
    line = getattr(error, "lineno", None)
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).resolve() == Path(path).resolve():
            line = frame.lineno
    # ml_collections lists all fields of the section before its "Did you mean".
    text = re.sub(r' Other fields present: ".*?}"', "", " ".join(str(error).split()))
    message = f"{type(error).__name__}: {text}"
    return f"{path}, line {line}: {message}" if line else message
