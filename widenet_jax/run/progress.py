"""Progress for people: a bar on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Callable

import numpy as np
from tqdm import tqdm


class Progress:
    """A bar on a terminal, a line now and then in a log: step, images/s, time left, loss.

    Args:
      total_steps: of the run.
      start_step: where it (re)starts.
      batch_size: images a step.
      quiet: print nothing (hosts other than the first).
    """

    LINE_EVERY_SECONDS = 10.0

    def __init__(self, *, total_steps: int, start_step: int, batch_size: int, quiet: bool):
        self.total, self.step, self.batch_size = total_steps, start_step, batch_size
        self.quiet = quiet
        self.bar = None
        if not quiet and sys.stderr.isatty():
            self.bar = tqdm(total=total_steps, initial=start_step, unit="step", dynamic_ncols=True)
        self.started: float | None = None  # set by the first step: compiling is not training
        self.first_step = start_step
        self.paused = 0.0
        self.last_line = 0.0

    def advance(self, step: int, loss: Callable[[], float]) -> None:
        """`loss` is called only when something is shown: it may wait for the device."""
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
        rate = self.images_per_second()
        if self.bar:
            self.bar.set_postfix_str(f"{rate:,.0f} images/s, loss {loss():.4f}")
        else:
            left = (self.total - step) * self.batch_size / rate if rate else float("nan")
            self.note(
                f"step {step:,}/{self.total:,} ({step / self.total:.0%}), {rate:,.0f} images/s, "
                f"{duration_text(left)} left, loss {loss():.4f}"
            )

    def pause(self) -> "Pause":
        """`with progress.pause():` takes evaluation and saving out of the rate."""
        return Pause(self)

    def images_per_second(self) -> float:
        """Since the first step, which compiles; 0 before the second."""
        steps = self.step - self.first_step
        if self.started is None or not steps:
            return 0.0
        seconds = time.monotonic() - self.started - self.paused
        return steps * self.batch_size / max(seconds, 1e-9)

    def note(self, text: str) -> None:
        """A line that does not tear the bar."""
        if self.bar:
            self.bar.write(text, file=sys.stderr)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar:
            self.bar.close()


class Pause:
    def __init__(self, progress: Progress):
        self.progress = progress

    def __enter__(self) -> None:
        self.since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self.progress.started is not None:
            self.progress.paused += time.monotonic() - self.since


def duration_text(seconds: float) -> str:
    """65 -> "1m05s"; a rate not known yet gives "?"."""
    if not np.isfinite(seconds):
        return "?"
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"
