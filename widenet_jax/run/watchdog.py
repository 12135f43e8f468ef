"""A watchdog: says where every thread is when a run makes no progress, and can end it."""

import faulthandler
import os
import sys
import threading
import time


class Watchdog:
    """Expects `beat` now and then; otherwise prints the stacks of all threads to stderr.

    Args:
      dump_after_seconds: without a beat; again after as long again. 0: never.
      exit_after_seconds: without a beat the process ends with exit code 3. 0: never.
    """

    EXIT_CODE = 3

    def __init__(self, *, dump_after_seconds: float, exit_after_seconds: float):
        self.dump_after, self.exit_after = dump_after_seconds, exit_after_seconds
        self.what = "starting"
        self.last = time.monotonic()
        self.dumps = 0
        self.closed = threading.Event()
        limits = [seconds for seconds in (self.dump_after, self.exit_after) if seconds]
        if limits:
            threading.Thread(
                target=self._watch, args=(min(limits) / 4,), name="watchdog", daemon=True
            ).start()

    def beat(self, what: str) -> None:
        """`what` has just begun; named if nothing follows."""
        self.what, self.last, self.dumps = what, time.monotonic(), 0

    def _watch(self, interval: float) -> None:
        while not self.closed.wait(min(interval, 5.0)):
            silent = time.monotonic() - self.last
            due = self.dump_after and silent >= self.dump_after * (self.dumps + 1)
            end = self.exit_after and silent >= self.exit_after
            if due or end:
                self.dumps += 1
                print(
                    f"watchdog: no progress for {silent:.0f} s since {self.what}; where every "
                    "thread is:",
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            if end:
                print(
                    f"failed: no progress for {silent:.0f} s since {self.what} "
                    f"(config.watchdog.exit_after_seconds={self.exit_after:g}); the same command "
                    "goes on from the last checkpoint",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(self.EXIT_CODE)

    def close(self) -> None:
        self.closed.set()
