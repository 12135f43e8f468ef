"""Stop requests (SIGTERM, Ctrl-C, --max_seconds), and the watchdog of a run that hangs.

The first request stops the run at the next step boundary, after the state is saved. A second signal
ends the process at once. A thread receives the signals, so that they are noticed while the main
thread is inside compiled code. This module does not import JAX: it listens before JAX is loaded.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from widenet_jax.errors import INTERRUPTED, STOPPED, NoAccessError, RunFailedError, StoppedError

SIGNALS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
TIME_IS_UP = "time is up (--max_seconds)"
CLOSING_SECONDS = 5.0
STORE_SECONDS = 120.0
ASK_SECONDS = 20.0
# Signals this close together are one request: `timeout` signals a process and then its group.
SAME_SECONDS = 1.0
AGAIN = "Run the same command again"


class StopRequestedError(Exception):
    """Unwinds the stack to the place where the run saves its state."""


class Stop:
    """Tracks stop requests (SIGTERM, Ctrl-C, --max_seconds).

    Attributes:
      reason: None until a stop is requested.
      unsaved: there may be finished steps that no checkpoint holds. While there are none, a request
        ends the process at once.
      last_step_done: the run ends without a further step, whether or not a stop is requested.
      saved: the step of the newest checkpoint when the run began, 0 if there was none; None until
        this is known, and where nothing is trained.
    """

    def __init__(self):
        self.reason: str | None = None
        self.unsaved = False
        self.last_step_done = False
        self.saved: int | None = None
        self._waiting = False
        self._first_signal: float | None = None  # its time
        self._own_signals = 0
        self._jax_handler: int | None = None  # its address
        self._tell_hosts: Callable[[int], Any] | None = None
        self._ticks = 0
        self._pipe: int | None = None
        self._timer: threading.Timer | None = None
        self._hosts_stop = False
        self._handlers_before: dict[int, Any] = {}

    def listen(self) -> None:
        """Answers SIGTERM and Ctrl-C from now on until `close`. Called from the main thread."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._pipe = write
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as a shell's background jobs do
                self._handlers_before[number] = signal.signal(number, self._in_main_thread)
        threading.Thread(target=self._watch, args=(read,), name="stop", daemon=True).start()

    def close(self) -> None:
        """Restores the signal handlers; does nothing if `listen` was not called."""
        if self._timer:
            self._timer.cancel()
        if self._pipe is not None:
            for number, handler in self._handlers_before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            os.close(self._pipe)  # ends the thread
            self._pipe = None

    def after(self, seconds: float) -> None:
        """Requests a stop `seconds` from now; at once for 0 or less."""

        def ask() -> None:
            self._own_signals += 1
            self.reason = self.reason or TIME_IS_UP
            os.kill(os.getpid(), signal.SIGTERM)

        self._timer = threading.Timer(max(0.0, seconds), ask)
        self._timer.daemon = True
        self._timer.start()

    def keep_jax_handler(self) -> None:
        """Keeps the SIGTERM handler in C that `jax.distributed.initialize` has just installed.

        It makes all hosts agree on a step. It stays installed until `share` is called.
        """
        libc = ctypes.CDLL(None)
        libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
        self._jax_handler = libc.signal(signal.SIGTERM, None)
        libc.signal(signal.SIGTERM, self._jax_handler)

    def share(self, hosts: int) -> None:
        """Forwards a signal received by one host to all hosts.

        Called once the devices are open: libtpu may install a SIGTERM handler when it opens them,
        which would end the process. So this class installs its handlers again, also on one host.
        JAX's would swallow a second signal. So the first request is passed on to it, and no other.
        """
        for number in self._handlers_before:
            signal.signal(number, self._in_main_thread)
        if hosts > 1 and self._jax_handler:
            self._tell_hosts = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._jax_handler)

    def _watch(self, pipe: int) -> None:
        """Receives one byte for every signal, whatever the main thread does."""
        while received := os.read(pipe, 1):  # empty once the other end is closed
            number = received[0]
            if number not in SIGNALS:
                continue
            if number == signal.SIGTERM and self._own_signals:
                self._own_signals -= 1
                self._request(TIME_IS_UP)
            elif self._first_signal is None:
                self._first_signal = time.monotonic()
                self._request(SIGNALS[number])
            elif time.monotonic() - self._first_signal > SAME_SECONDS:
                end_process(f"{SIGNALS[number]} while stopping: ending at once", 128 + number)
        os.close(pipe)

    def _request(self, reason: str) -> None:
        alone = self._tell_hosts is None
        self.reason = reason
        if alone and not self.unsaved:
            end_process(f"stopped: {reason}; {self.nothing_new}", self.exit_code)
        later = f"another signal, {SAME_SECONDS:g} s later or more, ends at once"
        doing = "saving after this step, then stopping"
        if self.last_step_done:  # the evaluation may stop here, later the run finishes
            doing = "the last step is done; saving, then ending"
        say(f"{reason}: {doing}; {later}")
        if not alone:
            self._tell_hosts(signal.SIGTERM)

    def _in_main_thread(self, number: int, _: Any) -> None:
        """Interrupts a wait. Several hosts do not interrupt: they must stop at the same step."""
        if self._waiting and self._tell_hosts is None:
            self._waiting = False
            self.reason = self.reason or SIGNALS[signal.Signals(number)]  # may precede the thread
            raise StopRequestedError

    @property
    def nothing_new(self) -> str:
        """Says that there is nothing to save, and what is on disk."""
        since = f" since step {self.saved:,}" if self.saved else ""
        return f"nothing new to save{since}. {AGAIN}"

    @property
    def exit_code(self) -> int:
        """INTERRUPTED after Ctrl-C on this host, STOPPED after every other request."""
        return INTERRUPTED if self.reason == SIGNALS[signal.SIGINT] else STOPPED

    def check(self) -> None:
        """Raises StopRequestedError if a stop was requested.

        All hosts call it at the same places, and it raises on all of them or on none.
        """
        requested = self.reason is not None
        if self._tell_hosts:
            from jax.experimental import multihost_utils

            self._ticks += 1
            reached = multihost_utils.reached_preemption_sync_point(self._ticks)
            requested = self._hosts_stop = self._hosts_stop or reached
        if requested:
            raise StopRequestedError

    def reading(self, batches: Any) -> Iterator[Any]:
        """Yields the batches and closes them at the end; a stop request interrupts the wait.

        After a request, closing may take CLOSING_SECONDS: a reader that hangs must not keep the
        process from ending.
        """
        try:
            while True:
                self._waiting = True
                try:
                    if self.reason and self._tell_hosts is None:
                        raise StopRequestedError
                    batch = next(batches, None)
                finally:
                    self._waiting = False
                if batch is None:
                    return
                yield batch
        finally:
            if self.reason or self._hosts_stop:
                closing = threading.Thread(target=batches.close, daemon=True)
                closing.start()
                closing.join(CLOSING_SECONDS)
            else:
                batches.close()

    def stopped(self, step: int) -> StoppedError:
        """Returns the error to raise once the state is saved; step 0: there was none to save."""
        reason = self.reason or "another host received a stop request"
        saved = f"saved after step {step:,}. {AGAIN} to resume"
        return StoppedError(f"{reason}; {saved if step else self.nothing_new}")


