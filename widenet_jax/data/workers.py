"""The manners of worker processes: they leave when the run does, and let it handle signals."""

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

POLL_SECONDS = 1.0


def start_worker(worker: int, num_workers: int) -> None:
    """Called by Grain once in every worker process, before it reads anything.

    The worker ignores Ctrl-C and SIGTERM, which reach the whole process group: the run decides what
    to do, and still needs its batches while it saves. A thread ends the worker as soon as the run
    is gone, however it went (kill -9 leaves no time to say goodbye).

    A thread rather than the kernel's parent-death signal, because that follows the *thread* that
    started the worker, and Grain starts workers from threads that come and go.
    """
    del worker, num_workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(
        target=_leave_with, args=(parent.pid, parent.sentinel), name="leave-with-run", daemon=True
    ).start()


def _leave_with(parent_pid: int, sentinel: int) -> None:
    # The sentinel reports the parent's end at once, unless a process forked from the parent holds
    # it open; the parent's id then still tells, and also when it ended before this line.
    while os.getppid() == parent_pid and not connection.wait([sentinel], timeout=POLL_SECONDS):
        pass
    os._exit(1)
