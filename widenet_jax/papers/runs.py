"""Runs the trials of experiments and collects their measurements."""

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from etils import epath

from widenet_jax.ops.sweep.directory import Directory, diverged, has_result
from widenet_jax.ops.sweep.runner import Listed, Runner
from widenet_jax.ops.sweep.trials import DONE, FAILED, MakeCommand, Outcome, Trial
from widenet_jax.papers.experiment import Metric, PaperExperiment
from widenet_jax.papers.scales import Run, Scale, runs_of
from widenet_jax.run.metrics import JsonLines

Trials = Mapping[Run, Sequence[Trial]]  # of each run, one for each seed
DIVERGED = "diverged"
IMAGES = "images"  # what a result.json without "unit" counts


@dataclass(frozen=True)
class Measured:
    """The measurements of one run over its seeds.

    Attributes:
      outcomes: one for each seed; DIVERGED where numbers stopped being finite.
      workdirs: of the seeds that are done.
      rate: units a second in training, the median over all lines of timing.jsonl, whatever else
        the machine was doing; None before the first line.
      training: means of the training metrics over the last tenth of the steps and the seeds that
        are done, by name.
    """

    outcomes: tuple[Outcome, ...]
    workdirs: tuple[str, ...] = ()
    rate: float | None = None
    training: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> list[Outcome]:
        """The seeds that are done or diverged."""
        return [outcome for outcome in self.outcomes if outcome.status in (DONE, DIVERGED)]

    @property
    def statuses(self) -> list[str]:
        """One for each seed."""
        return [outcome.status for outcome in self.outcomes]

    @property
    def results(self) -> list[dict]:
        """The result.json of each seed that is done."""
        return [outcome.result for outcome in self.outcomes if outcome.status == DONE]

    @property
    def params(self) -> int | None:
        """Number of unique parameters; None before a seed is done."""
        return self.results[0]["params"] if self.results else None

    @property
    def unit(self) -> str:
        """What `rate` counts."""
        return next((unit_of(result) for result in self.results), IMAGES)

    def values(self, metric: Metric) -> list[float]:
        """The test metric of every seed that ended, as the paper scales it; NaN: diverged."""
        name = f"test_{metric.name}"
        return [metric.scale * outcome.result.get(name, math.nan) for outcome in self.ended]


Measurements = Mapping[Run, Measured]


def mean_of(values: Sequence[float]) -> float | None:
    """Averages the finite values; NaN where none is finite, None where there is no value."""
    if not values:
        return None
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan


def std_of(values: Sequence[float]) -> float | None:
    """Standard deviation (n - 1) of the finite values; None for fewer than two."""
    finite = [value for value in values if math.isfinite(value)]
    return statistics.stdev(finite) if len(finite) > 1 else None


def carry_out(
    trials: Trials, directory: Directory, *, workers: int, command: MakeCommand, retry: bool = False
) -> tuple[Measurements, bool]:
    """Runs every trial that is not finished, backbones first.

    Args:
      trials: of each run, one for each seed; backbones before the runs finetuned from them.
      directory: holds all trials.
      workers: how many trials run at a time.
      command: makes the command that starts a trial.
      retry: also run trials that diverged; they resume from their last checkpoint. A trial that
        was handed over and has not diverged is left alone, as a scheduler may still hold it.

    Returns:
      The measurements of every run, and whether a signal cut the runs short. A trial whose
      backbone is not done waits for the next call.
    """
    outcomes: dict[str, Outcome] = {}
    stopped = False
    for finetuned in (False, True):
        stage = [of for run, of in trials.items() if bool(run.backbone) == finetuned]
        # The first seed of every model comes before the second seed of any, so that a table is
        # complete as early as possible.
        in_turn = [trial for seeds in zip(*stage, strict=True) for trial in seeds]
        ready = [trial for trial in in_turn if startable(trial, directory, retry)]
        for trial in ready:
            if diverged(directory.workdir(trial)):
                directory.handed_over(trial).unlink(missing_ok=True)
        if ready and not stopped:
            source = Listed(ready, directory)
            stopped = Runner(source, workers=workers, command=command).run()
            outcomes |= source.told
    return look_at(trials, directory, outcomes), stopped


def look_at(trials: Trials, directory: Directory, new: Mapping = {}) -> dict[Run, Measured]:
    """Collects measurements: of `new` outcomes, by name, and of what earlier calls left."""
    return {
        run: gather([new.get(t.name) or found(t, directory) for t in of], directory)
        for run, of in trials.items()
    }


