"""Benchmark of reading and augmenting JPEG files, beside tf.data if TensorFlow is installed.

The pipelines take turns within one run, so that other work on the machine slows all of them alike.
"""

import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.data import Source
from widenet_jax.data.images.sources import ImageFolder
from widenet_jax.data.images.transforms import TrainTransform
from widenet_jax.data.pipeline import train_batches

OPERATIONS = {
    "decode, crop, flip": {"randaugment_layers": 0, "randaugment_magnitude": 0.0},
    "and RandAugment": {"randaugment_layers": 2, "randaugment_magnitude": 15.0},
}
TF_DATA = "tf.data"
WARM_UP_BATCHES = 16  # worker processes start one after the other and deliver in turn
Turn = AbstractContextManager[Iterator[Any]]  # an endless iterator of batches


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
    """Times every pipeline with every set of operations.

    Args:
      path: an image folder, PATH/SPLIT/CLASS/x.jpg, JPEG files only.
      split: its subfolder.
      image_size: height and width of the result.
      batch_size: images per batch.
      workers: numbers of worker processes to measure; 0 stands for threads.
      rounds: every pipeline has one turn per round.
      seconds: length of a turn.

    Returns:
      [{operations, pipeline, images_per_second, cpu_ms, of_tf_data}], medians over rounds.
      `cpu_ms` is the processor time per image of all threads and processes; other work on the
      machine distorts it less than the rate. `of_tf_data` is the quotient of the rates of the same
      round, None without TensorFlow.

    Raises:
      BadInputError: the folder has no images.
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
        rows += summarize(operations, found)
    return rows


def summarize(
    operations: str, found: Mapping[str, Sequence[tuple[float, float]]]
) -> list[dict[str, Any]]:
    """Returns the rows of `input_rows` for one set of operations.

    Args:
      operations: their name.
      found: pipeline -> (images/s, processor ms per image) of its turn in each round.
    """
    rows = []
    for name, turns in found.items():
        rates, cpu_ms = np.transpose(turns)
        quotient = rates / np.transpose(found[TF_DATA])[0] if TF_DATA in found else None
        row = {"operations": operations, "pipeline": name}
        row |= {"images_per_second": float(np.median(rates)), "cpu_ms": float(np.median(cpu_ms))}
        row["of_tf_data"] = None if quotient is None else float(np.median(quotient))
        rows.append(row)
    return rows


def pipelines(
    source: Source, files: Sequence[str], workers: Sequence[int], options: dict[str, Any]
) -> dict[str, Callable[[], Turn]]:
    """Returns the pipelines by name; tf.data only if TensorFlow is installed."""
    names = {n: f"ours, {n} processes" if n else "ours, threads" for n in workers}
    ours = partial(our_batches, source, **options)
    turns = {name: partial(ours, num_workers=n) for n, name in names.items()}
    if importlib.util.find_spec("tensorflow"):
        from widenet_jax.tools.benchmark import tf_pipeline

        turns[TF_DATA] = lambda: nullcontext(tf_pipeline.batches(files, **options))
    return turns


def our_batches(source: Source, *, batch_size: int, num_workers: int, **options: Any) -> Turn:
    """Opens this project's training pipeline; it does not end. `options` of `TrainTransform`."""
    crop = {"crop": "inception", "crop_area_min": 0.05, "pad_pixels": 0, "flip": True}
    transform = TrainTransform(**crop, randaugment_before_crop=False, **options)
    place = {"batch_size": batch_size, "positions": np.arange(batch_size)}
    run = {"seed": 0, "start_step": 0, "num_steps": 10**6, "num_workers": num_workers}
    return train_batches(source, transform=transform, **place, **run, prefetch=2)


def one_turn(batches: Iterator[Any], batch_size: int, seconds: float) -> tuple[float, float]:
    """Returns (images/s, processor ms per image) over whole batches for about `seconds`."""
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
