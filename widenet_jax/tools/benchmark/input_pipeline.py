"""Benchmark of reading and augmenting JPEG files, beside tf.data if TensorFlow is installed."""

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.data import Source
from widenet_jax.data.images.sources import ImageFolder
from widenet_jax.data.images.transforms import TrainTransform
from widenet_jax.data.pipeline import train_batches
from widenet_jax.tools.benchmark.turns import Turn, readers, summarize, take_turns

OPERATIONS = {
    "decode, crop, flip": {"randaugment_layers": 0, "randaugment_magnitude": 0.0},
    "and RandAugment": {"randaugment_layers": 2, "randaugment_magnitude": 15.0},
}
TF_DATA = "tf.data"


def input_rows(
    path: str, split: str, *, workers: Sequence[int], rounds: int, seconds: float, **sizes: int
) -> list[dict[str, Any]]:
    """Times every pipeline with every set of operations.

    Args:
      path: an image folder, PATH/SPLIT/CLASS/x.jpg, JPEG files only.
      split: its subfolder.
      workers: numbers of worker processes to measure; 0 stands for threads.
      rounds: every pipeline has one turn per round.
      seconds: length of a turn.
      sizes: image_size (height and width of the result) and batch_size (images per batch).

    Returns:
      [{operations, pipeline, images_per_second, cpu_ms, of_peer}], see `turns.summarize`. The peer
      is tf.data.

    Raises:
      BadInputError: the folder has no images.
    """
    source = ImageFolder(path, split)
    files = sorted(str(file) for file in Path(path, split).glob("*/*"))
    rows = []
    for operations, augment in OPERATIONS.items():
        turns = pipelines(source, files, workers, augment | sizes)
        found = take_turns(turns, sizes["batch_size"], rounds=rounds, seconds=seconds)
        medians = summarize(found, unit="images", peer=TF_DATA)
        rows += [{"operations": operations, **row} for row in medians]
    return rows


def pipelines(
    source: Source, files: Sequence[str], workers: Sequence[int], options: dict[str, Any]
) -> dict[str, Callable[[], Turn]]:
    """Returns the pipelines by name; tf.data only if TensorFlow is installed."""
    ours = partial(our_batches, source, **options)
    turns = {f"ours, {readers(n)}": partial(ours, num_workers=n) for n in workers}
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
