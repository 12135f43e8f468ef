"""A watchdog: reports, with the stacks of all threads, that a run makes no progress."""

import faulthandler
import os
import sys
import threading
import time

from widenet_jax.run.stopping import say


class Watchdog:
    """Expects regular calls of `beat`; without them prints the stacks of all threads to stderr.

    Args:
      dump_after_seconds: print the stacks this long after the last beat, and again each time as
        much more time has passed. 0: never.
      exit_after_seconds: end the process with exit code 3 this long after the last beat. 0: never.
    """

    EXIT_CODE = 3

    def __init__(self, *, dump_after_seconds: float, exit_after_seconds: float):
        self.dump_after, self.exit_after = dump_after_seconds, exit_after_seconds
        self.what = "starting"
        self.last = time.monotonic()
        self.dumps = 0
        self.closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self, what: str) -> None:
        """Records that `what` has just begun; the next report names it."""
        self.what, self.last, self.dumps = what, time.monotonic(), 0

    def _watch(self) -> None:
        limits = (seconds for seconds in (self.dump_after, self.exit_after) if seconds)
        interval = min([5.0, *(seconds / 4 for seconds in limits)])
        while not self.closed.wait(interval):
            silent = time.monotonic() - self.last
            due = self.dump_after and silent >= self.dump_after * (self.dumps + 1)
            end = self.exit_after and silent >= self.exit_after
            stuck = f"no progress for {silent:.0f} s since {self.what}"
            if due or end:
                self.dumps += 1
                say(f"watchdog: {stuck}; stacks of all threads:")
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            if end:
                say(
                    f"failed: {stuck} (config.watchdog.exit_after_seconds={self.exit_after:g}); "
                    "run the same command again to resume from the last checkpoint, if there is "
                    "one, or to start"
                )
                os._exit(self.EXIT_CODE)  # the main thread hangs, so nothing can be closed

    def close(self) -> None:
        """Ends the thread."""
        self.closed.set()
