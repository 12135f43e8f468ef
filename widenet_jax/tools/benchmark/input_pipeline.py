"""Reading and augmenting real images: ours, and tf.data where TensorFlow is installed.

Both in one run, turn by turn, so that whatever else the machine does falls on both.
"""

import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.data.images.sources import ImageFolder, Source
from widenet_jax.data.images.transforms import TrainTransform
from widenet_jax.data.pipeline import train_batches

OPERATIONS = {
    "decode, crop, flip": {"randaugment_layers": 0, "randaugment_magnitude": 0.0},
    "and RandAugment": {"randaugment_layers": 2, "randaugment_magnitude": 15.0},
}
TF_DATA = "tf.data"
WARM_UP_BATCHES = 16  # workers start one after the other, and take turns
Turn = AbstractContextManager[Iterator[Any]]  # endless batches, open for as long as they are timed


def input_rows(
    path: str,
    split: str,
    *,
    image_size: int,
    batch_size: int,
    workers: Sequence[int],
    rounds: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """One row for each pipeline and set of operations.

    Args:
      path: an image folder, PATH/SPLIT/CLASS/x.jpg, JPEG files only.
      split: of it.
      image_size: side of the result.
      batch_size: images.
      workers: numbers of worker processes to try; 0 is threads.
      rounds: in each, every pipeline has its turn.
      seconds: a turn.

    Returns:
      [{operations, pipeline, images_per_second, cpu_ms, of_tf_data}], medians over rounds:
      `cpu_ms` is processor time an image, of all threads and processes, which other work on the
      machine distorts less; `of_tf_data` the quotient of the rates in a round, None without
      TensorFlow.

    Raises:
      BadInputError: there are no images.
    """
    source = ImageFolder(path, split)
    files = sorted(str(file) for file in Path(path, split).glob("*/*"))
    rows = []
    for operations, augment in OPERATIONS.items():
        options = augment | {"image_size": image_size, "batch_size": batch_size}
        turns = pipelines(source, files, workers, options)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, start in turns.items():
                with start() as batches:
                    found[name].append(one_turn(batches, batch_size, seconds))
        for name, values in found.items():
            rates, cpu_ms = np.transpose(values)
            quotient = rates / np.transpose(found[TF_DATA])[0] if TF_DATA in found else None
            rows.append(
                {
                    "operations": operations,
                    "pipeline": name,
                    "images_per_second": float(np.median(rates)),
                    "cpu_ms": float(np.median(cpu_ms)),
                    "of_tf_data": None if quotient is None else float(np.median(quotient)),
                }
            )
    return rows


def pipelines(
    source: Source, files: Sequence[str], workers: Sequence[int], options: dict[str, Any]
) -> dict[str, Callable[[], Turn]]:
    """What is compared, by name; tf.data only where TensorFlow is installed."""
    turns = {
        f"ours, {n} processes" if n else "ours, threads": partial(
            our_batches, source, num_workers=n, **options
        )
        for n in workers
    }
    if importlib.util.find_spec("tensorflow"):
        from widenet_jax.tools.benchmark import tf_pipeline

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


def one_turn(batches: Iterator[Any], batch_size: int, seconds: float) -> tuple[float, float]:
    """(images a second, processor milliseconds an image) over whole batches for about `seconds`."""
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    start, cpu, images = time.perf_counter(), cpu_seconds(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        next(batches)
        images += batch_size
    return images / elapsed, 1e3 * (cpu_seconds() - cpu) / images


def cpu_seconds() -> float:
    """Processor time so far of this process and its worker processes (these on Linux only)."""
    total = time.process_time()
    for child in multiprocessing.active_children():
        stat = Path(f"/proc/{child.pid}/stat")
        if stat.exists():
            user, system = stat.read_text().rpartition(")")[2].split()[11:13]
            total += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return total
