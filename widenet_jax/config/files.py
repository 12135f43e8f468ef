"""Loading configs from files and setting their fields from flags, without importing JAX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.config.fields import wrong_types
from widenet_jax.config.imports import (
    CONFIG_FILES,
    CONFIGS,
    errors_of_file,
    import_file,
    import_remembered,
    registers_parts,
    remember,
)
from widenet_jax.errors import BadInputError, known_names, raise_first, refuse
from widenet_jax.files import absolute, parse_json

# Files of configs/ without a get_config() of an experiment.
NO_EXPERIMENTS = {"defaults.py", "sizes.py", "variants.py"}


def load_config(text: str) -> ConfigDict:
    """Returns the config that `FILE.py` or `FILE.py:ARGUMENT` names.

    Raises:
      BadInputError: there is no such file, or its get_config() fails or returns no ConfigDict, or
        a field has a value of another type.
    """
    name, colon, argument = text.partition(":")
    path, place = find_config(name), f"--config={text}"
    if not (path.endswith(".py") and Path(path).is_file()):
        files = {file.name for folder in (Path("configs"), CONFIGS) for file in folder.glob("*.py")}
        known = known_names(Path(name).name, sorted(files - NO_EXPERIMENTS), within="configs/")
        raise BadInputError(f"{place}: there is no Python file {name!r}; {known}")
    with errors_of_file(path, place, plain=BadInputError):
        config = import_file(path).get_config(*([argument] if colon else []))
    no_config = not isinstance(config, ConfigDict)
    refuse(place, (no_config, "its get_config() must return a ConfigDict"))
    raise_first(f"{place}: {line}" for line in wrong_types(config))
    if registers_parts(Path(path)):
        remember(config, [path])
        CONFIG_FILES.add(str(Path(path).expanduser().resolve()))
    return config


def variant_options(text: str) -> set[str]:
    """Returns the options that may follow a variant of the config that `text` names.

    They are the options of the kinds of models that the file imports from configs/variants.py; none
    where the file is missing or fails.
    """
    file, _, variant = text.partition(":")
    if variant == "pretrained":  # takes fields only
        return set()
    try:
        module = import_file(find_config(file))
    except Exception:  # `load_config` reports it
        return set()
    return {key for one in vars(module).values() for key in getattr(one, "options", ())}


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
        config = ConfigDict(from_json(parse_json(stored.read_text())))
        _ = config.task, config.model, config.data  # AttributeError: the file is another's
    except (OSError, ValueError, TypeError, AttributeError):
        no_run = "no run there; give the --workdir of a training run"
        raise BadInputError(f"--workdir={workdir}: {no_run}") from None
    import_remembered(config, workdir)
    return config


def from_json(value: Any) -> Any:
    """Returns what JSON has of a config: with tuples, as fields have them, in place of lists."""
    if isinstance(value, Mapping):
        return {name: from_json(inner) for name, inner in value.items()}
    return tuple(map(from_json, value)) if isinstance(value, list) else value


def defined_in(file: str, name: str, *, flag: str) -> Any:
    """Returns what a Python file that a flag names defines under a name.

    Raises:
      BadInputError: there is no such file, it fails, or it does not define the name.
    """
    is_python = file.endswith(".py") and Path(file).is_file()
    refuse(f"{flag}={file}", (not is_python, "there is no such Python file"))
    with errors_of_file(file, f"{flag}={file}"):
        return getattr(import_file(file), name)
