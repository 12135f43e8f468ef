"""The directory of a sweep, a grid or a search: one workdir for each trial, and the sweep's files.

DIR/TRIAL/               the trial's workdir (elsewhere, as on gs://, where trials are launched)
DIR/logs/TRIAL.log       what the trial printed, over all its starts
DIR/logs/TRIAL.lock      locked while a process runs the trial
DIR/logs/TRIAL.pruned, TRIAL.handed_over   exist where a search ended it, or a scheduler has it
DIR/search.lock          locked while a process searches
DIR/search.json          of a search: its space, and the values that Optuna proposed
DIR/results.csv          and pictures
"""

import fcntl
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from etils import epath

from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError, refusing
from widenet_jax.files import absolute, check_store, is_remote, lock, parse_json, require_store
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.ops.sweep.trials import Outcome, Status, Trial
from widenet_jax.run.metrics import JsonLines


class Directory:
    """Paths and locks of a sweep's trials.

    Args:
      path: a directory on this machine.
      trials: directory of the trials' workdirs, where it is not `path`.
      dry: nothing will run, so that the package to reach `trials` may be missing.

    Attributes:
      unknown: why a dry run cannot know which trials are done; "" where it can.

    Raises:
      BadInputError: `path` is remote, or `trials` is and the package to reach it is missing.
    """

    def __init__(self, path: str | Path, trials: str = "", *, dry: bool = False):
        self.path = Path(path)
        if is_remote(path):  # tested before Path makes "gs:/" of "gs://"
            raise BadInputError(
                f"--workdir={path}: logs and results are kept on this machine; give a "
                "local directory (and --trial_workdir=gs://... with --launch)"
            )
        self.trials = trials.rstrip("/") or str(self.path)
        self.unknown = ""
        check_store(trials)
        if is_remote(trials):
            try:
                require_store(f"--trial_workdir={trials}")
            except BadInputError as error:
                if not dry:
                    raise
                self.unknown = str(error)
        self.logs = self.path / "logs"

    @property
    def launched(self) -> bool:
        """Whether the trials run on other machines, to which the launcher hands them."""
        return self.trials != str(self.path)

    def make(self) -> None:
        """Creates the directory."""
        with refusing(f"--workdir={self.path}: cannot be made", OSError):
            self.logs.mkdir(parents=True, exist_ok=True)

    def workdir(self, trial: Trial) -> str:
        """Where the trial's run writes."""
        return f"{self.trials}/{trial.name}"

    def log(self, trial: Trial, suffix: str = "log") -> Path:
        """A file about the trial: what it printed, its lock or a mark."""
        return self.logs / f"{trial.name}.{suffix}"

    def result(self, trial: Trial) -> dict[str, Any] | None:
        """Reads result.json, which a run writes last; None before."""
        file = epath.Path(self.workdir(trial)) / "result.json"
        if not file.exists():
            return None
        advice = "; remove it and repeat the command"
        with refusing(
            f"{file}: damaged", ValueError, TypeError, KeyError, AttributeError, advice=advice
        ):
            result = parse_json(file.read_text())
            if metric := result.get("primary_metric"):
                check_metric(metric["name"], result[f"test_{metric['name']}"])
        return result

    def is_done(self, trial: Trial) -> bool | None:
        """Returns whether the trial has a result; None where this is unknown."""
        return None if self.unknown else self.result(trial) is not None

    def done_text(self, done: int) -> str:
        """Returns "3 of them done", or why this is unknown."""
        return f"{self.unknown}, to see which are done" if self.unknown else f"{done} of them done"

    def outcome(self, trial: Trial) -> Outcome:
        """Returns the outcome that earlier calls left; a trial that failed or stopped is WAITING.

        Of a diverged trial the exit code is the one of a failed run.
        """
        if result := self.result(trial):
            return Outcome(trial, Status.DONE, result=result)
        if diverged(self.workdir(trial)):
            return Outcome(trial, Status.DIVERGED, 3, self.last_line(trial))
        if self.log(trial, "handed_over").exists():
            return Outcome(trial, Status.HANDED_OVER)
        pruned = self.log(trial, "pruned").exists()
        return Outcome(trial, Status.PRUNED if pruned else Status.WAITING)

    def evaluations(self, trial: Trial) -> list[dict]:
        """Reads the evaluation records so far, in order."""
        records = JsonLines(epath.Path(self.workdir(trial)) / "metrics.jsonl").read()
        return [record for record in records if record.get("split") == "eval"]

    def last_line(self, trial: Trial) -> str:
        """Reads the last line that the trial printed."""
        log = self.log(trial)
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def has_result(workdir: str) -> bool:
    """Tells whether the run in `workdir` has finished."""
    return (epath.Path(workdir) / "result.json").exists()


def diverged(workdir: str) -> bool:
    """Tells whether the run kept the state that met non-finite numbers, and did not finish."""
    return (epath.Path(workdir) / "failed").exists() and not has_result(workdir)


def locked(path: Path) -> IO | None:
    """Opens a file and locks it until it is closed; None where another process holds the lock."""
    file = path.open("w")
    if lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
        return file
    file.close()
    return None


def changed_since(trial: Trial, directory: Directory) -> dict[str, str]:
    """Returns the fields in which a finished trial ran with another config than it would now.

    Swept fields are part of the trial's name, except the directory of a backbone, and are left out.
    """
    workdir = directory.workdir(trial)
    place = absolute(workdir)
    if directory.result(trial) is None or not (place / "config.json").exists():
        return {}
    from widenet_jax.run.workdir import MAY_CHANGE_AFTER, changed_fields  # import JAX

    try:
        config = set_fields(load_config(trial.config), trial.fields())
    except BadInputError:  # the model that it started from may be gone: by the trial's own copy
        config = set_fields(load_config(trial.config), trial.fields(), workdir=workdir)
    changed = changed_fields(place, config, MAY_CHANGE_AFTER)
    return {key: text for key, text in changed.items() if key not in trial.settings}


def check_finished(trials: Iterable[Trial], directory: Directory) -> None:
    """Raises BadInputError where a finished trial ran with another config than it would now.

    As after a change in the config file: its result would stand beside results of the new config.
    A trial that is not finished refuses to resume.
    """
    for trial in trials:
        if changed := changed_since(trial, directory):
            from widenet_jax.run.workdir import list_changes

            raise BadInputError(
                f"--workdir={directory.path}: {trial.name} is finished, and ran with another "
                f"config ({list_changes(changed)}); name a new --workdir, or undo that change to "
                "see its result"
            )


def check_metric(name: str, value: object) -> None:
    """Raises ValueError unless the value is a number, of an accuracy a share."""
    if not isinstance(value, int | float) or (name == "accuracy" and not 0 <= value <= 1):
        raise ValueError(f"test_{name} is {value!r}")