def say(text: str) -> None:
    """Prints a line to stderr, in one piece.

    `print` writes the end of a line by itself, and another thread's line may come before it.
    """
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def end_process(text: str, code: int = STOPPED) -> NoReturn:
    """Ends the process at once, without waiting for threads, readers or other hosts.

    Skips destructors and exit handlers; only where one of those may hang.
    """
    say(text)
    sys.stdout.flush()
    os._exit(code)


class Watchdog:
    """Expects regular calls of `beat`; without them prints the stacks of all threads to stderr.

    Where an object store is waited for, a line says so before. The process ends where it does not
    answer: TensorStore and ArrayRecord, which have requests of their own, ask for longer.

    Args:
      dump_after_seconds: print the stacks this long after the last beat, and again each time as
        much more time has passed. 0: never.
      exit_after_seconds: end the process with exit code 3 this long after the last beat. 0: never.
      ask: asks the run's object stores; raises RunFailedError if they do not answer, and
        NoAccessError if they refuse.
    """

    EXIT_CODE = 3

    def __init__(
        self,
        *,
        dump_after_seconds: float,
        exit_after_seconds: float,
        ask: Callable[[], object] = lambda: None,
    ):
        self.dump_after, self.exit_after = dump_after_seconds, exit_after_seconds
        self.what, self.store, self.ask = "starting", "", ask
        self.last = time.monotonic()
        self.dumps = self.asked = 0
        self.closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self, what: str, *, store: str = "") -> None:
        """Records that `what` has just begun; the next report names it.

        Args:
          what: "saving after step 100".
          store: a place on an object store that is waited for; a line says so after STORE_SECONDS.
        """
        self.what, self.store, self.last = what, store, time.monotonic()
        self.dumps = self.asked = 0

    def _watch(self) -> None:
        limits = (seconds for seconds in (self.dump_after, self.exit_after) if seconds)
        interval = min([5.0, *(seconds / 4 for seconds in limits)])
        last, ticked, silent = self.last, self.last, 0.0
        while not self.closed.wait(interval):
            last, before, ticked = self.last, max(last, ticked), time.monotonic()
            # No more than an interval: this thread may have been stopped with the process.
            silent = min(ticked - last, silent + min(ticked - before, interval))
            due = self.dump_after and silent >= self.dump_after * (self.dumps + 1)
            end = self.exit_after and silent >= self.exit_after
            stuck = f"no progress for {silent:.0f} s since {self.what}"
            if self.store and silent >= STORE_SECONDS:
                say(f"watchdog: {stuck}: waiting for {self.store}")
                self.store = ""
            if silent >= ASK_SECONDS * (self.asked + 1):
                self.asked += 1
                self._ask(stuck, silent)
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

    def _ask(self, stuck: str, silent: float) -> None:
        last = self.last
        try:
            self.ask()
        except RunFailedError as error:
            if self.last == last:
                end_process(f"failed: {stuck}: {error}", self.EXIT_CODE)
        except NoAccessError as error:  # a request of the run itself tells so, mostly at once
            if self.last == last and silent >= STORE_SECONDS:
                end_process(f"error: {stuck}: {error}", 2)

    def close(self) -> None:
        """Ends the thread."""
        self.closed.set()
