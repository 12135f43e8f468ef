"""Runs an experiment's trials and gathers what they gave."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etils import epath

from widenet_jax.run.metrics import JsonLines
from widenet_jax.tools.reproduce.scales import Run
from widenet_jax.tools.sweep.directory import Directory
from widenet_jax.tools.sweep.runner import (
    DONE,
    FAILED,
    HANDED_OVER,
    WAITING,
    Outcome,
    run_trials,
)
from widenet_jax.tools.sweep.trials import Trial

DIVERGED = "diverged"


@dataclass(frozen=True)
class Measured:
    """What the seeds of one run gave.

    Attributes:
      outcomes: one a seed; DIVERGED where numbers ceased to be finite.
      workdirs: of those that are done.
      images_per_second: in training, the median over the lines of timing.jsonl and the seeds,
        whatever else the machine did then; None before the first.
      training_accuracy: percent of the augmented, mixed training images, over the last tenth of the
        steps and the seeds that are done; None before the first.
    """

    outcomes: tuple[Outcome, ...]
    workdirs: tuple[str, ...]
    images_per_second: float | None
    training_accuracy: float | None = None

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy in percent of every seed that ended: NaN where it diverged."""
        ended = [outcome for outcome in self.outcomes if outcome.status in (DONE, DIVERGED)]
        return [100 * outcome.result.get("test_accuracy", math.nan) for outcome in ended]

    @property
    def statuses(self) -> list[str]:
        """One a seed."""
        return [outcome.status for outcome in self.outcomes]

    @property
    def finite(self) -> list[float]:
        return [accuracy for accuracy in self.accuracies if math.isfinite(accuracy)]

    @property
    def mean(self) -> float | None:
        """Over the seeds that did not diverge; NaN where all did, None where none ended."""
        if not self.accuracies:
            return None
        return statistics.fmean(self.finite) if self.finite else math.nan

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds (n - 1); None for fewer than two."""
        return statistics.stdev(self.finite) if len(self.finite) > 1 else None

    @property
    def params(self) -> int | None:
        found = [outcome.result["params"] for outcome in self.outcomes if outcome.status == DONE]
        return found[0] if found else None

    @property
    def missing(self) -> list[str]:
        """Why seeds are missing, one status each."""
        return [status for status in self.statuses if status not in (DONE, DIVERGED)]


def carry_out(
    trials: dict[Run, list[Trial]],
    directory: Directory,
    *,
    workers: int,
    command: Callable[[Trial, str], list[str]] = Trial.command,
    retry: bool = False,
) -> tuple[dict[Run, Measured], bool]:
    """Runs what is not finished, backbones first.

    Args:
      trials: each run's, one a seed, backbones before what is finetuned from them.
      directory: of all of them.
      workers: how many run at a time.
      command: what starts a trial; by default a run on this machine.
      retry: whether trials that diverged, or were handed over and have no result, are run again;
        they go on from their last checkpoint.

    Returns:
      What every run gave, and whether a signal cut them short. A trial whose backbone is not done
      waits for another call.
    """
    outcomes: dict[str, Outcome] = {}
    stopped = False
    for finetuned in (False, True):
        stage = [of for run, of in trials.items() if bool(run.backbone) == finetuned]
        # A seed of every model before the next seed: a table is whole early.
        in_turn = [trial for seeds in zip(*stage, strict=True) for trial in seeds]
        ready = [trial for trial in in_turn if startable(trial, directory, retry)]
        if retry:
            for trial in ready:
                directory.handed_over(trial).unlink(missing_ok=True)
        if ready and not stopped:
            ran, stopped = run_trials(ready, directory, workers=workers, command=command)
            outcomes |= {outcome.trial.name: outcome for outcome in ran}
    measured = {
        run: gather([outcomes.get(t.name) or found(t, directory) for t in of], directory)
        for run, of in trials.items()
    }
    return measured, stopped


def look_at(trials: dict[Run, list[Trial]], directory: Directory) -> dict[Run, Measured]:
    """How they stand, without running any."""
    return {
        run: gather([found(trial, directory) for trial in of], directory)
        for run, of in trials.items()
    }


def startable(trial: Trial, directory: Directory, retry: bool) -> bool:
    """Whether its backbone is there, and it has not diverged unless that is tried again."""
    backbone = trial.settings.get("init_from")
    ready = backbone is None or has_result(backbone)
    return ready and (retry or not diverged(directory.workdir(trial)))


def has_result(workdir: str) -> bool:
    return (epath.Path(workdir) / "result.json").exists()


def diverged(workdir: str) -> bool:
    """Whether a run kept a state that met numbers that are not finite, and did not go on."""
    return (epath.Path(workdir) / "failed").exists() and not has_result(workdir)


def found(trial: Trial, directory: Directory) -> Outcome:
    """A trial as an earlier call left it; it has diverged if its backbone did."""
    result = directory.result(trial)
    if result:
        return Outcome(trial, DONE, result=result)
    if diverged(directory.workdir(trial)) or diverged(trial.settings.get("init_from", "")):
        return Outcome(trial, DIVERGED)
    if directory.handed_over(trial).exists():
        return Outcome(trial, HANDED_OVER)
    return Outcome(trial, WAITING)


def gather(outcomes: Sequence[Outcome], directory: Directory) -> Measured:
    outcomes = [
        Outcome(one.trial, DIVERGED)
        if one.status == FAILED and diverged(directory.workdir(one.trial))
        else one
        for one in outcomes
    ]
    done = [directory.workdir(one.trial) for one in outcomes if one.status == DONE]
    rates = [rate for workdir in done for rate in rates_of(workdir)]
    learnt = [
        accuracy for workdir in done if (accuracy := last_training_accuracy(workdir)) is not None
    ]
    return Measured(
        tuple(outcomes),
        tuple(done),
        statistics.median(rates) if rates else None,
        statistics.fmean(learnt) if learnt else None,
    )


def rates_of(workdir: str) -> list[float]:
    lines: list[dict[str, Any]] = JsonLines(epath.Path(workdir) / "timing.jsonl").read()
    return [line["images_per_second"] for line in lines]


def last_training_accuracy(workdir: str) -> float | None:
    """Percent, the mean of the lines of metrics.jsonl in the last tenth of the steps."""
    lines: list[dict[str, Any]] = JsonLines(epath.Path(workdir) / "metrics.jsonl").read()
    lines = [line for line in lines if line["split"] == "train"]
    last = [line["accuracy"] for line in lines if line["step"] > 0.9 * lines[-1]["step"]]
    return 100 * statistics.fmean(last) if last else None
