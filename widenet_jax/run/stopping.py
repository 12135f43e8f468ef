"""Stopping in time: SIGTERM, as preemption sends it, and --max_seconds.

The first request is answered at the next safe moment, once the state is saved; a second SIGTERM
ends the process at once. A thread does the listening, so that both are noticed also while the main
thread is inside compiled code. Imports no JAX: it listens from the first moment on.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from widenet_jax.errors import StoppedError

EXIT_CODE = 143  # exit code: what shells report of a process that SIGTERM ended
SIGTERM = signal.SIGTERM
TIME_IS_UP = "time is up (--max_seconds)"
CLOSING_SECONDS = 5.0
SAME_SECONDS = 1.0  # `timeout`, for one, signals a process and then its group: that is one request
AGAIN = "The same command goes on from there"
NOTHING = "there was nothing new to save. The same command begins where this one did"


class StopRequestedError(Exception):
    """Unwinds from wherever the run is to where it saves."""


class Stop:
    """Whether this run was asked to stop.

    Attributes:
      reason: why, or None as long as nobody has asked.
      unsaved: there may be finished steps that no checkpoint holds. Before there are any, a
        request ends the process at once.
    """

    def __init__(self):
        self.reason: str | None = None
        self.unsaved = False
        self._waiting = False
        self._told: float | None = None  # when the first SIGTERM came
        self._own_signals = 0
        self._tell_hosts: Callable[[int], Any] | None = None
        self._ticks = 0
        self._pipe: int | None = None
        self._timer: threading.Timer | None = None
        self._hosts_stop = False

    def listen(self) -> None:
        """Answers SIGTERM from now on until `close`. Called from the main thread."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._pipe = write
        self._handler_before = signal.signal(SIGTERM, self._in_main_thread)
        threading.Thread(target=self._watch, args=(read,), name="stop", daemon=True).start()

    def close(self) -> None:
        """Leaves signals as they were; does nothing where `listen` was not called."""
        if self._timer:
            self._timer.cancel()
        if self._pipe is not None:
            signal.signal(SIGTERM, self._handler_before)
            signal.set_wakeup_fd(-1)
            os.close(self._pipe)  # which ends the thread
            self._pipe = None

    def after(self, seconds: float) -> None:
        """Asks for a stop `seconds` from now; at once for 0 or less."""

        def ask() -> None:
            self._own_signals += 1
            self.reason = self.reason or TIME_IS_UP
            os.kill(os.getpid(), SIGTERM)

        self._timer = threading.Timer(max(0.0, seconds), ask)
        self._timer.daemon = True
        self._timer.start()

    def share(self, hosts: int) -> None:
        """On several hosts: one that is told tells all. Called once they have found each other.

        JAX then has a SIGTERM handler of its own, in C, from which it lets all hosts agree on a
        step. It would swallow a second signal; so ours comes first and passes the first one on.
        """
        if hosts == 1:
            signal.signal(SIGTERM, self._in_main_thread)
            return
        libc = ctypes.CDLL(None)
        libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
        handler = libc.signal(SIGTERM, None)
        signal.signal(SIGTERM, self._in_main_thread)
        self._tell_hosts = ctypes.CFUNCTYPE(None, ctypes.c_int)(handler)

    def _watch(self, pipe: int) -> None:
        """A byte arrives for every signal that Python handles, whatever the main thread does."""
        while number := os.read(pipe, 1):  # nothing is read once the other end is closed
            if number[0] != SIGTERM:
                continue
            if self._own_signals:
                self._own_signals -= 1
                self._request(TIME_IS_UP)
                continue
            if self._told is None:
                self._told = time.monotonic()
                self._request("SIGTERM")
            elif time.monotonic() - self._told > SAME_SECONDS:
                end_process("SIGTERM again: ending at once")
        os.close(pipe)

    def _request(self, reason: str) -> None:
        alone = self._tell_hosts is None
        self.reason = reason
        if alone and not self.unsaved:
            end_process(f"stopped: {reason}; {NOTHING}")
        say(f"{reason}: saving after this step, then stopping; another SIGTERM ends at once")
        if not alone:
            self._tell_hosts(SIGTERM)

    def _in_main_thread(self, *_: Any) -> None:
        """Breaks off a wait. Hosts cannot do so alone: they have to stop at the same step."""
        if self._waiting and self._tell_hosts is None:
            self._waiting = False
            self.reason = self.reason or "SIGTERM"  # the thread may be about to say so
            raise StopRequestedError

    def requested(self) -> bool:
        """Whether to stop here. On several hosts all ask at the same places and get one answer."""
        if self._tell_hosts is None:
            return self.reason is not None
        from jax.experimental import multihost_utils

        self._ticks += 1
        reached = multihost_utils.reached_preemption_sync_point(self._ticks)
        self._hosts_stop = self._hosts_stop or reached
        return self._hosts_stop

    def check(self) -> None:
        """Raises StopRequestedError where asked to stop."""
        if self.requested():
            raise StopRequestedError

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        self._waiting = True
        try:
            if self.reason and self._tell_hosts is None:
                raise StopRequestedError
            yield
        finally:
            self._waiting = False

    def reading(self, batches: Any) -> Iterator[Any]:
        """The batches, each wait for one broken off by a request to stop; closed at the end.

        After a request closing them may take CLOSING_SECONDS: readers that hang would hang the
        end, too, and the process is about to go.
        """
        try:
            while True:
                with self._interruptible():
                    batch = next(batches, None)
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
        """What to raise once everything is saved."""
        reason = self.reason or "another host was asked to"
        saved = f"saved after step {step:,}. {AGAIN}" if step else NOTHING
        return StoppedError(f"{reason}; {saved}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def end_process(text: str, code: int = EXIT_CODE) -> NoReturn:
    """At once, without waiting for threads, readers or other hosts."""
    say(text)
    leave(code)


def leave(code: int) -> NoReturn:
    """Ends the process without its destructors.

    Those crashed (exit code 139 in place of `code`) where a run ended while JAX still had an
    initialisation under way, as at an unreadable image in the first batch.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
