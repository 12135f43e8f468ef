"""Batches for one host: records read and transformed by threads or processes, in step order.

Grain runs the reading over a random-access dataset of *blocks* (at most EXAMPLES_PER_BLOCK examples
of one step, see `blocks`): workers read blocks, and the main process joins them into batches.
Blocks rather than whole batches keep a worker's memory small and bring the first batch sooner.
Because a block is a pure function, the content does not depend on the number of workers, and a
resumed run starts at a later step.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing import connection
from typing import Any

import grain
import numpy as np
from absl import flags

from widenet_jax.config.machine import usable_cores
from widenet_jax.data import blocks
from widenet_jax.data.contract import Batch, Data, Source, Stream, Transform
from widenet_jax.errors import BadInputError
from widenet_jax.files import require_store

MAX_THREADS = 16
SMALL_SPLIT = 1000  # examples that are read before the first step
NAMED = 60  # of these that cannot be read: more than a small split may have


class Batches(Iterator[Batch], AbstractContextManager):
    """A closable iterator over host-local batches; closing leaves no thread or process behind.

    Use it in a `with` block or call `close`. `next` raises the error of a worker. Each unreadable
    record is reported once, with the first batch that lacks it.
    """

    def __init__(
        self,
        kind: Callable[..., blocks.Blocks],
        source: Source,
        *,
        num_workers: int,
        prefetch: int,
        on_bad_example: str = "error",
        on_message: Callable[[str], object] = lambda message: None,
        **fields: Any,
    ):
        """Starts reading.

        Args:
          kind: builds the blocks.
          source: the examples.
          num_workers: worker processes; 0 reads with threads of this process.
          prefetch: batches kept ready.
          on_bad_example: "error" raises a BadExampleError from `next` for an example that cannot be
            read; "skip" replaces it by the next record that can.
          on_message: receives one line for each skipped record, in the process that iterates.
          **fields: the other fields of `kind`, see `blocks.Blocks`.
        """
        found = kind(source, skip=blocks.skips(on_bad_example), **fields)
        self._on_message = on_message
        self._named: set[int] = set()
        self._iterator = iter(_dataset(found, num_workers, prefetch)) if len(found) else None

    def __next__(self) -> Batch:
        if self._iterator is None:
            raise StopIteration
        batch = next(self._iterator)
        for record, message in batch.pop(blocks.COMPLAINTS):
            if record not in self._named:
                self._named.add(record)
                self._on_message(message)
        return batch

    def close(self) -> None:
        """Stops the readers and waits for worker processes to end."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


def _dataset(data: blocks.Blocks, num_workers: int, prefetch: int) -> grain.IterDataset:
    """Reads blocks ahead with threads (num_workers 0) or processes, and joins them."""
    count, join = data.blocks_per_step, blocks.join_blocks
    # One thread per process: one block queued and one being read keep it busy.
    threads = 1 if num_workers else min(usable_cores(), MAX_THREADS)
    ahead = 1 if num_workers else max(threads, prefetch * count)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    dataset = grain.MapDataset.source(data).to_iter_dataset(options)
    if not num_workers:
        return dataset.batch(count, batch_fn=join)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads absl flags when it starts processes
    store = sys.modules.get("widenet_jax.object_store")
    dataset = dataset.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2),
        worker_init_fn=partial(start_worker, patience=store and store.Patience.seconds),
    )
    dataset = dataset.batch(count, batch_fn=join)
    return grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=prefetch)


def reading(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those fields of `config.data` that are options of both functions below."""
    return {name: data[name] for name in ("num_workers", "prefetch", "on_bad_example")}


def train_batches(source: Source, *, seed: int, **options: Any) -> Batches:
    """Returns this host's part of the training batches of steps start_step..num_steps - 1.

    Args:
      source: the training split.
      seed: fixes order and augmentation, >= 0; a stream has one order and no augmentation.
      **options: see `Batches`; a resumed run passes as `start_step` the step that it restored.

    Returns:
      An iterator of the transform's arrays, stacked to [b, ...], with "record": int64 [b] and
      "bad": bool [b], True where the example replaces `record`, which cannot be read. The same
      for any `num_workers`.
    """
    if isinstance(source, Stream):
        return Batches(partial(blocks.StreamBlocks, whole=False), source, **options)
    return Batches(partial(blocks.TrainBlocks, seed=int(seed)), source, **options)


def eval_batches(source: Source, *, batch_size: int, **options: Any) -> Batches:
    """Returns this host's part of batches that hold every record once, in order; streams in rows.

    Args:
      source: the evaluation split.
      batch_size: examples in the global batch.
      **options: see `Batches`; "skip" masks out an example that cannot be read.

    Returns:
      An iterator of the transform's arrays, with "record", "bad" and "mask": bool [b]. mask is
      False at zeros: the padding of the last global batch (record -1) and bad examples (their own
      record).
    """
    kind = (
        partial(blocks.StreamBlocks, whole=True)
        if isinstance(source, Stream)
        else blocks.EvalBlocks
    )
    steps = {"start_step": 0, "num_steps": -(-len(source) // batch_size)}
    return Batches(kind, source, batch_size=batch_size, **steps, **options)


def check_small_splits(
    data: Data, config: Mapping[str, Any], unit: str, note: Callable[[str], object]
) -> None:
    """Reads each split of at most 1,000 examples once, so that bad ones are met before training.

    Larger ones take too long: a run meets theirs as it reads them, unless the source knows them.

    Raises:
      BadExampleError: `on_bad_example` is "error", and an example cannot be read.
      BadInputError: so many cannot be read that a run would end; the first were passed to `note`.
    """
    for split, kind in ((data.train, "training"), (data.eval, "evaluation")):
        size, lines = len(split), _unreadable(split, data.eval_transform, config)
        split_of = {"num_examples": size, "limit": config["max_bad_fraction"]}
        if problem := blocks.too_many_bad(len(lines), size, what=f"{kind} {unit}", **split_of):
            if (more := len(lines) - NAMED) > 0:
                lines[NAMED:] = [f"{more:,} more; scripts/prepare_data.py check lists all"]
            for line in lines:
                note(line)
            raise BadInputError(problem)  # nothing has run yet


def _unreadable(split: Source, transform: Transform, config: Mapping[str, Any]) -> list[str]:
    """Returns a line for each example that cannot be read, as the split knows or is soon read."""
    lines = [*getattr(split, "problems", ())]
    if not (hasattr(split, "problems") or isinstance(split, Stream) or len(split) > SMALL_SPLIT):
        B = blocks.EXAMPLES_PER_BLOCK
        how = {"batch_size": B, "positions": np.arange(B), "transform": transform}
        how |= reading(config) | {"num_workers": 0, "on_message": lines.append}
        with eval_batches(split, **how) as batches:
            for _ in batches:  # each example that cannot be read has one message
                pass
    return lines


POLL_SECONDS = 1.0


def start_worker(worker: int, num_workers: int, *, patience: float | None = None) -> None:
    """Prepares a worker process; Grain calls this once in each, before it reads anything.

    It asks gs:// for `patience` seconds where the run uses it, which None says it does not.

    The worker ignores Ctrl-C and SIGTERM, which reach the whole process group: the run answers
    them, and may need more batches until all hosts have stopped at the same step. A thread ends the
    worker as soon as the run has ended, even by SIGKILL.

    The kernel's parent-death signal would not do: it follows the *thread* that started the worker,
    and Grain's threads end before the run does.
    """
    if patience:
        require_store("gs://").Patience.seconds = patience
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
