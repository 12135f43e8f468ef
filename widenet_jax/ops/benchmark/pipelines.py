"""Benchmark of reading a config's training batches, perhaps beside a peer's pipeline.

Pipelines take turns, so that other work on the machine slows all of them alike. A peer is a Python
file with the function `batches(config, source, *, batch_size, num_workers)`, which yields batches
without end. scripts/compare/ has tf.data and transformers.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.config.files import defined_in
from widenet_jax.data.pipeline import train_batches
from widenet_jax.data.sources import build_source, build_transforms
from widenet_jax.specs import resolve, task_spec

PEER = "peer"
WARM_UP_BATCHES = 16  # worker processes start one after the other and deliver in turn
Turn = AbstractContextManager[Iterator[Any]]  # an endless iterator of batches
# pipeline -> (examples/s, processor ms per example) of its turn in each round
Found = dict[str, list[tuple[float, float]]]


def pipeline_rows(
    config: Any, *, peer: str, batch_size: int, workers: Sequence[int], rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Times this project's training batches and a peer's, which reads the same records.

    Args:
      config: of a run; its set and the transforms of its task.
      peer: file of the peer; "" for none.
      batch_size: examples per batch.
      workers: numbers of worker processes to measure; 0 stands for threads. The peer runs with the
        last of these numbers.
      rounds: every pipeline has one turn per round.
      seconds: length of a turn.

    Returns:
      [{pipeline, UNIT_per_second, cpu_ms, of_peer}], see `summarize`. UNIT is the task's,
      such as images; a stream's is tokens.

    Raises:
      BadInputError: the set cannot be read.
    """
    source = build_source(config.data, config.data.train_split)
    transform, _ = build_transforms(config, source.info)
    start = partial(
        train_batches, source, transform=transform, batch_size=batch_size, prefetch=2, seed=0,
        positions=np.arange(batch_size), start_step=0, num_steps=10**6,
    )  # fmt: skip
    names = {n: f"ours, {n} processes" if n else "ours, threads" for n in workers}
    turns = {name: partial(start, num_workers=n) for n, name in names.items()}
    if peer:
        theirs = defined_in(peer, "batches", flag="--peer")
        sizes = {"batch_size": batch_size, "num_workers": workers[-1]}
        turns[PEER] = lambda: nullcontext(theirs(config, source, **sizes))
    spec = task_spec(config.task.name)
    per_batch = batch_size * config.data.max_length if spec.stream else batch_size
    unit = "tokens" if spec.stream else resolve(spec.task).unit
    found = take_turns(turns, per_batch, rounds=rounds, seconds=seconds)
    return summarize(found, unit=unit)


def take_turns(
    turns: Mapping[str, Callable[[], Turn]], batch_size: int, *, rounds: int, seconds: float
) -> Found:
    """Gives every pipeline one turn of so many seconds in each round."""
    found: Found = {name: [] for name in turns}
    for _ in range(rounds):
        for name, start in turns.items():
            with start() as batches:
                found[name].append(one_turn(batches, batch_size, seconds))
    return found


def summarize(found: Found, *, unit: str) -> list[dict[str, Any]]:
    """Returns medians over rounds: [{pipeline, UNIT_per_second, cpu_ms, of_peer}].

    `cpu_ms` is the processor time per example of all threads and processes; other work on the
    machine distorts it less than the rate. `of_peer` is the quotient of the rates of the same
    round, None without the peer.

    Args:
      found: of `take_turns`.
      unit: what an example is, in the plural.
    """
    rows = []
    for name, turns in found.items():
        rates, cpu_ms = np.transpose(turns)
        quotient = rates / np.transpose(found[PEER])[0] if PEER in found else None
        medians = {f"{unit}_per_second": rates, "cpu_ms": cpu_ms, "of_peer": quotient}
        found_of = {k: None if of is None else float(np.median(of)) for k, of in medians.items()}
        rows.append({"pipeline": name} | found_of)
    return rows


def one_turn(batches: Iterator[Any], batch_size: int, seconds: float) -> tuple[float, float]:
    """Returns (examples/s, processor ms an example) over whole batches for about `seconds`."""
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    start, cpu, images = time.perf_counter(), cpu_seconds(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not images:
        next(batches)
        images += batch_size
    return images / elapsed, 1e3 * (cpu_seconds() - cpu) / images


def cpu_seconds() -> float:
    """Returns the processor time of this process and, on Linux, of its worker processes."""
    total = time.process_time()
    for child in multiprocessing.active_children():
        stat = Path(f"/proc/{child.pid}/stat")
        if stat.exists():
            user, system = stat.read_text().rpartition(")")[2].split()[11:13]
            total += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return total
