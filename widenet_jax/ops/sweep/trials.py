"""Trials of a sweep: a config, its settings, a name, the command that runs it, and its outcome."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.config.fields import fields_of, override
from widenet_jax.config.files import find_config, import_file, load_config
from widenet_jax.config.imports import NAMED, errors_of_file
from widenet_jax.errors import BadInputError
from widenet_jax.inference.pretrained_config import PRETRAINED, set_fields
from widenet_jax.ops.sweep import axes
from widenet_jax.ops.sweep.axes import Settings

MakeCommand = Callable[["Trial", str], list[str]]  # (trial, workdir) -> the command that runs it
VARIANT = "variant"  # the config's argument, as a field
SLUG_LENGTH = 80


class Status(StrEnum):
    """The state of a trial, as tables print it."""

    DONE = "done"
    FAILED = "failed"
    DIVERGED = "diverged"  # its numbers stopped being finite
    STOPPED = "stopped"  # saved; the next call resumes it
    PRUNED = "pruned"
    HANDED_OVER = "handed over"  # to a scheduler that runs it later
    WAITING = "waiting"  # not started


FAILURES = (Status.FAILED, Status.DIVERGED)


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
      name: of its workdir. It follows from the config and the settings alone, so that axes may be
        lengthened, shortened and reordered without losing a finished trial.
      config: as after --config=, with the variant.
      settings: the swept fields, each value with the type that it has in the config.
      flags: `--config.FIELD=VALUE` that all trials share.
    """

    name: str
    config: str
    settings: Settings
    flags: tuple[str, ...] = ()

    def fields(self) -> list[str]:
        """Returns `--config.FIELD=VALUE` for every field that the trial sets."""
        return [*self.flags, *flags_of(self.settings)]

    def arguments(self, workdir: str) -> list[str]:
        """Returns the arguments of `python -m widenet_jax.main`."""
        return [f"--config={self.config}", f"--workdir={workdir}", *self.fields()]

    def command(self, workdir: str) -> list[str]:
        """Returns the command that runs the trial on this machine."""
        imports = [f"--import={file}" for file in NAMED]
        return [sys.executable, "-m", "widenet_jax.main", *imports, *self.arguments(workdir)]

    def primary_metric(self) -> Any:
        """Returns the metric that the task's runs are compared by, a `task.PrimaryMetric`."""
        config = with_fields(self.config, self.fields())
        from widenet_jax.specs import resolve, task_spec

        return resolve(task_spec(config.task.name).task).primary_metric_of(config)


@dataclass
class Outcome:
    """The state of a trial.

    Attributes:
      message: the last line that a failed trial printed.
      result: the result.json of a trial that is done.
    """

    trial: Trial
    status: Status
    exit_code: int | None = None
    message: str = ""
    result: dict[str, Any] = field(default_factory=dict)


def exit_code(
    outcomes: Iterable[Outcome], *, stopped: bool, failures: Sequence[Status] = FAILURES
) -> int:
    """Returns 143 where a trial or the call itself was stopped, 3 after a failure, else 0."""
    statuses = {outcome.status for outcome in outcomes}
    if stopped or Status.STOPPED in statuses:
        return 143
    return 3 if statuses & {*failures} else 0


def expand(config: str, settings: Iterable[Settings], flags: Sequence[str] = ()) -> list[Trial]:
    """Makes the trials of a sweep, and checks every one before any runs.

    Args:
      config: FILE.py or FILE.py:ARGUMENT.
      settings: one dict for each trial, as the functions of `axes` make them; values may be text.
      flags: `--config.FIELD=VALUE` that all trials share.

    Returns:
      The trials in the order of their settings. Equal settings, however spelt, become one trial.

    Raises:
      BadInputError: the config has no such field, value or variant.
    """
    trials = {trial.name: trial for trial in (make(config, one, flags) for one in settings)}
    return list(trials.values())


def make(config: str, settings: Settings, flags: Sequence[str]) -> Trial:
    """Makes one trial; see `expand`."""
    path, _, argument = config.partition(":")
    if VARIANT in settings:
        if argument:
            raise BadInputError(
                f"--config={config}: the variant is swept as well; write --config={path}"
            )
        argument = text_of(settings[VARIANT])
    full = f"{path}:{argument}" if argument else path
    for name in settings.keys() & names_of(flags):
        raise BadInputError(f"--config.{name} is set, and swept as well; keep one of them")
    loaded = with_fields(full, [*flags, *flags_of(settings)])
    typed = dict(fields_of(loaded)) | {VARIANT: argument}
    values = {name: typed[name] for name in sorted(settings)}
    return Trial(name_of(Path(path).name, argument, values), full, values, tuple(flags))


