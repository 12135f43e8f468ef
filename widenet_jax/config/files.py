"""Loading configs from files and setting their fields from flags, without importing JAX."""

import ast
import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.config.imports import import_remembered, place_of, registers_parts, remember
from widenet_jax.config.names import nearest_name
from widenet_jax.config.stored_names import upgrade
from widenet_jax.errors import BadInputError, known_names
from widenet_jax.files import absolute

PACKAGE = Path(__file__).parents[1]
# This project's: within an installed package, or beside the package in a checkout.
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").exists() else PACKAGE.parent / "configs"
# Files of configs/ without a get_config() of an experiment.
NO_EXPERIMENTS = {"defaults.py", "matching.py", "sizes.py", "text_sizes.py", "language_sizes.py"}
NO_EXPERIMENTS |= {"feed_forward_sizes.py"}

PARSER = re.compile(r"parse_(\w+_)?variant")  # of *sizes.py
# How a message names the type of a field where "a list", "a tuple" would not do.
WANTED = {int: "a whole number", float: "a number", bool: "true or false"}
# The least value of a whole number where that is not 1, of another number where that is not 0.
LEAST = {
    **dict.fromkeys(("seed", "data.num_workers", "model.routing_groups", "max_skipped_updates"), 0),
    **dict.fromkeys(("augment.pad_pixels", "augment.randaugment_layers"), 0),
    "evaluation.patience": 0,
    **dict.fromkeys(("watchdog.dump_after_seconds", "watchdog.exit_after_seconds"), 0),
    "task.max_predictions": 0,  # a share of the sequence
    **dict.fromkeys(("task.memory_length", "task.eval_memory_length"), 0),  # multiples of T
    "model.attention.head_dim": 0,  # embed_dim / num_heads
    "model.product_key.query_dim": 0,  # no projection
    "model.num_segments": 2,
    "sharding.fsdp": -1,  # all devices
    "task.null_threshold": -1e9,  # a logit, or a difference of logits
}
# The largest value of a whole number where that is not 2^31 - 1. Far above any run that fits in
# memory: a larger value would be built or allocated for minutes before it fails.
MOST = {
    "seed": 2**32 - 1,
    **dict.fromkeys(("batch_size", "evaluation.batch_size"), 2**20),
    **dict.fromkeys(("model.mlp_dim", "model.moe.mlp_dim", "model.top_k_mlp.mlp_dim"), 2**18),
    **dict.fromkeys(("model.product_key.num_keys", "model.product_key.num_heads"), 2**11),
    **dict.fromkeys(("model.embed_dim", "model.embedding_dim"), 2**16),
    **dict.fromkeys(("model.num_positions", "data.max_length"), 2**20),
    **dict.fromkeys(("data.max_question_length", "data.stride"), 2**20),
    "task.max_answer_length": 2**10,
    **dict.fromkeys(("task.memory_length", "task.eval_memory_length"), 2**20),
    "model.attention.head_dim": 2**16,
    **dict.fromkeys(("data.image_size", "augment.pad_pixels"), 2**14),
    **dict.fromkeys(("model.attention.num_heads", "model.moe.num_experts"), 2**12),
    **dict.fromkeys(("data.num_workers", "data.prefetch", "model.depth"), 2**10),
    "model.num_segments": 2**10,
    "augment.randaugment_layers": 2**6,
}


def override(config: ConfigDict, flags: Sequence[str]) -> ConfigDict:
    """Sets every `--config.FIELD=VALUE` of `flags` in `config`, checks its numbers and returns it.

    Fields can no longer be added to the config afterwards.

    Raises:
      BadInputError: no such field, or a value of the wrong type or out of range.
    """
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not (equals and name.startswith("--config.")):
            raise BadInputError(f"{flag!r} is no flag; fields are set as --config.FIELD=VALUE")
        set_field(config, name.removeprefix("--config."), text)
    check_numbers(config)
    return config.lock()


def load_config(text: str) -> ConfigDict:
    """Returns the config that `FILE.py` or `FILE.py:ARGUMENT` names.

    Raises:
      BadInputError: there is no such file, or its get_config() fails or returns no ConfigDict.
    """
    name, colon, argument = text.partition(":")
    path = find_config(name)
    if not (path.endswith(".py") and Path(path).is_file()):
        files = {file.name for folder in (Path("configs"), CONFIGS) for file in folder.glob("*.py")}
        there = sorted(files - NO_EXPERIMENTS)
        known = known_names(Path(name).name, there, within="configs/")
        raise BadInputError(f"--config={text}: there is no Python file {name!r}; {known}")
    try:
        config = import_file(path).get_config(*([argument] if colon else []))
    except BadInputError as error:
        raise BadInputError(f"--config={text}: {error}") from None
    except Exception as error:
        raise BadInputError(f"--config={text}: {place_of(error, path)}") from error
    if not isinstance(config, ConfigDict):
        raise BadInputError(f"--config={text}: its get_config() must return a ConfigDict")
    if registers_parts(Path(path).read_text()):
        remember(config, [path])
    return config


