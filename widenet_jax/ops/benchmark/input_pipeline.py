"""Benchmark of reading and augmenting JPEG files, beside tf.data if TensorFlow is installed."""

import importlib.util
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from widenet_jax.ops.benchmark.turns import our_turns, summarize, take_turns
from widenet_jax.vision.data.folders import ImageFolder
from widenet_jax.vision.data.transforms import TrainTransform

OPERATIONS = {
    "decode, crop, flip": {"randaugment_layers": 0, "randaugment_magnitude": 0.0},
    "and RandAugment": {"randaugment_layers": 2, "randaugment_magnitude": 15.0},
}
CROP = {
    "crop": "inception",
    "crop_area_min": 0.05,
    "pad_pixels": 0,
    "flip": True,
    "randaugment_before_crop": False,
    "exif_orientation": False,
    "color_jitter": 0.0,
    "random_erasing": 0.0,
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
        options = augment | {"image_size": sizes["image_size"]}
        transform = TrainTransform(**CROP, **options)
        turns = our_turns(source, transform, sizes["batch_size"], workers)
        if importlib.util.find_spec("tensorflow"):
            from widenet_jax.ops.benchmark import tf_pipeline

            theirs = partial(tf_pipeline.batches, files, **augment, **sizes)
            turns[TF_DATA] = lambda theirs=theirs: nullcontext(theirs())
        found = take_turns(turns, sizes["batch_size"], rounds=rounds, seconds=seconds)
        medians = summarize(found, unit="images", peer=TF_DATA)
        rows += [{"operations": operations, **row} for row in medians]
    return rows