def startable(trial: Trial, directory: Directory, retry: bool) -> bool:
    """Tells whether the trial's backbone is done and the trial may run (again)."""
    backbone = trial.settings.get("init_from")
    ready = backbone is None or has_result(backbone)
    return ready and (retry or not diverged(directory.workdir(trial)))


def found(trial: Trial, directory: Directory) -> Outcome:
    """Returns the outcome that an earlier call left; a trial of a diverged backbone is diverged."""
    left = directory.outcome(trial)
    places = [directory.workdir(trial), trial.settings.get("init_from")]
    if left.status != DONE and any(place and diverged(place) for place in places):
        return Outcome(trial, DIVERGED)
    return left


def gather(outcomes: Sequence[Outcome], directory: Directory) -> Measured:
    """Collects the measurements of one run's seeds."""
    outcomes = [
        Outcome(one.trial, DIVERGED)
        if one.status == FAILED and diverged(directory.workdir(one.trial))
        else one
        for one in outcomes
    ]
    done = [one for one in outcomes if one.status == DONE]
    workdirs = [directory.workdir(one.trial) for one in done]
    rates = [
        line[f"{unit_of(one.result)}_per_second"]
        for one, workdir in zip(done, workdirs, strict=True)
        for line in JsonLines(epath.Path(workdir) / "timing.jsonl").read()
    ]
    seeds = [means for workdir in workdirs if (means := last_training_means(workdir))]
    rate = statistics.median(rates) if rates else None
    return Measured(tuple(outcomes), tuple(workdirs), rate, means_by_name(seeds))


def unit_of(result: Mapping) -> str:
    """Returns the unit that the run of a result.json counts: images, sequences or tokens."""
    return result.get("unit", IMAGES)


def last_training_means(workdir: str) -> dict[str, float]:
    """Averages the training metrics of metrics.jsonl over the last tenth of the steps."""
    lines = JsonLines(epath.Path(workdir) / "metrics.jsonl").read()
    lines = [line for line in lines if line["split"] == "train"]
    return means_by_name([line for line in lines if line["step"] > 0.9 * lines[-1]["step"]])


def means_by_name(records: Sequence[Mapping]) -> dict[str, float]:
    """Averages every number that all records have."""
    numbers = [{k for k, v in record.items() if isinstance(v, int | float)} for record in records]
    names = set.intersection(*numbers) if numbers else set()
    return {name: statistics.fmean(record[name] for record in records) for name in sorted(names)}


def seeds_of(
    experiments: Sequence[PaperExperiment], scale: Scale, known: Mapping[str, Mapping]
) -> int:
    """Counts the seeds with which experiments ran.

    Tables share runs, so that a run may have more seeds than the table asked for. The seeds of a
    table are those of its run with the fewest. A run finetuned from a backbone does not count, as
    it is not started where the backbone failed.

    Args:
      experiments: with the rows that are asked for.
      scale: of the runs.
      known: trials by name, as `Directory.known` returns them.

    Returns:
      The number of seeds of the experiment that has the most; 0 where none ran.
    """
    of_config: dict[str, int] = {}
    for one in known.values():
        config, settings = one["config"], one["settings"]
        if "init_from" not in settings:
            of_config[config] = max(of_config.get(config, 0), 1 + settings["seed"])
    counts = [0]
    for experiment in experiments:
        first = [run for run in runs_of(scale, [experiment]) if run.backbone is None]
        ran = [of_config.get(f"{run.stage.config}:{run.variant}", 0) for run in first]
        counts.append(min(filter(None, ran), default=0))
    return max(counts)


def with_known_flags(
    trials: Trials, known: Mapping[str, Mapping]
) -> tuple[Trials, list[str], list[str]]:
    """Gives trials the flags that they ran with.

    Args:
      trials: made without fields of the command line.
      known: trials by name, as `Directory.known` returns them.

    Returns:
      The trials, the fields that all of them were given, and, where trials were given different
      fields, no fields but a text for each set of them.
    """
    found, given = {}, {}
    for one, of in trials.items():
        found[one] = []
        for trial in of:
            flags = known.get(trial.name, {}).get("flags", trial.flags)
            if trial.name in known:
                given[tuple(flags[len(trial.flags) :])] = None  # after those of its stage
            found[one].append(replace(trial, flags=tuple(flags)))
    if len(given) > 1:
        return found, [], [shlex.join(fields) or "none" for fields in given]
    return found, [field for fields in given for field in fields], []
