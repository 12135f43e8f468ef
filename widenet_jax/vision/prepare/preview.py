"""Pictures of an image classifier's inputs: rows of augmentations, mixed as in training."""

import itertools
import sys
import textwrap
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from widenet_jax.config.parser import Options
from widenet_jax.data.blocks import augmentation_rng, read, skips
from widenet_jax.data.contract import Example
from widenet_jax.data.sources import build_source, overview
from widenet_jax.errors import BadInputError
from widenet_jax.files import FIGURE, check_output
from widenet_jax.run.figures import save, subplots
from widenet_jax.vision.data.transforms import build_transforms

TILE = 2.0  # inches a side
LETTERS = 14  # of a class name above a tile: as wide as this many Chinese characters
MIXED = "%: of the row's label; the rest is the next row's, in training the next image's"

Row = tuple[str, list[np.ndarray]]


def draw_augmentations(config: Any, options: Options) -> None:
    """Draws the `augmentations` to --out, a row for each image below the name of its class."""
    if not options.out:
        raise BadInputError("preview of images needs --out=PNG")
    check_output(options.out, "--out", "a figure of this project", FIGURE)
    draws, mixes = options.draws or 6, config.augment.mixup_alpha or config.augment.cutmix_alpha
    # Mixing takes the next row, also where a single one is drawn.
    rows = augmentations(config, max(options.num, 2 if mixes else 1), draws, options.seed)
    shares = mix(rows, config.augment, options.seed)[: options.num] if mixes else []
    rows = rows[: options.num]
    columns, side = len(rows[0][1]), len(rows[0][1][0])
    captions = ["evaluation", *(f"epoch {epoch}" for epoch in range(columns - 1))]
    size = (TILE * columns, (TILE + 0.5) * len(rows))
    figure, axes = subplots(len(rows), size=size, squeeze=False)
    for (name, pictures), axis in zip(rows, axes.flat, strict=True):
        axis.imshow(np.concatenate(pictures, axis=1).squeeze(), cmap="gray", vmin=0, vmax=255)
        axis.set_title(textwrap.fill(name, LETTERS * columns), fontsize=8, loc="left")
        axis.set_xticks((np.arange(columns) + 0.5) * side - 0.5, captions, fontsize=8)
        axis.set_yticks([])
    for axis, of in zip(axes.flat, shares, strict=bool(mixes)):
        for column, share in enumerate(of, start=1):
            style = {"fontsize": 7, "va": "top", "bbox": {"color": "white", "pad": 1}}
            axis.text((column + 0.03) * side, 0.03 * side, f"{share:.0%}", **style)
    if mixes:
        figure.supxlabel(MIXED, fontsize=8)
    save(figure, options.out)
    print(f"{options.out}: {len(rows)} images")


def mix(rows: list[Row], augment: Any, seed: int) -> np.ndarray:
    """Mixes each draw of a row with the next row's, by mixup or CutMix.

    Returns:
      The share of its own label in each draw of each row, [rows, draws].
    """
    import jax  # takes long to import

    from widenet_jax.vision.task import mixup_or_cutmix

    drawn = np.stack([pictures[1:] for _, pictures in rows], axis=1)  # [draws, rows, H, W, C]
    labels = np.tile(np.eye(len(rows), dtype=np.float32), (len(drawn), 1))
    images = drawn.reshape(-1, *drawn.shape[2:]).astype(np.float32)
    settings = augment["mixup_alpha"], augment["cutmix_alpha"], len(rows)
    images, labels = mixup_or_cutmix(jax.random.key(seed), images, labels, *settings)
    mixed = np.asarray(images).round().astype(np.uint8).reshape(drawn.shape)
    for row, (_, pictures) in enumerate(rows):
        pictures[1:] = mixed[:, row]
    return np.diagonal(labels.reshape(*drawn.shape[:2], -1), axis1=1, axis2=2).T


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

    def row_of(example: Example, record: int) -> Row:
        image = train.image_of(example)
        rngs = (augmentation_rng(seed=seed, epoch=e, record=record) for e in range(num_draws))
        pictures = [evaluation.picture(image), *(train.picture(image, rng) for rng in rngs)]
        return source.class_names[example["label"]], pictures

    skip = skips(data["on_bad_example"])
    found = [
        read(source, record, partial(row_of, record=record), skip=skip)
        for record in chosen.tolist()
    ]
    for line in dict(itertools.chain.from_iterable(complaints for _, complaints in found)).values():
        print(line, file=sys.stderr)
    return [row for row, _ in found]
