"""Benchmark of reading a config's training batches, perhaps beside a peer's pipeline.

A peer is a Python file with the function `batches(config, source, *, batch_size, num_workers)`,
which yields batches without end. scripts/compare/ has tf.data and transformers.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from widenet_jax.config.files import import_file
from widenet_jax.data.sources import build_source, build_transforms
from widenet_jax.ops.benchmark.turns import our_turns, summarize, take_turns
from widenet_jax.specs import resolve, task_spec

PEER = "peer"


def pipeline_rows(
    config: Any,
    *,
    peer: str,
    batch_size: int,
    workers: Sequence[int],
    rounds: int,
    seconds: float,
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
      [{pipeline, UNIT_per_second, cpu_ms, of_peer}], see `turns.summarize`. UNIT is the task's,
      such as images; a stream's is tokens.

    Raises:
      BadInputError: the set cannot be read.
    """
    source = build_source(config.data, config.data.train_split)
    transform, _ = build_transforms(config, source.info)
    turns = our_turns(source, transform, batch_size, workers)
    if peer:
        theirs = import_file(peer).batches
        sizes = {"batch_size": batch_size, "num_workers": workers[-1]}
        turns[PEER] = lambda: nullcontext(theirs(config, source, **sizes))
    spec = task_spec(config.task.name)
    per_batch = batch_size * config.data.max_length if spec.stream else batch_size
    unit = "tokens" if spec.stream else resolve(spec.task).unit
    found = take_turns(turns, per_batch, rounds=rounds, seconds=seconds)
    return summarize(found, unit=unit, peer=PEER)