def variant_options(text: str) -> set[str]:
    """Returns the options that may follow a variant of the config that `text` names.

    They are the OPTIONS of the module whose parse_variant, parse_text_variant, ... the file
    imports; none where it imports no such function, is missing or fails.
    """
    file, _, variant = text.partition(":")
    if variant == "pretrained":  # takes fields only
        return set()
    try:
        names = vars(import_file(find_config(file)))
    except Exception:  # `load_config` reports it
        return set()
    homes = [
        getattr(one, "__module__", "") for name, one in names.items() if PARSER.fullmatch(name)
    ]
    return {key for home in homes for key in getattr(sys.modules.get(home), "OPTIONS", ())}


def find_config(name: str) -> str:
    """Returns the path of a config file.

    Paths start at the current directory. Where that has no file configs/NAME.py, this project's
    file of that name is meant, so that its configs are found from every directory.
    """
    own = CONFIGS / Path(name).name
    is_ours = Path(name).parent == Path("configs") and own.is_file()
    return str(own) if is_ours and not Path(name).exists() else name


def stored_config(workdir: str) -> ConfigDict:
    """Returns the config that the run in `workdir` was started with, from its config.json.

    Raises:
      BadInputError: there is no run in `workdir`.
    """
    stored = absolute(workdir) / "config.json"
    try:
        config = ConfigDict(upgrade(json.loads(stored.read_text())))
    except (OSError, ValueError, TypeError, AttributeError):
        raise BadInputError(
            f"--workdir={workdir}: no run there; give the --workdir of a training run"
        ) from None
    import_remembered(config, workdir)
    return config


def import_file(path: str) -> ModuleType:
    """Imports a config file as a module.

    In it, `from configs import defaults` finds the defaults.py beside the file, or else the one in
    the `configs` folder of this project, from whichever directory the command was started.
    """
    forget_configs()  # of a file that was imported before, perhaps from another folder
    package = ModuleType("configs")
    package.__path__ = [str(Path(path).resolve().parent), str(CONFIGS)]
    sys.modules["configs"] = package
    spec = importlib.util.spec_from_file_location("config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forget_configs() -> dict[str, ModuleType]:
    """Removes all modules of `configs` from `sys.modules` and returns them."""
    names = [name for name in sys.modules if name.split(".")[0] == "configs"]
    return {name: sys.modules.pop(name) for name in names}


@cache
def configs_module(name: str) -> ModuleType:
    """Imports a file of this project's configs/, such as "sizes", for use within the package."""
    others = forget_configs()
    try:
        return import_file(str(CONFIGS / f"{name}.py"))
    finally:
        forget_configs()
        sys.modules.update(others)


def fields_of(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every section and field with its full name: ("model", ...), ("model.depth", 6)."""
    for key, value in config.items():
        yield prefix + key, value
        if isinstance(value, ConfigDict):
            yield from fields_of(value, f"{prefix}{key}.")


def set_field(config: ConfigDict, field: str, text: str) -> None:
    """Sets one field ("model.depth") to the value of `text`, in the field's type.

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
    if field not in fields:
        raise BadInputError(f"--config.{field}: {no_such_field(field, fields)}")
    value = parse_value(field, text, fields[field])
    *sections, name = field.split(".")
    for section in sections:
        config = config[section]
    config[name] = value


def no_such_field(field: str, fields: Mapping[str, Any]) -> str:
    """Returns what to tell a user who asked for a field that is not among `fields`.

    The fields of the section that the user named, or else of the suggested field's, are listed.
    """
    sections = {name: value for name, value in fields.items() if isinstance(value, ConfigDict)}
    near = nearest_name(field, fields.keys() - sections.keys()) or ""
    section = field.rpartition(".")[0]
    if section not in sections:
        section = near.partition("=")[0].rpartition(".")[0]
    there = sections[section] if section else [name for name in fields if "." not in name]
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
    example = f"{WANTED.get(kind, f'a {kind.__name__}')}, such as {current}"
    raise BadInputError(f"--config.{field}={text}: this field needs {example}") from None


def check_numbers(config: ConfigDict) -> None:
    """Raises BadInputError at a number that is nan, infinite, too small or too large."""
    for name, value in fields_of(config):
        if isinstance(value, float) and not LEAST.get(name, 0.0) <= value < math.inf:
            least = LEAST.get(name, 0)
            raise BadInputError(
                f"--config.{name}={value} must be a finite number, {least:g} or more"
            )
        if type(value) is int:
            least, most = LEAST.get(name, 1), MOST.get(name, 2**31 - 1)
            if value < least:
                raise BadInputError(f"--config.{name}={value} is too small; give at least {least}")
            if value > most:
                raise BadInputError(f"--config.{name}={value} is too large; give at most {most}")
