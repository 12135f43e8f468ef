"""The directory of a sweep: one workdir for each trial, and the sweep's own files.

DIR/TRIAL/          the trial's workdir (elsewhere, as on gs://, where trials are launched)
DIR/logs/TRIAL.log  what the trial printed, over all its starts
DIR/sweep.json      the config, settings and flags behind each name
DIR/results.csv     and pictures
"""

import fcntl
import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from etils import epath

from widenet_jax.errors import BadInputError
from widenet_jax.files import LOCK, is_remote, lock, require_gcsfs, write_json
from widenet_jax.ops.sweep.trials import DONE, HANDED_OVER, WAITING, Outcome, Trial
from widenet_jax.run.metrics import JsonLines


class Directory:
    """Paths and locks of a sweep's trials.

    Args:
      path: a directory on this machine.
      trials: directory of the trials' workdirs, where it is not `path`.

    Raises:
      BadInputError: `path` is remote, or `trials` is and the package to reach it is missing.
    """

    def __init__(self, path: str | Path, trials: str = ""):
        self.path = Path(path)
        if is_remote(path):  # tested before Path makes "gs:/" of "gs://"
            raise BadInputError(
                f"--workdir={path}: logs and results are kept on this machine; give a "
                "local directory (and --trial_workdir=gs://... with --launch)"
            )
        self.trials = trials.rstrip("/") or str(self.path)
        if is_remote(trials):
            require_gcsfs(f"--trial_workdir={trials}")
        self.logs = self.path / "logs"

    @property
    def launched(self) -> bool:
        """Whether the trials run on other machines, to which the launcher hands them."""
        return self.trials != str(self.path)

    def make(self) -> None:
        """Creates the directory."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInputError(f"--workdir={self.path}: {error.strerror}") from None

    def workdir(self, trial: Trial) -> str:
        """Where the trial's run writes."""
        return f"{self.trials}/{trial.name}"

    def log(self, trial: Trial) -> Path:
        """The file with everything that the trial printed."""
        return self.logs / f"{trial.name}.log"

    def handed_over(self, trial: Trial) -> Path:
        """A file that exists once the trial was given to a scheduler that runs it later."""
        return self.logs / f"{trial.name}.handed_over"

    def result(self, trial: Trial) -> dict[str, Any] | None:
        """Reads result.json, which a run writes last; None before."""
        file = epath.Path(self.workdir(trial)) / "result.json"
        return json.loads(file.read_text()) if file.exists() else None

    def begun(self, trial: Trial) -> bool:
        """Tells whether the trial's run has begun, or was given to a scheduler.

        A run that is starting has begun as well: its lock is held before its config.json is there.
        """
        marks = epath.Path(self.workdir(trial)) / "config.json", self.handed_over(trial)
        return any(mark.exists() for mark in marks) or self.running(trial.name)

    def any_begun(self) -> bool:
        """Tells whether any run has begun here, of whichever trial."""
        if any(self.logs.glob("*.handed_over")) or self.running():
            return True
        trials = epath.Path(self.trials)
        return trials.exists() and any(trials.glob("*/config.json"))

    def running(self, name: str = "*") -> bool:
        """Tells whether a process on this machine runs the trial of this name, or any trial.

        Either a sweep started it, or somebody its command, which locks the workdir alone.
        """
        locks = list(self.logs.glob(f"{name}.lock"))
        if not is_remote(self.trials):
            locks += Path(self.trials).glob(f"{name}/{LOCK}")
        return any(map(held, locks))

    def outcome(self, trial: Trial) -> Outcome:
        """Returns the outcome that earlier calls left: done, handed over or waiting."""
        if result := self.result(trial):
            return Outcome(trial, DONE, result=result)
        return Outcome(trial, HANDED_OVER if self.handed_over(trial).exists() else WAITING)

    def evaluations(self, trial: Trial) -> list[dict]:
        """Reads the evaluation records so far, in order."""
        records = JsonLines(epath.Path(self.workdir(trial)) / "metrics.jsonl").read()
        return [record for record in records if record["split"] == "eval"]

    def last_line(self, trial: Trial) -> str:
        """Reads the last line that the trial printed."""
        try:
            lines = self.log(trial).read_text(errors="replace").split("\n")
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def lock(self, trial: Trial) -> IO | None:
        """Takes the trial's lock, held until both this process and its child close the file.

        Returns:
          None where another process holds the lock: a sweep that was killed may have left the
          trial running. Such a trial is waited for and not started twice.
        """
        file = (self.logs / f"{trial.name}.lock").open("w")
        if lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return file
        file.close()
        return None

    def lock_search(self) -> IO:
        """Takes the lock of the directory's search, held until the file is closed.

        Raises:
          BadInputError: another process searches there.
        """
        file = (self.path / "search.lock").open("w")
        if lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return file
        file.close()
        raise BadInputError(
            f"--workdir={self.path}: another process searches there; wait for it, stop it, or name "
            "a new --workdir"
        )

    def remember(self, trials: Iterable[Trial]) -> None:
        """Adds the trials to sweep.json; those that have not begun replace earlier ones.

        Raises:
          BadInputError: a trial of the same name ran with other flags.
        """
        trials = list(trials)
        with (self.path / "sweep.lock").open("w") as file:
            lock(file, fcntl.LOCK_EX)  # other calls may add theirs at the same time
            self.check_flags(trials)
            known = self.known()
            new = [trial for trial in trials if trial.name not in known or not self.begun(trial)]
            ours = {trial.name: as_json(trial) for trial in new}
            write_json(self.path / "sweep.json", known | ours)

    def check_flags(self, trials: Iterable[Trial]) -> None:
        """Raises BadInputError where a trial of the same name ran with other flags.

        Where it has not begun, the flags were corrected.
        """
        known = self.known()
        for trial in trials:
            before = known.get(trial.name, as_json(trial))["flags"]
            same = before == list(trial.flags) or relevant(before) == relevant(trial.flags)
            if not same and self.begun(trial):
                there, here = (" ".join(flags) or "none" for flags in (before, trial.flags))
                raise BadInputError(
                    f"--workdir={self.path} holds these runs with other flags ({there} there, "
                    f"{here} here); name a new --workdir, or repeat those flags to resume"
                )

    def known(self) -> dict[str, dict]:
        """Reads sweep.json."""
        file = self.path / "sweep.json"
        return json.loads(file.read_text()) if file.exists() else {}


def has_result(workdir: str) -> bool:
    """Tells whether the run in `workdir` has finished."""
    return (epath.Path(workdir) / "result.json").exists()


def diverged(workdir: str) -> bool:
    """Tells whether the run kept the state that met non-finite numbers, and did not finish."""
    return (epath.Path(workdir) / "failed").exists() and not has_result(workdir)


def held(path: Path) -> bool:
    """Tells whether a process holds the lock of this file."""
    try:
        with path.open() as file:
            # Shared, so that two sweeps that ask at the same time do not see each other.
            return not lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False


def as_json(trial: Trial) -> dict[str, Any]:
    """The trial as sweep.json holds it, without its name."""
    return {"config": trial.config, "settings": trial.settings, "flags": list(trial.flags)}


def relevant(flags: Iterable[str]) -> set[str]:
    """Drops the flags that a resumed run may change."""
    from widenet_jax.run.workdir import MAY_CHANGE  # imports JAX, needed only in this case

    changeable = tuple(f"--config.{name}" for name in MAY_CHANGE)
    return {flag for flag in flags if not flag.startswith(changeable)}