def with_fields(config: str, flags: Sequence[str]) -> ConfigDict:
    """Returns the config that a trial's flags make.

    Where they set a field of config.model that only the pretrained model has (config.model.name is
    "pretrained"), the section is read from config.init_from, as in the run. Otherwise that model is
    not looked up, so that trials can be listed before it is trained.

    Raises:
      BadInputError: no such field or value, or no pretrained model.
    """
    loaded = load_config(config)
    of_model = {name for name in names_of(flags) if name.startswith("model.")}
    pretrained = loaded.get("model", {}).get("name") == PRETRAINED
    if pretrained and of_model - dict(fields_of(loaded)).keys():
        return set_fields(loaded, flags)
    return override(loaded, flags)


def names_of(flags: Iterable[str]) -> set[str]:
    """Returns the fields that flags set."""
    return {flag.removeprefix("--config.").partition("=")[0] for flag in flags}


def flags_of(settings: Settings) -> list[str]:
    """Writes the fields among settings as on the command line."""
    return [f"--config.{k}={text_of(value)}" for k, value in settings.items() if k != VARIANT]


def text_of(value: Any) -> str:
    """Writes a value as on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def name_of(file: str, argument: str, values: Settings) -> str:
    """Names a trial: "learning_rate_0.001-seed_0-3fa9c1d2", readable, with a unique hash."""
    parts = [f"{name.split('.')[-1]}_{short(value)}" for name, value in values.items()]
    readable = "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part) for part in parts)
    whole = json.dumps([file, argument, values], sort_keys=True, default=str)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return "-".join(filter(None, [readable[:SLUG_LENGTH], digest]))


def short(value: Any) -> str:
    """Writes a value with at most four digits."""
    return f"{value:.4g}" if isinstance(value, float) else text_of(value)


def settings_of_config(config: str) -> list[Settings]:
    """Returns the settings that `get_sweep(sweep)` of a config file asks for.

    Raises:
      BadInputError: the file has no get_sweep, or it fails or returns no settings.
    """
    path = find_config(config.partition(":")[0])
    load_config(config)
    get_sweep = getattr(import_file(path), "get_sweep", None)
    if get_sweep is None:
        raise BadInputError(
            f"nothing to sweep: give --sweep FIELD=VALUE,VALUE, or write get_sweep(sweep) in {path}"
        )
    with errors_of_file(path, f"--config={config}: get_sweep", plain=BadInputError):
        settings = [{axes.field_name(k): v for k, v in one.items()} for one in get_sweep(axes)]
    if not settings:
        raise BadInputError(f"--config={config}: get_sweep returns no settings; return one or more")
    return settings


def check_comparable(trials: Iterable[Trial]) -> None:
    """Raises BadInputError where the primary metrics of trials differ, so that none is the best."""
    names = dict.fromkeys(trial.primary_metric().name for trial in trials)
    if len(names) > 1:
        raise BadInputError(
            f"the trials' primary metrics differ ({', '.join(names)}); make a sweep for each"
        )


def check_shared(trials: Sequence[Trial]) -> None:
    """Raises BadInputError with the mistake that every one of these trials has.

    A mistake that only some trials have ends those trials, and the others run. So the first trial
    without a mistake, or with a different one, ends the check.
    """
    mistake = mistake_of(trials[0]) if trials else ""
    if mistake and all(mistake_of(trial) == mistake for trial in trials[1:]):
        raise BadInputError(mistake)


def mistake_of(trial: Trial) -> str:
    """Returns the message with which the trial's run would end before it starts; "" for none.

    Opens the data. What only a run can know, such as the number of its devices, is left to the run.
    """
    from widenet_jax.data.sources import open_data  # these import JAX
    from widenet_jax.experiment import check_config

    try:
        config = set_fields(load_config(trial.config), trial.fields())
        check_config(config, open_data(config).data_info)
    except BadInputError as error:
        return str(error)
    return ""
