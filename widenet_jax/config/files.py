"""Configs from files and from the command line, every mistake in them one line; imports no JAX."""

import difflib
import importlib.util
import json
import math
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from widenet_jax.errors import BadInputError

# What a field's value has to look like, by the type it has in the config file.
WANTED = {int: "a whole number", float: "a number", bool: "true or false"}
# The least that a whole number may be; any other is a count of at least 1.
LEAST = {
    "seed": 0,
    "data.num_workers": 0,
    "augment.pad_pixels": 0,
    "augment.randaugment_layers": 0,
    "model.moe.routing_groups": 0,
    "max_skipped_updates": 0,
    "watchdog.dump_after_seconds": 0,
    "watchdog.exit_after_seconds": 0,
    "sharding.fsdp": -1,  # all the devices there are
}


def override(config: ConfigDict, argv: Sequence[str], own: Iterable[str] = ()) -> None:
    """Sets every `--config.FIELD=VALUE` of `argv` (whose first word is the program) in `config`.

    Raises:
      BadInputError: a flag that is neither a field nor in `own`, or a value that cannot be.
    """
    check_field_names(argv, config, own)
    set_fields(argv, config)
    check_numbers(config)


def load_config(text: str) -> ConfigDict:
    """The config that `FILE.py` or `FILE.py:ARGUMENT` names.

    Raises:
      BadInputError: no such file, or one that makes no config.
    """
    path, colon, argument = text.partition(":")
    if not (path.endswith(".py") and Path(path).is_file()):
        there = ", ".join(sorted(str(p) for p in Path("configs").glob("*.py")))
        raise BadInputError(
            f"--config={text}: there is no Python file {path!r}"
            + (f"; there are {there}" if there else " (paths start at the current directory)")
        )
    try:
        config = import_file(path).get_config(*([argument] if colon else []))
    except BadInputError as error:
        raise BadInputError(f"--config={text}: {error}") from None
    except Exception as error:
        raise BadInputError(f"--config={text}: {place_of(error, path)}") from error
    if not isinstance(config, ConfigDict):
        raise BadInputError(f"--config={text}: its get_config() must return a ConfigDict")
    return config


def stored_config(workdir: str) -> ConfigDict:
    """The config that the run in `workdir` was started with, from its config.json.

    Raises:
      BadInputError: there is none.
    """
    from etils import epath

    try:
        stored = epath.Path(workdir).expanduser() / "config.json"
        return ConfigDict(json.loads(stored.read_text()))
    except (OSError, ValueError, TypeError):
        raise BadInputError(
            f"--workdir={workdir}: no run there; give the --workdir of a training run"
        ) from None


def import_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def place_of(error: Exception, path: str) -> str:
    """ "configs/mine.py, line 12: NameError: name 'x' is not defined"."""
    line = getattr(error, "lineno", None)
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).resolve() == Path(path).resolve():
            line = frame.lineno
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"{path}, line {line}: {what}" if line else what


def check_field_names(rest: Sequence[str], config: ConfigDict, own: Iterable[str]) -> None:
    """Raises BadInputError at the first flag that names no field of the config."""
    check_flag_names(rest, own)
    for name in names_of_flags(rest):
        check_field_name(name.partition("config.")[2], config)


def check_flag_names(rest: Sequence[str], own: Iterable[str]) -> None:
    """Raises BadInputError at the first flag that is no field of any config; names the nearest."""
    for name in names_of_flags(rest):
        if not re.match(r"(?:no)?config\.", name):
            near = difflib.get_close_matches(name, list(own), n=1)
            hint = f"did you mean --{near[0]}?" if near else "--help lists the flags"
            raise BadInputError(f"there is no flag --{name}; {hint}")


def names_of_flags(rest: Sequence[str]) -> list[str]:
    """ "config.seed" of --config.seed=3, for all but the first word, the program."""
    flags_there = [word for word in rest[1:] if re.match("--?[A-Za-z]", word)]
    return [word.lstrip("-").partition("=")[0] for word in flags_there]


def check_field_name(field: str, config: ConfigDict) -> None:
    """Raises BadInputError unless `field` ("model.depth") is in the config and not None."""
    fields = dict(fields_of(config))
    for name, value in fields.items():
        if value is None and f"{field}.".startswith(f"{name}."):
            raise BadInputError(
                f"--config.{field}: config.{name} is empty in this config; set it in the config "
                "file, or choose a variant that has it"
            )
    if field not in fields:
        near = difflib.get_close_matches(field, fields, n=1, cutoff=0.0)[0]
        raise BadInputError(
            f"--config.{field}: the config has no such field; did you mean --config.{near}?"
        )


def fields_of(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("seed", 0), ("model", ...), ("model.depth", 6), ..."""
    for key, value in config.items():
        yield prefix + key, value
        if isinstance(value, ConfigDict):
            yield from fields_of(value, f"{prefix}{key}.")


def set_fields(rest: Sequence[str], config: ConfigDict) -> None:
    """Sets `--config.FIELD=VALUE` in `config`.

    Raises:
      BadInputError: a value of the wrong type, or an argument that is no flag.
    """
    fields = flags.FlagValues()
    fields.set_gnu_getopt(True)
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=fields, sys_argv=list(rest))
        positional = fields(list(rest))[1:]
    except flags.IllegalFlagValueError as error:
        raise BadInputError(wrong_value(str(error), config)) from None
    except flags.Error as error:
        raise BadInputError(" ".join(str(error).split())) from None
    if positional:
        raise BadInputError(f"not a flag: {positional[0]!r}; flags are written --name=value")


def wrong_value(message: str, config: ConfigDict) -> str:
    """absl's "flag --config.batch_size=abc: invalid literal ..." in words about the field."""
    field, value = re.match(r"flag --config\.([\w.]+)=(.*?): ", message, re.DOTALL).groups()
    current = dict(fields_of(config))[field]
    if isinstance(current, ConfigDict):
        return (
            f"--config.{field}={value}: this is a section; set one of its fields, as in "
            f"--config.{field}.{next(iter(current))}=..."
        )
    wanted = WANTED.get(type(current), type(current).__name__)
    return f"--config.{field}={value}: this field wants {wanted}, such as {current}"


def check_numbers(config: ConfigDict) -> None:
    """Raises BadInputError at a field that is nan or infinite, or a count that is too small."""
    for name, value in fields_of(config):
        if isinstance(value, float) and not 0 <= value < math.inf:
            raise BadInputError(f"--config.{name}={value} must be a finite number, 0 or more")
        least = LEAST.get(name, 1)
        if name == "seed" and not 0 <= value < 2**32:
            raise BadInputError(f"--config.seed={value} must be between 0 and {2**32 - 1}")
        if type(value) is int and value < least:
            raise BadInputError(f"--config.{name}={value} is too small; give at least {least}")
