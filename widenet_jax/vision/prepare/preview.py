"""Pictures of an image classifier's inputs: rows of augmentations."""

import sys
import textwrap
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from widenet_jax.config.parser import Options
from widenet_jax.data.blocks import Complaints, augmentation_rng, read, skips
from widenet_jax.data.contract import Example
from widenet_jax.data.sources import build_source, overview
from widenet_jax.errors import BadInputError
from widenet_jax.run.figures import save, subplots
from widenet_jax.vision.data.transforms import build_transforms

TILE = 2.0  # inches a side
LETTERS = 14  # of a class name above a tile: as wide as this many Chinese characters

Row = tuple[str, list[np.ndarray]]


def draw_augmentations(config: Any, options: Options) -> None:
    """Draws the `augmentations` to --out, a row for each image below the name of its class."""
    if not options.out:
        raise BadInputError("preview of images needs --out=PNG")
    rows = augmentations(config, options.num, options.draws or 6, options.seed)
    columns, side = len(rows[0][1]), len(rows[0][1][0])
    captions = ["evaluation", *(f"epoch {epoch}" for epoch in range(columns - 1))]
    size = (TILE * columns, (TILE + 0.5) * len(rows))
    figure, axes = subplots(len(rows), size=size, squeeze=False)
    for (name, pictures), axis in zip(rows, axes.flat, strict=True):
        axis.imshow(np.concatenate(pictures, axis=1).squeeze(), cmap="gray", vmin=0, vmax=255)
        axis.set_title(textwrap.fill(name, LETTERS * columns), fontsize=8, loc="left")
        axis.set_xticks((np.arange(columns) + 0.5) * side - 0.5, captions, fontsize=8)
        axis.set_yticks([])
    save(figure, options.out)
    print(f"{options.out}: {len(rows)} images")


def augmentations(
    config: Mapping[str, Any], num_images: int, num_draws: int, seed: int
) -> list[Row]:
    """Returns the class, the evaluation input and the augmentations of the first epochs of images.

    Prints on stderr a line on the split, and one for each image that cannot be read, in whose place
    the next one is taken where `data.on_bad_example` is "skip".

    Args:
      config: reads `data` and `augment`.
      num_images: number of images, spread evenly over the training split.
      num_draws: number of epochs drawn.
      seed: the run's seed, so that the augmentations are the same as in the run.

    Raises:
      BadExampleError: an image cannot be read and is not to be skipped.
    """
    data = config["data"]
    source = build_source(data, data["train_split"])
    train, evaluation = build_transforms(config["augment"], data["image_size"])
    chosen = np.linspace(0, len(source) - 1, min(num_images, len(source))).astype(int)
    print(overview([(data["train_split"], source)], "images"), file=sys.stderr)
    complaints: Complaints = []

    def row_of(example: Example, record: int) -> Row:
        image = train.image_of(example)
        rngs = (augmentation_rng(seed=seed, epoch=e, record=record) for e in range(num_draws))
        pictures = [evaluation.picture(image), *(train.picture(image, rng) for rng in rngs)]
        return source.class_names[example["label"]], pictures

    skip = skips(data["on_bad_example"])
    rows = [
        read(source, record, partial(row_of, record=record), complaints, skip=skip)
        for record in chosen.tolist()
    ]
    for line in dict(complaints).values():
        print(line, file=sys.stderr)
    return rows
