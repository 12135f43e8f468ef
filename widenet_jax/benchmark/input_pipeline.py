"""Reading and augmenting real images: ours, and tf.data where TensorFlow is installed.

Both in one run, turn by turn, so that whatever else the machine does falls on both.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from widenet_jax.data.pipeline import train_batches
from widenet_jax.data.sources import Source
from widenet_jax.data.transforms import TrainTransform

OPERATIONS = {
    "decode, crop, flip": {"randaugment_layers": 0, "randaugment_magnitude": 0.0},
    "and RandAugment": {"randaugment_layers": 2, "randaugment_magnitude": 15.0},
}
TF_DATA = "tf.data"
Turn = AbstractContextManager[Iterator[Any]]  # endless batches, open for as long as they are timed


def input_rows(
    source: Source,
    *,
    image_size: int,
    batch_size: int,
    workers: Sequence[int],
    rounds: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """One row for each pipeline and set of operations.

    Args:
      source: of JPEG files, each in a file of its own.
      image_size: side of the result.
      batch_size: images.
      workers: numbers of worker processes to try; 0 is threads.
      rounds: in each, every pipeline has its turn.
      seconds: a turn.

    Returns:
      [{operations, pipeline, images_per_second (median over rounds), of_tf_data}]; `of_tf_data`
      is the median over rounds of the quotient to tf.data, None without TensorFlow.
    """
    rows = []
    for operations, augment in OPERATIONS.items():
        options = augment | {"image_size": image_size, "batch_size": batch_size}
        turns = pipelines(source, workers, options)
        rates: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, start in turns.items():
                with start() as batches:
                    rates[name].append(images_per_second(batches, batch_size, seconds))
        rivals = rates.get(TF_DATA)
        rows += [
            {
                "operations": operations,
                "pipeline": name,
                "images_per_second": float(np.median(found)),
                "of_tf_data": float(np.median(np.divide(found, rivals))) if rivals else None,
            }
            for name, found in rates.items()
        ]
    return rows


def pipelines(
    source: Source, workers: Sequence[int], options: dict[str, Any]
) -> dict[str, Callable[[], Turn]]:
    """What is compared, by name; tf.data only where TensorFlow is installed."""
    turns = {
        f"ours, {n} processes" if n else "ours, threads": partial(
            our_batches, source, num_workers=n, **options
        )
        for n in workers
    }
    if importlib.util.find_spec("tensorflow"):
        from widenet_jax.benchmark import tf_pipeline

        files = [source.describe(i) for i in range(len(source))]
        turns[TF_DATA] = lambda: nullcontext(tf_pipeline.batches(files, **options))
    return turns


def our_batches(
    source: Source,
    *,
    image_size: int,
    batch_size: int,
    randaugment_layers: int,
    randaugment_magnitude: float,
    num_workers: int,
) -> Turn:
    """This project's pipeline over a training set, without end."""
    transform = TrainTransform(
        image_size=image_size,
        crop="inception",
        crop_area_min=0.05,
        pad_pixels=0,
        flip=True,
        randaugment_layers=randaugment_layers,
        randaugment_magnitude=randaugment_magnitude,
        randaugment_before_crop=False,
    )
    return train_batches(
        source,
        transform=transform,
        seed=0,
        batch_size=batch_size,
        positions=np.arange(batch_size),
        start_step=0,
        num_steps=10**6,
        num_workers=num_workers,
        prefetch=2,
    )


def images_per_second(batches: Iterator[Any], batch_size: int, seconds: float) -> float:
    """Over whole batches for about `seconds`, once workers are up and buffers in use."""
    for _ in range(3):
        next(batches)
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        next(batches)
        count += 1
    return count * batch_size / elapsed
