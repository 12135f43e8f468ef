"""The directory of a sweep: one workdir a trial, and beside them what the sweep itself remembers.

DIR/TRIAL/          the trial's workdir (or elsewhere, as on gs://, where trials are launched)
DIR/logs/TRIAL.log  what the trial printed, over all its starts
DIR/sweep.json      which command belongs to which name
DIR/results.csv     and pictures
"""

import fcntl
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from etils import epath

from widenet_jax.errors import BadInputError
from widenet_jax.run.metrics import JsonLines
from widenet_jax.tools.sweep.trials import Trial


class Directory:
    """Args:
    path: on this machine.
    trials: where the trials' workdirs are, if not in `path`.
    """

    def __init__(self, path: str | Path, trials: str = ""):
        self.path = Path(path)
        if "://" in str(path):  # of a text: a Path has made "gs:/" of it
            raise BadInputError(
                f"--workdir={path}: logs and results are kept on this machine; give a "
                "local directory (and --trial_workdir=gs://... with --launch)"
            )
        self.trials = trials.rstrip("/") or str(self.path)
        if self.trials.startswith("gs://") and importlib.util.find_spec("gcsfs") is None:
            raise BadInputError(
                f"--trial_workdir={trials} needs the gcsfs package: pip install -e '.[gcs]'"
            )
        self.logs = self.path / "logs"

    def make(self) -> None:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInputError(f"--workdir={self.path}: {error.strerror}") from None

    def workdir(self, trial: Trial) -> str:
        return f"{self.trials}/{trial.name}"

    def log(self, trial: Trial) -> Path:
        return self.logs / f"{trial.name}.log"

    def handed_over(self, trial: Trial) -> Path:
        """Exists once the trial was given to a scheduler that runs it later."""
        return self.logs / f"{trial.name}.handed_over"

    def result(self, trial: Trial) -> dict[str, Any] | None:
        """result.json, which a run writes last; None before."""
        file = epath.Path(self.workdir(trial)) / "result.json"
        return json.loads(file.read_text()) if file.exists() else None

    def evaluations(self, trial: Trial) -> list[dict]:
        """The evaluation records so far, in order."""
        records = JsonLines(epath.Path(self.workdir(trial)) / "metrics.jsonl").read()
        return [record for record in records if record["split"] == "eval"]

    def last_line(self, trial: Trial) -> str:
        """Of what the trial printed."""
        try:
            lines = self.log(trial).read_text(errors="replace").split("\n")
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def lock(self, trial: Trial) -> IO | None:
        """The trial's lock, held until it is closed here and in the process it was passed to.

        None where another process holds it: an earlier sweep that was killed may have left the
        trial running, which then is waited for and not started twice.
        """
        file = (self.logs / f"{trial.name}.lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def remember(self, trials: Iterable[Trial]) -> None:
        """Adds the trials to sweep.json.

        Raises:
          BadInputError: a trial of that name ran with other flags.
        """
        trials = list(trials)
        self.check_flags(trials)
        known = {trial.name: as_json(trial) for trial in trials} | self.known()
        write_whole(self.path / "sweep.json", json.dumps(known, indent=1, default=str) + "\n")

    def check_flags(self, trials: Iterable[Trial]) -> None:
        """Raises BadInputError where a trial of that name ran with other flags."""
        known = self.known()
        for trial in trials:
            before = known.get(trial.name, as_json(trial))["flags"]
            if before != list(trial.flags) and relevant(before) != relevant(trial.flags):
                there, here = (" ".join(flags) or "none" for flags in (before, trial.flags))
                raise BadInputError(
                    f"--workdir={self.path} holds these runs with other flags ({there} there, "
                    f"{here} here); name a new --workdir, or repeat those to go on with it"
                )

    def known(self) -> dict[str, dict]:
        file = self.path / "sweep.json"
        return json.loads(file.read_text()) if file.exists() else {}


def as_json(trial: Trial) -> dict[str, Any]:
    return {"config": trial.config, "settings": trial.settings, "flags": list(trial.flags)}


def relevant(flags: Iterable[str]) -> set[str]:
    """Without those that a resumed run may change."""
    from widenet_jax.run.workdir import MAY_CHANGE  # imports JAX: only where it matters

    changeable = tuple(f"--config.{name}" for name in MAY_CHANGE)
    return {flag for flag in flags if not flag.startswith(changeable)}


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(text)
    beside.replace(path)
