"""Batches for one host: which records, read and augmented by threads or processes, in step order.

Grain runs the reading: a random-access dataset of *chunks* (at most IMAGES_PER_CHUNK images of one
step, each a pure function of the seed and the step), spread over workers, put together to batches
in the main process. Chunks rather than batches keep a worker's memory small and bring the first
batch sooner. Because a chunk is a pure function, the content does not depend on the number of
workers, and a resumed run simply starts at a later step.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np
from absl import flags

from widenet_jax.data import images, sampler, workers
from widenet_jax.data.sources import Source
from widenet_jax.data.transforms import EvalTransform, TrainTransform, build_transforms
from widenet_jax.errors import BadInputError

__all__ = ["Batches", "EvalTransform", "TrainTransform", "build_transforms", "eval_batches",
           "image_shape", "num_eval_steps", "read_image", "train_batches"]  # fmt: skip

Batch = dict[str, np.ndarray]
# Multiple of small batch sizes; at 224 pixels a chunk is 9.6 MB.
IMAGES_PER_CHUNK = 64
MAX_THREADS = 16


def read_image(source: Source, record: int) -> tuple[np.ndarray, int]:
    """(uint8 [H, W, C], label) of one record."""
    example = source[record]
    image = example["image"]
    if isinstance(image, bytes):
        image = images.decode(image, source.describe(record))
    return image, example["label"]


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """A random-access sequence of chunks; element k is chunk k % C of step start + k // C.

    Attributes:
      source: the images.
      positions: this host's positions of the global batch, sorted.
      batch_size: images of the global batch.
      start_step: step of the first chunk.
      num_steps: the step after the last.
    """

    source: Source
    positions: np.ndarray
    batch_size: int
    start_step: int
    num_steps: int

    @property
    def chunks_a_step(self) -> int:
        return -(-len(self.positions) // IMAGES_PER_CHUNK)

    def __len__(self) -> int:
        return max(0, self.num_steps - self.start_step) * self.chunks_a_step

    def global_positions(self, index: int) -> np.ndarray:
        """Positions in the stream of all batches of chunk `index`: int64 [c]."""
        step, chunk = divmod(index, self.chunks_a_step)
        first = chunk * IMAGES_PER_CHUNK
        chosen = self.positions[first : first + IMAGES_PER_CHUNK]
        return (self.start_step + step) * self.batch_size + chosen


@dataclasses.dataclass(frozen=True)
class _TrainChunks(_Chunks):
    transform: TrainTransform
    seed: int

    def __getitem__(self, index: int) -> Batch:
        epochs, records = sampler.record_at(
            self.global_positions(index), seed=self.seed, num_records=len(self.source)
        )
        pictures, labels = [], []
        for epoch, record in zip(epochs.tolist(), records.tolist(), strict=True):
            rng = sampler.augmentation_rng(seed=self.seed, epoch=epoch, record=record)
            image, label = read_image(self.source, record)
            pictures.append(self.transform(image, rng))
            labels.append(label)
        return {
            "image": np.stack(pictures),
            "label": np.asarray(labels, np.int32),
            "record": records,
        }


@dataclasses.dataclass(frozen=True)
class _EvalChunks(_Chunks):
    transform: EvalTransform

    def __getitem__(self, index: int) -> Batch:
        records = self.global_positions(index)
        mask = records < len(self.source)
        labels = np.zeros(len(records), np.int32)
        pictures: list[np.ndarray | None] = [None] * len(records)
        for i in np.flatnonzero(mask).tolist():
            image, labels[i] = read_image(self.source, int(records[i]))
            pictures[i] = self.transform(image)
        if not mask.all():
            blank = np.zeros_like(self._any_picture(pictures))
            pictures = [blank if picture is None else picture for picture in pictures]
        return {
            "image": np.stack(pictures),
            "label": labels,
            "record": np.where(mask, records, -1),
            "mask": mask,
        }

    def _any_picture(self, pictures: Sequence[np.ndarray | None]) -> np.ndarray:
        """Any picture of the set: the shape that padding needs."""
        if pictures[0] is not None:
            return pictures[0]
        return self.transform(read_image(self.source, 0)[0])


def _put_together(chunks: Sequence[Batch]) -> Batch:
    if len(chunks) == 1:
        return chunks[0]
    return {key: np.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}


class Batches(Iterator[Batch]):
    """An iterator over host-local batches that can be closed: no thread or process stays behind.

    Use it in a `with` block or call `close`. An error in a worker is raised from `next`.
    """

    def __init__(self, chunks: _Chunks, *, num_workers: int, prefetch: int):
        for field, value, least in (("num_workers", num_workers, 0), ("prefetch", prefetch, 1)):
            if value < least:
                raise BadInputError(f"config.data.{field}={value} must be {least} or more")
        self._length = len(chunks) // max(1, chunks.chunks_a_step)
        self._iterator = iter(_dataset(chunks, num_workers, prefetch)) if self._length else None

    def __len__(self) -> int:
        """The number of batches in all, counted from the first."""
        return self._length

    def __next__(self) -> Batch:
        if self._iterator is None:
            raise StopIteration
        return next(self._iterator)

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


def _dataset(chunks: _Chunks, num_workers: int, prefetch: int) -> grain.IterDataset:
    """Chunks read ahead by threads (num_workers 0) or processes, joined to batches."""
    count = chunks.chunks_a_step
    if num_workers == 0:
        threads = min(_usable_cores(), MAX_THREADS)
        reading = grain.ReadOptions(
            num_threads=threads, prefetch_buffer_size=max(threads, prefetch * count)
        )
        dataset = grain.MapDataset.source(chunks).to_iter_dataset(reading)
        return dataset.batch(count, batch_fn=_put_together)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads absl flags when it starts processes
    # One thread a process; a chunk in the queue and one in the making are enough to keep it busy.
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    dataset = grain.MapDataset.source(chunks).to_iter_dataset(reading)
    dataset = dataset.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2),
        worker_init_fn=workers.start_worker,
    )
    dataset = dataset.batch(count, batch_fn=_put_together)
    return grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=prefetch)


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

    Returns:
      An iterator of {"image": uint8 [b, H, W, C], "label": int32 [b], "record": int64 [b]}. The
      same for any `num_workers`.
    """
    chunks = _TrainChunks(
        source, _positions(positions, batch_size), batch_size, start_step, num_steps,
        transform=transform, seed=int(seed),
    )  # fmt: skip
    return Batches(chunks, num_workers=num_workers, prefetch=prefetch)


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
) -> Batches:
    """Every record once, in order, this host's part of each global batch.

    Args: as in `train_batches`.

    Returns:
      An iterator of num_eval_steps batches {"image", "label", "record", "mask": bool [b]}; mask is
      False on the zero images that fill up the last global batch (label 0, record -1).
    """
    chunks = _EvalChunks(
        source, _positions(positions, batch_size), batch_size, 0,
        num_eval_steps(len(source), batch_size), transform=transform,
    )  # fmt: skip
    return Batches(chunks, num_workers=num_workers, prefetch=prefetch)


def image_shape(source: Source, transform: EvalTransform) -> tuple[int, int, int]:
    """(height, width, channels) of every image of a batch, from the source's first."""
    return transform(read_image(source, 0)[0]).shape


def _positions(positions: np.ndarray, batch_size: int) -> np.ndarray:
    positions = np.asarray(positions, np.int64)
    inside = positions.size and positions[0] >= 0 and positions[-1] < batch_size
    if not inside or (np.diff(positions) <= 0).any():
        raise ValueError(f"positions must be sorted within 0..{batch_size - 1}, got {positions}")
    return positions
