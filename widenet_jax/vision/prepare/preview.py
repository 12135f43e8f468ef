"""Pictures of an image classifier's inputs: a grid of augmentations."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import cv2
import numpy as np

from widenet_jax.config.parser import Options
from widenet_jax.data import blocks
from widenet_jax.data.blocks import Complaints, read, skips
from widenet_jax.data.contract import Example
from widenet_jax.data.sources import build_source, overview
from widenet_jax.errors import BadInputError
from widenet_jax.files import write_bytes
from widenet_jax.run.figures import line_of_text
from widenet_jax.vision.data.transforms import build_transforms

_NAME_HEIGHT, _CAPTION_HEIGHT = 22, 18
_LEAST_WIDTH = 112  # of a tile: room for its caption
_MARGIN = 2


def draw_augmentations(config: Any, options: Options) -> None:
    """Writes the picture of `augmentation_grid` to --out."""
    if not options.out:
        raise BadInputError("preview of images needs --out=PNG")
    picture = augmentation_grid(config, options.num, options.draws or 6, options.seed)
    png = cv2.imencode(".png", np.ascontiguousarray(picture[..., ::-1]))[1]
    write_bytes(options.out, png.tobytes())
    print(f"{options.out}: {picture.shape[1]} x {picture.shape[0]} pixels")


def augmentation_grid(
    config: Mapping[str, Any], num_images: int, num_draws: int, seed: int
) -> np.ndarray:
    """Draws one row per image: the evaluation input, then the augmentations of the first epochs.

    The name of its class stands above each row. Prints on stderr a line on the split, and one for
    each image that cannot be read, in whose place the next one is drawn where `data.on_bad_example`
    is "skip".

    Args:
      config: reads `data` and `augment`.
      num_images: number of rows, spread evenly over the training split.
      num_draws: number of epochs drawn.
      seed: the run's seed, so that the augmentations are the same as in the run.

    Returns:
      uint8 [height, width, 3] RGB.

    Raises:
      BadExampleError: an image cannot be read and is not to be skipped.
    """
    data = config["data"]
    source = build_source(data, data["train_split"])
    train, evaluation = build_transforms(config["augment"], data["image_size"])
    chosen = np.linspace(0, len(source) - 1, min(num_images, len(source))).astype(int)
    print(overview([(data["train_split"], source)], "images"), file=sys.stderr)
    complaints: Complaints = []

    def row_of(example: Example, record: int) -> np.ndarray:
        image = train.image_of(example)
        tiles = [_captioned(evaluation.picture(image), "evaluation")]
        for epoch in range(num_draws):
            rng = blocks.augmentation_rng(seed=seed, epoch=epoch, record=record)
            tiles.append(_captioned(train.picture(image, rng), f"epoch {epoch}"))
        name = line_of_text(source.class_names[example["label"]], height=_NAME_HEIGHT)
        return _stack([name, np.concatenate(tiles, axis=1)])

    skip = skips(data["on_bad_example"])
    rows = [
        read(source, record, partial(row_of, record=record), complaints, skip=skip)
        for record in chosen.tolist()
    ]
    for line in dict(complaints).values():
        print(line, file=sys.stderr)
    return _stack(rows)


def _stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Puts rows below each other; white fills the right of narrower ones."""
    width = max(row.shape[1] for row in rows)
    beside = [((0, 0), (0, width - row.shape[1]), (0, 0)) for row in rows]
    padded = [np.pad(row, by, constant_values=255) for row, by in zip(rows, beside, strict=True)]
    return np.concatenate(padded)


def _captioned(image: np.ndarray, caption: str) -> np.ndarray:
    """Returns the image, enlarged if tiny, below a line of text: uint8 [H, W, 3]."""
    if image.shape[2] == 1:
        image = cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
    enlarge = -(-_LEAST_WIDTH // image.shape[1])
    image = image.repeat(enlarge, axis=0).repeat(enlarge, axis=1)
    tile = _stack([line_of_text(caption, height=_CAPTION_HEIGHT), image])
    return np.pad(tile, ((0, _MARGIN), (0, _MARGIN), (0, 0)), constant_values=255)
