"""Runs trials, several at a time, each in a separate process.

A trial that has a result.json is finished and is not started again. A trial that was interrupted
resumes from its checkpoint, as any run does. So the same call resumes a sweep that was killed.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from widenet_jax import errors
from widenet_jax.ops.sweep.directory import Directory, locked
from widenet_jax.ops.sweep.trials import FAILURES, MakeCommand, Outcome, Status, Trial

POLL_SECONDS = 0.5
NEWS_SECONDS = 30.0
# What a signal does to trials on this machine, and to those that the launcher follows elsewhere.
SAVING = "running trials save first; run the same command again to resume"
LEAVING = (
    "launched runs go on, and their TPUs cost money; run the same command again to follow them. "
    "logs/TRIAL.log names the command that deletes its TPU"
)
# Exit codes of a trial that was stopped: after saving, or before it handled signals.
STOPPED_CODES = (errors.STOPPED, errors.INTERRUPTED, -signal.SIGTERM)


class Listed:
    """Trials for a `Runner`, known beforehand; a search lengthens its list.

    Args:
      trials: in the order to run them.
      directory: of the sweep.
      only: the index of the one trial to run; None: all.

    Attributes:
      total: number of trials to run, for the progress lines.

    Raises:
      BadInputError: the directory cannot be made.
    """

    def __init__(self, trials: Sequence[Trial], directory: Directory, *, only: int | None = None):
        directory.make()
        self.trials, self.directory = list(trials), directory
        self.left = list(trials) if only is None else [trials[only]]
        self.total = len(self.left)
        self.ended: dict[str, Outcome] = {}  # in this call

    def ask(self) -> Trial | None:
        """Returns the next trial, or None when there are no more."""
        return self.left.pop(0) if self.left else None

    def hopeless(self, trial: Trial) -> bool:
        """Tells whether to end a running trial early."""
        return False

    def tell(self, outcome: Outcome) -> None:
        """Receives the outcome of a trial that ended now or before."""
        self.ended[outcome.trial.name] = outcome

    def outcomes(self) -> list[Outcome]:
        """Returns the outcomes in the order of the trials; other sweeps may have finished some."""
        return [self.ended.get(one.name) or self.directory.outcome(one) for one in self.trials]

    def close(self) -> None:
        """Lets another process go on with the trials."""


class Runner:
    """Keeps workers busy with the trials of a list or a search.

    A worker is a generator that pauses while its trial runs, and is resumed every POLL_SECONDS.

    Args:
      source: of the trials.
      workers: how many trials run at a time.
      command: (trial, its workdir) -> the command that starts the trial.
    """

    def __init__(self, source: Listed, *, workers: int, command: MakeCommand):
        self.source, self.directory = source, source.directory
        self.workers, self.command = workers, command
        self.running: list[Trial] = []
        self.ended = 0
        self.signals: list[int] = []

    def run(self) -> bool:
        """Returns once no trial is left; True where a signal cut the sweep short."""
        news, reported = time.monotonic(), 0
        workers = [self.work() for _ in range(self.workers)]
        with noting_signals(self.signals):
            while workers := [worker for worker in workers if not next(worker, True)]:
                time.sleep(POLL_SECONDS)
                if len(self.signals) > reported:
                    reported = len(self.signals)
                    self.say(f"stopping: {LEAVING if self.directory.launched else SAVING}")
                if time.monotonic() - news > NEWS_SECONDS:
                    news = time.monotonic()
                    for trial in self.running:
                        if line := self.directory.last_line(trial):
                            self.say(f"{trial.name}: {line}")
        return bool(self.signals)

    def work(self) -> Iterator[None]:
        """Runs one trial after the other."""
        while not self.signals and (trial := self.source.ask()):
            outcome = yield from self.run_trial(trial)
            self.ended += 1
            self.source.tell(outcome)
            end = score_of(outcome.result)
            if outcome.status in FAILURES:
                end = f", exit code {outcome.exit_code}: {outcome.message}"
            self.say(f"{outcome.status} {trial.name}{end}")

    def run_trial(self, trial: Trial) -> Generator[None, None, Outcome]:
        """Runs a trial, unless it is finished; waits where an earlier sweep's process runs it.

        Terminates its process once for each signal: at the first it saves, at a second it ends. The
        process of a launched trial is its launcher, which ends without the run.
        """
        directory = self.directory
        # Held until both this process and its child close the file. A sweep that was killed may
        # have left the trial running.
        while (lock := locked(directory.log(trial, "lock"))) is None:
            if self.signals:
                return directory.outcome(trial)
            yield
        with lock:
            before = directory.outcome(trial)
            if before.status != Status.WAITING:
                return before
            self.say(f"start {trial.name}")
            with directory.log(trial).open("a") as log:
                process = subprocess.Popen(
                    self.command(trial, directory.workdir(trial)),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    pass_fds=[lock.fileno()],  # the lock lasts as long as the trial's process
                    start_new_session=True,  # the sweep receives Ctrl-C and passes it on
                )  # fmt: skip
        self.running.append(trial)
        pruned, passed_on = False, 0
        while process.poll() is None:
            yield
            if len(self.signals) > passed_on:
                passed_on += 1
                process.terminate()
            elif not pruned and self.source.hopeless(trial):
                pruned = True
                process.terminate()
        self.running.remove(trial)
        return self.outcome(trial, process.returncode, pruned=pruned)

    def outcome(self, trial: Trial, code: int, *, pruned: bool) -> Outcome:
        """Returns the outcome of a trial whose process has ended, and marks it in the directory."""
        directory = self.directory
        if code == 0 and directory.result(trial) is None:
            directory.log(trial, "handed_over").touch()
        if code in STOPPED_CODES:
            if pruned:
                directory.log(trial, "pruned").touch()
            return Outcome(trial, Status.PRUNED if pruned else Status.STOPPED, code)
        left = directory.outcome(trial)
        if code == 0:
            return left
        status = Status.DIVERGED if left.status == Status.DIVERGED else Status.FAILED
        return Outcome(trial, status, code, directory.last_line(trial))

    def say(self, text: str) -> None:
        """Prints a line with the number of trials that ended."""
        print(f"[{self.ended}/{self.source.total}] {text}", file=sys.stderr, flush=True)


def score_of(result: Mapping[str, Any]) -> str:
    """Formats the primary metric of a result.json: ": dev accuracy 0.9313"; "" without one."""
    name = result.get("primary_metric", {}).get("name", "")
    value, split = result.get(f"test_{name}"), result.get("split", "test")
    return "" if value is None else f": {split} {name.replace('_', ' ')} {value:.4f}"


@contextmanager
def noting_signals(into: list[int]) -> Iterator[None]:
    """Appends SIGTERM and Ctrl-C to `into`, instead of their usual effect, unless ignored."""
    before = {
        number: signal.signal(number, lambda got, _: into.append(got))
        for number in (signal.SIGTERM, signal.SIGINT)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
