"""Batches of a pipeline as lists, comparisons of them, and the end of its processes."""

import multiprocessing
from typing import Any

import numpy as np

from widenet_jax.data import pipeline

Stream = list[dict[str, np.ndarray]]


def train_stream(source: Any, transform: Any, batch_size: int, **changes: Any) -> Stream:
    options = {
        "seed": 3, "positions": np.arange(batch_size), "start_step": 0, "num_workers": 0,
        "prefetch": 2, **changes,
    }  # fmt: skip
    with pipeline.train_batches(
        source, transform=transform, batch_size=batch_size, **options
    ) as batches:
        return list(batches)


def eval_stream(source: Any, transform: Any, batch_size: int, **changes: Any) -> Stream:
    options = {"positions": np.arange(batch_size), "num_workers": 0, "prefetch": 1, **changes}
    with pipeline.eval_batches(
        source, transform=transform, batch_size=batch_size, **options
    ) as batches:
        return list(batches)


def joined(hosts: list[Stream]) -> Stream:
    """Returns the global batches of some hosts' parts."""
    return [
        {key: np.concatenate([part[key] for part in step]) for key in step[0]}
        for step in zip(*hosts, strict=True)
    ]


def assert_same(ours: Stream, theirs: Stream) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def assert_no_worker_left() -> None:
    """Asserts that closed streams leave no process behind.

    Grain kills a worker that takes more than 25 s to end, as on a busy machine, and does not wait
    for the end of a killed one. Others would run as long as this process.
    """
    for worker in multiprocessing.active_children():
        worker.join(timeout=5)
    assert multiprocessing.active_children() == []
