"""Runs the trials of experiments and collects their measurements."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from widenet_jax.ops.sweep.directory import Directory, diverged, has_result
from widenet_jax.ops.sweep.runner import Listed, Runner
from widenet_jax.ops.sweep.seeds import mean_over_seeds
from widenet_jax.ops.sweep.trials import MakeCommand, Outcome, Status, Trial
from widenet_jax.papers.experiments import Metric
from widenet_jax.papers.scales import Run
from widenet_jax.run.intervals import Interval, accuracy_interval

Trials = Mapping[Run, Sequence[Trial]]  # of each run, one for each seed


@dataclass(frozen=True)
class Measured:
    """The measurements of one run over its seeds.

    Attributes:
      outcomes: one for each seed.
      workdirs: of the seeds that are done.
    """

    outcomes: tuple[Outcome, ...]
    workdirs: tuple[str, ...] = ()

    @property
    def ended(self) -> list[Outcome]:
        """The seeds that are done or diverged."""
        return [one for one in self.outcomes if one.status in (Status.DONE, Status.DIVERGED)]

    @property
    def params(self) -> int | None:
        """Parameters of the model; None before a seed is done."""
        return next((one.result.get("params") for one in self.outcomes if one.result), None)

    def values(self, metric: Metric) -> list[float]:
        """The test metric of every seed that ended, as the paper scales it; NaN: diverged."""
        name = f"test_{metric.name}"
        return [metric.scale * outcome.result.get(name, math.nan) for outcome in self.ended]

    def by_seed(self, metric: Metric) -> dict[int, float]:
        """`values` by the seed of each."""
        seeds = [one.trial.settings.get("seed", i) for i, one in enumerate(self.ended)]
        return dict(zip(seeds, self.values(metric), strict=True))

    def interval(self, metric: Metric) -> Interval | None:
        """95% interval of the mean of `values`; of a single seed's accuracy, over its examples.

        None where the seeds do not vary.
        """
        finite = [value for value in self.values(metric) if math.isfinite(value)]
        if len(finite) > 1:
            return mean_over_seeds(finite)
        if not finite or metric.name != "accuracy":
            return None
        found = next(filter(None, (accuracy_interval(one.result) for one in self.ended)), None)
        return found and (metric.scale * found[0], metric.scale * found[1])


Measurements = Mapping[Run, Measured]


def carry_out(
    trials: Trials, directory: Directory, *, workers: int, command: MakeCommand
) -> tuple[Measurements, bool]:
    """Runs every trial that is not finished, backbones first.

    Args:
      trials: of each run, one for each seed; backbones before the runs finetuned from them.
      directory: holds all trials.
      workers: how many trials run at a time.
      command: makes the command that starts a trial.

    Returns:
      The measurements of every run, and whether a signal cut the runs short. A trial whose
      backbone is not done waits for the next call.
    """
    ended: dict[str, Outcome] = {}
    stopped = False
    for finetuned in (False, True):
        stage = [of for run, of in trials.items() if bool(run.backbone) == finetuned]
        # The first seed of every model comes before the second seed of any, so that a table is
        # complete as early as possible.
        in_turn = (trial for seeds in zip(*stage, strict=True) for trial in seeds)
        ready = [one for one in in_turn if not finetuned or has_result(one.settings["init_from"])]
        if ready and not stopped:
            source = Listed(ready, directory)
            stopped = Runner(source, workers=workers, command=command).run()
            ended |= source.ended
    return look_at(trials, directory, ended), stopped


def look_at(trials: Trials, directory: Directory, ended: Mapping = {}) -> dict[Run, Measured]:
    """Collects measurements: of `ended` outcomes, by name, and of runs that earlier calls left."""
    measured = {}
    for run, of in trials.items():
        outcomes = [ended.get(one.name) or outcome_of(one, directory) for one in of]
        done = [directory.workdir(one.trial) for one in outcomes if one.status == Status.DONE]
        measured[run] = Measured(tuple(outcomes), tuple(done))
    return measured


def outcome_of(trial: Trial, directory: Directory) -> Outcome:
    """Returns the outcome that an earlier call left; a trial of a diverged backbone is diverged."""
    left, backbone = directory.outcome(trial), trial.settings.get("init_from")
    if left.status != Status.DONE and backbone and diverged(backbone):
        return Outcome(trial, Status.DIVERGED)
    return left
