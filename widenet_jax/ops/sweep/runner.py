"""Runs trials, several at a time, each in a separate process.

A trial that has a result.json is finished and is not started again. A trial that was interrupted
resumes from its checkpoint, as any run does. So the same call resumes a sweep that was killed.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from widenet_jax import errors
from widenet_jax.ops.sweep.axes import Space
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.trials import FAILED, PRUNED, STOPPED, WAITING, Outcome, Trial

POLL_SECONDS = 0.1
JUDGE_SECONDS = 1.0
NEWS_SECONDS = 30.0
# What a signal does to trials on this machine, and to those that the launcher follows elsewhere.
SAVING = "running trials save first; run the same command again to resume"
LEAVING = (
    "launched runs go on, and their TPUs cost money; run the same command again to follow them. "
    "logs/TRIAL.log names the command that deletes its TPU"
)
# Exit codes of a trial that was told to stop: after saving, or before it handled signals.
STOPPED_CODES = (errors.STOPPED, errors.INTERRUPTED, -signal.SIGTERM)


class TrialSource:
    """Base class: supplies trials to a `Runner` and receives their outcomes.

    Attributes:
      directory: of the sweep.
      total: number of trials to supply, for the progress lines.
      space: what a search draws settings from; empty for a list of trials.
    """

    directory: Directory
    total: int
    space: Space

    def ask(self) -> Trial | None:
        """Returns the next trial, or None when there are no more."""

    def hopeless(self, trial: Trial) -> bool:
        """Tells whether to end a running trial early."""
        return False

    def tell(self, outcome: Outcome) -> None:
        """Receives the outcome of a trial that ended now or before."""

    def outcomes(self) -> list[Outcome]:
        """Returns the state of every trial."""

    def close(self) -> None:
        """Lets another process go on with the trials."""


class Listed(TrialSource):
    """Trials known beforehand; with `only`, it supplies that index alone.

    Writes the trials down in the directory.

    Raises:
      BadInputError: as `Directory.remember`.
    """

    def __init__(self, trials: Sequence[Trial], directory: Directory, only: int | None = None):
        directory.make()
        directory.remember(trials)
        self.trials, self.directory, self.space = trials, directory, {}
        self.left = list(trials) if only is None else [trials[only]]
        self.total = len(self.left)
        self.told: dict[str, Outcome] = {}

    def ask(self) -> Trial | None:
        return self.left.pop(0) if self.left else None

    def tell(self, outcome: Outcome) -> None:
        self.told[outcome.trial.name] = outcome

    def outcomes(self) -> list[Outcome]:
        """Returns the outcomes in the order of the trials; other sweeps may have finished some."""
        return [self.told.get(trial.name) or self.directory.outcome(trial) for trial in self.trials]


@dataclass
class Slot:
    """A worker's trial.

    Attributes:
      process: runs the trial; None while a process of an earlier sweep still runs it.
      pruned: the trial was told to end early.
      look_again: time of the next check whether the trial should be pruned.
    """

    trial: Trial
    process: subprocess.Popen | None = None
    pruned: bool = False
    look_again: float = 0.0


class Runner:
    """Keeps workers busy with the trials of a source.

    Args:
      source: of the trials.
      workers: how many trials run at a time.
      command: (trial, its workdir) -> the command that starts the trial.
    """

    def __init__(
        self, source: TrialSource, *, workers: int, command: Callable[[Trial, str], list[str]]
    ):
        self.source, self.directory = source, source.directory
        self.workers, self.command = workers, command
        self.slots: list[Slot] = []
        self.exhausted = False  # the source has no more trials
        self.ended = 0
        self.signals: list[int] = []
        self.passed_on = 0

    def run(self) -> bool:
        """Returns once no trial is left; True where a signal cut the sweep short."""
        news = time.monotonic()
        with noting_signals(self.signals):
            while True:
                self.fill()
                for slot in list(self.slots):
                    self.look_at(slot)
                self.pass_signals_on()
                if not self.slots and (self.exhausted or self.signals):
                    return bool(self.signals)
                if time.monotonic() - news > NEWS_SECONDS:
                    news = time.monotonic()
                    self.print_news()
                time.sleep(POLL_SECONDS)

    def fill(self) -> None:
        """Gives every free worker a trial; finished trials free it again at once."""
        while not self.signals and len(self.slots) < self.workers:
            trial = self.source.ask()
            if trial is None:
                self.exhausted = True
                return
            slot = Slot(trial)
            self.slots.append(slot)
            self.begin(slot)

    def begin(self, slot: Slot) -> None:
        """Starts the trial, unless it is finished or an earlier sweep's process still runs it."""
        directory, trial = self.directory, slot.trial
        lock = directory.lock(trial)
        if lock is None:
            return
        with lock:
            before = directory.outcome(trial)
            if before.status != WAITING:
                self.end(slot, before)
                return
            self.say(f"start {trial.name}")
            with directory.log(trial).open("a") as log:
                slot.process = subprocess.Popen(
                    self.command(trial, directory.workdir(trial)),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    pass_fds=[lock.fileno()],  # the lock lasts as long as the trial's process
                    start_new_session=True,  # the sweep receives Ctrl-C and passes it on
                )  # fmt: skip

    def look_at(self, slot: Slot) -> None:
        """Records the end of a finished trial; prunes a trial that its search gives up."""
        if slot.process is None:
            if self.signals:
                self.slots.remove(slot)
            else:
                self.begin(slot)
        elif slot.process.poll() is not None:
            self.end(slot, self.outcome(slot))
        elif not slot.pruned and time.monotonic() > slot.look_again:
            slot.look_again = time.monotonic() + JUDGE_SECONDS
            if self.source.hopeless(slot.trial):
                slot.pruned = True
                slot.process.terminate()

    def outcome(self, slot: Slot) -> Outcome:
        """Returns the outcome of a trial whose process has ended."""
        trial, code = slot.trial, slot.process.returncode
        if code == 0:
            if self.directory.result(trial) is None:
                self.directory.handed_over(trial).touch()
            return replace(self.directory.outcome(trial), exit_code=0)
        if code in STOPPED_CODES:
            return Outcome(trial, PRUNED if slot.pruned else STOPPED, code)
        return Outcome(trial, FAILED, code, self.directory.last_line(trial))

    def end(self, slot: Slot, outcome: Outcome) -> None:
        """Frees the worker and reports the outcome."""
        self.slots.remove(slot)
        self.ended += 1
        self.source.tell(outcome)
        found = score_of(outcome.result)
        if outcome.status == FAILED:
            found = f", exit code {outcome.exit_code}: {outcome.message}"
        self.say(f"{outcome.status} {outcome.trial.name}{found}")

    def pass_signals_on(self) -> None:
        """Terminates the trials once for each signal: at the first they save, at a second end.

        The process of a launched trial is its launcher, which ends without the run.
        """
        while self.passed_on < len(self.signals):
            self.passed_on += 1
            self.say(f"stopping: {LEAVING if self.directory.launched else SAVING}")
            for slot in self.slots:
                if slot.process:
                    slot.process.terminate()

    def print_news(self) -> None:
        """Prints the last line of every running trial."""
        for slot in self.slots:
            line = self.directory.last_line(slot.trial)
            self.say(f"{slot.trial.name}: {line if slot.process else 'an earlier sweep runs it'}")

    def say(self, text: str) -> None:
        """Prints a line with the number of trials that ended."""
        print(f"[{self.ended}/{self.source.total}] {text}", file=sys.stderr, flush=True)


def score_of(result: Mapping[str, Any]) -> str:
    """Formats the primary metric of a result.json: ": dev accuracy 0.9313"; "" without one.

    Results of earlier versions name no primary metric, which is accuracy, and no split.
    """
    name = result.get("primary_metric", {}).get("name", "accuracy")
    value = result.get(f"test_{name}")
    if value is None:
        return ""
    return f": {result.get('split', 'test')} {name.replace('_', ' ')} {value:.4f}"


@contextmanager
def noting_signals(into: list[int]) -> Iterator[None]:
    """Appends SIGTERM and Ctrl-C to `into`, instead of their usual effect."""
    before = {
        number: signal.signal(number, lambda got, _: into.append(got))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
