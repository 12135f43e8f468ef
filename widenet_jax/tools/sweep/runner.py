"""Runs trials, several at a time, each as a process of its own.

A trial that has a result.json is finished and not started again; one that was cut off resumes by
itself, since a run does. So a sweep that was killed goes on by the same call.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from widenet_jax.errors import BadInputError
from widenet_jax.run.stopping import EXIT_CODE
from widenet_jax.tools.sweep.directory import Directory
from widenet_jax.tools.sweep.trials import Trial

POLL_SECONDS = 0.1
JUDGE_SECONDS = 1.0
NEWS_SECONDS = 30.0
# Of a trial that was told to stop: by itself, or before it listened.
STOPPED_CODES = (EXIT_CODE, -signal.SIGTERM)

DONE, FAILED, STOPPED, PRUNED = "done", "failed", "stopped", "pruned"
HANDED_OVER, WAITING = "handed over", "waiting"


@dataclass
class Outcome:
    """How a trial stands.

    Attributes:
      status: done; failed; stopped (saved, goes on next time); pruned; handed over (to a scheduler
        that runs it later); waiting (not started).
      message: of a failed one: the last line that it printed.
      result: of one that is done: its result.json.
    """

    trial: Trial
    status: str
    exit_code: int | None = None
    message: str = ""
    result: dict[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """Where trials come from and what becomes of them."""

    def ask(self) -> Trial | None:
        """The next trial; None once there is no more."""

    def hopeless(self, trial: Trial) -> bool:
        """Whether to end a running trial early."""

    def tell(self, outcome: Outcome) -> None:
        """A trial ended, or was found to have ended before."""

    def outcomes(self) -> list["Outcome"]:
        """How every trial stands."""


class Listed:
    """Trials known beforehand; with `only`, just the one of that index is run."""

    def __init__(self, trials: Sequence[Trial], directory: Directory, only: int | None = None):
        self.trials, self.directory = trials, directory
        self.left = list(trials) if only is None else [trials[only]]
        self.told: dict[str, Outcome] = {}

    def ask(self) -> Trial | None:
        return self.left.pop(0) if self.left else None

    def hopeless(self, trial: Trial) -> bool:
        return False

    def tell(self, outcome: Outcome) -> None:
        self.told[outcome.trial.name] = outcome

    def outcomes(self) -> list[Outcome]:
        """In the order of the trials; others than this sweep may have finished some."""
        return [self.told.get(trial.name) or self.found(trial) for trial in self.trials]

    def found(self, trial: Trial) -> Outcome:
        result = self.directory.result(trial)
        return Outcome(trial, DONE, result=result) if result else Outcome(trial, WAITING)


@dataclass
class Slot:
    """A trial that holds one of the workers."""

    trial: Trial
    process: subprocess.Popen | None = None  # None: another process still runs the trial
    pruned: bool = False
    look_again: float = 0.0  # when to ask whether it is hopeless


def run_trials(
    trials: Sequence[Trial],
    directory: Directory,
    *,
    workers: int = 1,
    command: Callable[[Trial, str], list[str]] = Trial.command,
) -> tuple[list[Outcome], bool]:
    """Runs what is not finished yet.

    Args:
      trials: as `expand` makes them; lists of several configs may be concatenated.
      directory: of the sweep.
      workers: how many run at a time.
      command: what starts a trial; by default a run on this machine.

    Returns:
      Every trial's outcome, in the order given; whether a signal cut them short.
    """
    directory.make()
    directory.remember(trials)
    listed = Listed(trials, directory)
    runner = Runner(listed, directory, workers=workers, command=command, total=len(trials))
    stopped = runner.run()
    return listed.outcomes(), stopped


class Runner:
    """Args:
    source: of the trials.
    directory: of the sweep.
    workers: how many trials run at a time.
    command: what starts a trial; by default a run on this machine.
    total: how many trials there are, for the progress lines.
    """

    def __init__(
        self,
        source: Source,
        directory: Directory,
        *,
        workers: int,
        command: Callable[[Trial, str], list[str]] = Trial.command,
        total: int = 0,
    ):
        if workers < 1:
            raise BadInputError(f"--workers={workers} must be at least 1")
        self.source, self.directory, self.workers = source, directory, workers
        self.command = command
        self.total = total
        self.slots: list[Slot] = []
        self.exhausted = False  # the source has no more
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
                    self.tell_news()
                time.sleep(POLL_SECONDS)

    def fill(self) -> None:
        """Gives free workers a trial; finished ones pass through."""
        while not self.signals and len(self.slots) < self.workers:
            trial = self.source.ask()
            if trial is None:
                self.exhausted = True
                return
            slot = Slot(trial)
            self.slots.append(slot)
            self.begin(slot)

    def begin(self, slot: Slot) -> None:
        """Starts the trial, unless it is finished or still running from before."""
        directory, trial = self.directory, slot.trial
        lock = directory.lock(trial)
        if lock is None:
            return
        result = directory.result(trial)
        if result is not None:
            self.end(slot, Outcome(trial, DONE, result=result))
        elif directory.handed_over(trial).exists():
            self.end(slot, Outcome(trial, HANDED_OVER))
        else:
            self.say(f"start {trial.name}")
            with directory.log(trial).open("a") as log:
                slot.process = subprocess.Popen(
                    self.command(trial, directory.workdir(trial)),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    pass_fds=[lock.fileno()],  # so that the lock lasts as long as the trial
                    start_new_session=True,  # Ctrl-C is for the sweep, which passes it on
                )  # fmt: skip
        lock.close()

    def look_at(self, slot: Slot) -> None:
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
        """Of a trial whose process has ended."""
        trial, code = slot.trial, slot.process.returncode
        result = self.directory.result(trial)
        if code == 0 and result is not None:
            return Outcome(trial, DONE, 0, result=result)
        if code == 0:
            self.directory.handed_over(trial).touch()
            return Outcome(trial, HANDED_OVER, 0)
        if code in STOPPED_CODES:
            return Outcome(trial, PRUNED if slot.pruned else STOPPED, code)
        return Outcome(trial, FAILED, code, self.directory.last_line(trial))

    def end(self, slot: Slot, outcome: Outcome) -> None:
        self.slots.remove(slot)
        self.ended += 1
        self.source.tell(outcome)
        accuracy = outcome.result.get("test_accuracy")
        found = f": test accuracy {accuracy:.2%}" if accuracy is not None else ""
        if outcome.status == FAILED:
            found = f", exit code {outcome.exit_code}: {outcome.message}"
        self.say(f"{outcome.status} {outcome.trial.name}{found}")

    def pass_signals_on(self) -> None:
        """Every signal goes to the trials: at the first they save, at a second they end."""
        while self.passed_on < len(self.signals):
            self.passed_on += 1
            self.say("stopping: the running trials save first; the same command goes on from there")
            for slot in self.slots:
                if slot.process:
                    slot.process.terminate()

    def tell_news(self) -> None:
        for slot in self.slots:
            line = self.directory.last_line(slot.trial)
            self.say(f"{slot.trial.name}: {line if slot.process else 'an earlier sweep runs it'}")

    def say(self, text: str) -> None:
        of = f"{self.ended}/{self.total}" if self.total else self.ended
        print(f"[{of}] {text}", file=sys.stderr, flush=True)


@contextmanager
def noting_signals(into: list[int]) -> Iterator[None]:
    """SIGTERM and Ctrl-C are noted in `into`, and do nothing else."""
    before = {
        number: signal.signal(number, lambda got, _: into.append(got))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
