"""What one trial of a sweep is: a config, its settings, a name, and the command that runs it."""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widenet_jax.config.files import fields_of, import_file, load_config, override
from widenet_jax.errors import BadInputError
from widenet_jax.tools.sweep import axes
from widenet_jax.tools.sweep.axes import Settings

VARIANT = "variant"  # the config's argument, as a field
SLUG_LENGTH = 80


@dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
      name: of its workdir; it follows from the config and the settings alone, so that axes may
        be lengthened, shortened and reordered without a finished trial being lost.
      config: as after --config=, with the variant.
      settings: the swept fields, each value as the config holds it.
      flags: `--config.FIELD=VALUE` that all trials have.
    """

    name: str
    config: str
    settings: Settings
    flags: tuple[str, ...] = ()

    def arguments(self, workdir: str) -> list[str]:
        """What comes after `python -m widenet_jax.main`."""
        fields = [
            f"--config.{name}={text_of(value)}"
            for name, value in self.settings.items()
            if name != VARIANT
        ]
        return [f"--config={self.config}", f"--workdir={workdir}", *self.flags, *fields]

    def command(self, workdir: str) -> list[str]:
        """Runs it here, in a process of its own."""
        return [sys.executable, "-m", "widenet_jax.main", *self.arguments(workdir)]


def expand(config: str, settings: Iterable[Settings], flags: Sequence[str] = ()) -> list[Trial]:
    """The trials of a sweep, every one checked before any is run.

    Args:
      config: FILE.py or FILE.py:ARGUMENT.
      settings: one dict a trial, as the functions of `axes` make them; values may be text.
      flags: `--config.FIELD=VALUE` for all trials.

    Returns:
      In the order given; settings that occur twice, however spelt, are one trial.

    Raises:
      BadInputError: a field, value or variant that cannot be.
    """
    trials = {trial.name: trial for trial in (make(config, one, flags) for one in settings)}
    return list(trials.values())


def make(config: str, settings: Settings, flags: Sequence[str]) -> Trial:
    path, _, argument = config.partition(":")
    fields = {name: text_of(value) for name, value in settings.items() if name != VARIANT}
    if VARIANT in settings:
        if argument:
            raise BadInputError(
                f"--config={config}: the variant is swept as well; write --config={path}"
            )
        argument = text_of(settings[VARIANT])
    full = f"{path}:{argument}" if argument else path
    given = [flag.removeprefix("--config.").partition("=")[0] for flag in flags]
    for name in fields:
        if name in given:
            raise BadInputError(f"--config.{name} is set, and swept as well; keep one of them")
    loaded = load_config(full)
    swept = [f"--config.{name}={text}" for name, text in fields.items()]
    override(loaded, ["sweep", *flags, *swept])
    held = dict(fields_of(loaded))
    values = {
        name: argument if name == VARIANT else held[name] for name in sorted(settings)
    }  # fmt: skip
    return Trial(name_of(Path(path).name, argument, values), full, values, tuple(flags))


def text_of(value: Any) -> str:
    """As on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def name_of(file: str, argument: str, values: Settings) -> str:
    """ "learning_rate_0.001-seed_0-3fa9c1d2": to read, and a hash that tells all apart."""
    parts = [f"{name.split('.')[-1]}_{short(value)}" for name, value in values.items()]
    readable = "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part) for part in parts)
    whole = json.dumps([file, argument, values], sort_keys=True, default=str)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return "-".join(filter(None, [readable[:SLUG_LENGTH], digest]))


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else text_of(value)


def settings_of_config(config: str) -> list[Settings]:
    """What the `get_sweep(sweep)` or `get_hyper(hyper)` of a config file asks for.

    Raises:
      BadInputError: it has neither, or they return something else than settings.
    """
    path = config.partition(":")[0]
    load_config(config)
    module = import_file(path)
    ask = getattr(module, "get_sweep", None) or getattr(module, "get_hyper", None)
    if ask is None:
        raise BadInputError(
            f"nothing to sweep: give --sweep FIELD=VALUE,VALUE, or write get_sweep(sweep) in {path}"
        )
    try:
        found = [
            {axes.field_name(name): value for name, value in one.items()} for one in ask(axes)
        ]  # fmt: skip
    except BadInputError as error:
        raise BadInputError(f"--config={config}: {error}") from None
    except Exception as error:
        raise BadInputError(
            f"--config={config}: {ask.__name__}: {type(error).__name__}: {error}; it must return "
            "what sweep, fixed, product, zipit or chainit return"
        ) from error
    return found
