"""Batches for one host: which records, read and augmented by threads or processes, in step order.

Grain runs the reading: a random-access dataset of *chunks* (at most IMAGES_PER_CHUNK images of one
step, each a pure function of the seed and the step: see `chunks`), spread over workers, put
together to batches in the main process. Chunks rather than batches keep a worker's memory small
and bring the first batch sooner. Because a chunk is a pure function, the content does not depend on
the number of workers, and a resumed run simply starts at a later step.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
from absl import flags

from widenet_jax.data import workers
from widenet_jax.data.chunks import (
    COMPLAINTS,
    ON_BAD_EXAMPLE,
    Batch,
    Chunks,
    EvalChunks,
    TrainChunks,
    put_together,
    read_image,
    shape_of_images,
)
from widenet_jax.data.images.sources import Source
from widenet_jax.data.images.transforms import EvalTransform, TrainTransform, build_transforms
from widenet_jax.errors import BadInputError, choose

__all__ = ["Batches", "EvalTransform", "TrainTransform", "build_transforms", "eval_batches",
           "image_shape", "num_eval_steps", "read_image", "train_batches"]  # fmt: skip

MAX_THREADS = 16


class Batches(Iterator[Batch]):
    """An iterator over host-local batches that can be closed: no thread or process stays behind.

    Use it in a `with` block or call `close`. An error in a worker is raised from `next`. What was
    wrong with a record is said when the first batch that lacks it is handed on, once a record.
    """

    def __init__(
        self,
        chunks: Chunks,
        *,
        num_workers: int,
        prefetch: int,
        on_message: Callable[[str], object],
    ):
        for field, value, least in (("num_workers", num_workers, 0), ("prefetch", prefetch, 1)):
            if value < least:
                raise BadInputError(f"config.data.{field}={value} must be {least} or more")
        self._on_message = on_message
        self._named: set[int] = set()
        self._length = len(chunks) // max(1, chunks.chunks_a_step)
        self._iterator = iter(_dataset(chunks, num_workers, prefetch)) if self._length else None

    def __len__(self) -> int:
        """The number of batches in all, counted from the first."""
        return self._length

    def __next__(self) -> Batch:
        if self._iterator is None:
            raise StopIteration
        batch = next(self._iterator)
        for record, message in batch.pop(COMPLAINTS):
            if record not in self._named:
                self._named.add(record)
                self._on_message(message)
        return batch

    def close(self) -> None:
        """Stops the readers and waits for worker processes to end."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux; a container may own fewer cores than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _dataset(chunks: Chunks, num_workers: int, prefetch: int) -> grain.IterDataset:
    """Chunks read ahead by threads (num_workers 0) or processes, joined to batches."""
    count = chunks.chunks_a_step
    if num_workers == 0:
        threads = min(_usable_cores(), MAX_THREADS)
        reading = grain.ReadOptions(
            num_threads=threads, prefetch_buffer_size=max(threads, prefetch * count)
        )
        dataset = grain.MapDataset.source(chunks).to_iter_dataset(reading)
        return dataset.batch(count, batch_fn=put_together)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads absl flags when it starts processes
    # One thread a process; a chunk in the queue and one in the making are enough to keep it busy.
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    dataset = grain.MapDataset.source(chunks).to_iter_dataset(reading)
    dataset = dataset.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2),
        worker_init_fn=workers.start_worker,
    )
    dataset = dataset.batch(count, batch_fn=put_together)
    return grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=prefetch)


def _say_nothing(message: str) -> None:
    del message


def train_batches(
    source: Source,
    *,
    transform: TrainTransform,
    seed: int,
    batch_size: int,
    positions: np.ndarray,
    start_step: int,
    num_steps: int,
    num_workers: int,
    prefetch: int,
    on_bad_example: str = "error",
    on_message: Callable[[str], object] = _say_nothing,
) -> Batches:
    """The training batches of steps start_step..num_steps - 1, this host's part of each.

    Args:
      source: the training split.
      transform: crops and augments one image.
      seed: fixes order and augmentation, >= 0.
      batch_size: images of the global batch.
      positions: int [b], sorted: this host's positions within the global batch.
      start_step: first step to produce, as a resumed run needs it.
      num_steps: the step after the last.
      num_workers: worker processes; 0 reads with threads of this process.
      prefetch: batches kept ready.
      on_bad_example: what to do about an image that cannot be read: "error" raises a
        BadExampleError from `next`; "skip" takes image and label of the next record that can be.
      on_message: told of each skipped record once, in one line, in the process that iterates.

    Returns:
      An iterator of {"image": uint8 [b, H, W, C], "label": int32 [b], "record": int64 [b], "bad":
      bool [b]}: bad marks the stand-ins, whose record is the one they stand for. The same for any
      `num_workers`.
    """
    chunks = TrainChunks(
        source, _positions(positions, batch_size), batch_size, start_step, num_steps,
        _skips(on_bad_example), transform=transform, seed=int(seed),
    )  # fmt: skip
    return Batches(chunks, num_workers=num_workers, prefetch=prefetch, on_message=on_message)


def num_eval_steps(num_records: int, batch_size: int) -> int:
    """How many batches cover a split, the last one padded."""
    return -(-num_records // batch_size)


def eval_batches(
    source: Source,
    *,
    transform: EvalTransform,
    batch_size: int,
    positions: np.ndarray,
    num_workers: int,
    prefetch: int,
    on_bad_example: str = "error",
    on_message: Callable[[str], object] = _say_nothing,
) -> Batches:
    """Every record once, in order, this host's part of each global batch.

    Args: as in `train_batches`; "skip" masks out an image that cannot be read.

    Returns:
      An iterator of num_eval_steps batches {"image", "label", "record", "bad", "mask": bool [b]};
      mask is False on zero images: those that fill up the last global batch (label 0, record -1)
      and the bad ones (label 0, their own record).
    """
    chunks = EvalChunks(
        source, _positions(positions, batch_size), batch_size, 0,
        num_eval_steps(len(source), batch_size), _skips(on_bad_example), transform=transform,
    )  # fmt: skip
    return Batches(chunks, num_workers=num_workers, prefetch=prefetch, on_message=on_message)


def image_shape(
    source: Source, transform: EvalTransform, *, on_bad_example: str = "error"
) -> tuple[int, int, int]:
    """(height, width, channels) of every image of a batch, from the source's first."""
    return shape_of_images(source, transform, skip=_skips(on_bad_example))


def _skips(on_bad_example: str) -> bool:
    choose(ON_BAD_EXAMPLE, on_bad_example, field="config.data.on_bad_example")
    return on_bad_example == "skip"


def _positions(positions: np.ndarray, batch_size: int) -> np.ndarray:
    positions = np.asarray(positions, np.int64)
    inside = positions.size and positions[0] >= 0 and positions[-1] < batch_size
    if not inside or (np.diff(positions) <= 0).any():
        raise ValueError(f"positions must be sorted within 0..{batch_size - 1}, got {positions}")
    return positions
