"""Set-up of worker processes: they ignore stop signals, and end when the run ends."""

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

POLL_SECONDS = 1.0


def start_worker(worker: int, num_workers: int) -> None:
    """Prepares a worker process; Grain calls this once in each, before it reads anything.

    The worker ignores Ctrl-C and SIGTERM, which reach the whole process group: the run answers
    them, and may need more batches until all hosts have stopped at the same step. A thread ends the
    worker as soon as the run has ended, even by SIGKILL.

    The kernel's parent-death signal would not do: it follows the *thread* that started the worker,
    and Grain's threads end before the run does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(
        target=_leave_with, args=(parent.pid, parent.sentinel), name="leave-with-run", daemon=True
    ).start()


def _leave_with(parent_pid: int, sentinel: int) -> None:
    # The sentinel reports the parent's end at once, unless a process forked from the parent holds
    # it open. The parent's id changes in that case too, and if the parent ended before this line.
    while os.getppid() == parent_pid and not connection.wait([sentinel], timeout=POLL_SECONDS):
        pass
    os._exit(1)
