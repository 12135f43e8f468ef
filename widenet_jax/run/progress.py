"""Progress for people: a bar on a terminal, a line every few seconds in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from tqdm import tqdm

from widenet_jax.run.stopping import say


class Progress:
    """Shows the step, the rate, the time left and the loss: a bar on a terminal, lines in a log.

    Args:
      total_steps: the last step of the run.
      start_step: the step after which this process starts or resumes.
      batch_size: units per step.
      unit: what the task counts, in the plural, as `Task.unit` names it.
      quiet: print nothing (hosts whose output is not followed).
    """

    LINE_EVERY_SECONDS = 10.0

    def __init__(
        self, *, total_steps: int, start_step: int, batch_size: int, unit: str, quiet: bool
    ):
        self.total, self.step, self.batch_size = total_steps, start_step, batch_size
        self.unit, self.quiet = unit, quiet
        self.bar = None
        if not quiet and sys.stderr.isatty():
            self.bar = tqdm(total=total_steps, initial=start_step, unit="step", dynamic_ncols=True)
        self.started: float | None = None  # set by the first step, so that compiling does not count
        self.first_step = start_step
        self.paused = 0.0
        self.last_line = 0.0

    def advance(self, step: int, shown: Callable[[], str]) -> None:
        """Counts a step. Calls `shown`, which may wait for the device, only to show its text."""
        now = time.monotonic()
        if self.started is None:
            self.started, self.first_step, self.last_line = now, step, now
        done, self.step = step - self.step, step
        if self.quiet:
            return
        due = now - self.last_line >= (0.5 if self.bar else self.LINE_EVERY_SECONDS)
        if self.bar:
            self.bar.update(done)
        if not (due or step == self.total):
            return
        self.last_line = now
        rate = self.per_second()
        if self.bar:
            self.bar.set_postfix_str(f"{rate:,.0f} {self.unit}/s, {shown()}")
        else:
            left = (
                timedelta(seconds=int((self.total - step) * self.batch_size / rate))
                if rate
                else "?"
            )
            self.note(
                f"step {step:,}/{self.total:,} ({step / self.total:.0%}), "
                f"{rate:,.0f} {self.unit}/s, {left} left, {shown()}"
            )

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Excludes the time spent inside from the rate: evaluation, saving."""
        since = time.monotonic()
        try:
            yield
        finally:
            if self.started is not None:
                self.paused += time.monotonic() - since

    def per_second(self) -> float:
        """Returns units per second since the first step, which compiles; 0 before the second."""
        steps = self.step - self.first_step
        if self.started is None or not steps:
            return 0.0
        seconds = time.monotonic() - self.started - self.paused
        return steps * self.batch_size / max(seconds, 1e-9)

    def note(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self.bar:
            self.bar.write(text, file=sys.stderr)
        elif not self.quiet:
            say(text)

    def close(self) -> None:
        """Leaves the bar as it is and ends its line."""
        if self.bar:
            self.bar.close()
