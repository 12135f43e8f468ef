"""Whether the processes that read data are gone."""

import multiprocessing


def assert_no_worker_left() -> None:
    """Asserts that closed streams leave no process behind.

    Grain kills a worker that takes more than 25 s to end, as on a busy machine, and does not wait
    for the end of a killed one. Others would run as long as this process.
    """
    for worker in multiprocessing.active_children():
        worker.join(timeout=5)
    assert multiprocessing.active_children() == []
