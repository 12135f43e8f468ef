"""Pictures of an image classifier's inputs: a grid of augmentations, a sheet of all operations."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import cv2
import numpy as np

from widenet_jax.config.parser import Options
from widenet_jax.data import sampler
from widenet_jax.data.chunks import Complaints, read, skips
from widenet_jax.data.contract import Example
from widenet_jax.data.input_files import read_regular
from widenet_jax.data.sources import build_source, overview
from widenet_jax.errors import BadInputError, check_range
from widenet_jax.files import write_bytes
from widenet_jax.run.lettering import line_of_text
from widenet_jax.vision.data import files
from widenet_jax.vision.data.randaugment import OPERATIONS
from widenet_jax.vision.data.transforms import build_transforms, image_of

SHEET_COLUMNS = 6
_NAME_HEIGHT, _CAPTION_HEIGHT = 22, 18
_LEAST_WIDTH = 112  # of a tile: room for its caption
_MARGIN = 2


def draw_augmentations(config: Any, options: Options) -> None:
    """Writes the picture of `augmentation_grid` to --out."""
    _check_out(options)
    picture = augmentation_grid(
        config,
        seed=options.seed,
        note=lambda line: print(line, file=sys.stderr),
        num_images=options.num,
        num_draws=options.draws or 6,
    )
    _write(picture, options)


def draw_operations(options: Options) -> None:
    """Writes the picture of `operations_sheet` on a photo to --out."""
    _check_out(options)
    check_range("--magnitude", options.magnitude, 0.0, 30.0)
    photo = files.decode(read_regular(options.operations), options.operations)
    _write(operations_sheet(photo, options.magnitude, options.size, options.seed), options)


def _check_out(options: Options) -> None:
    if not options.out:
        raise BadInputError("preview of images needs --out=PNG")


def _write(picture: np.ndarray, options: Options) -> None:
    png = cv2.imencode(".png", np.ascontiguousarray(picture[..., ::-1]))[1]
    write_bytes(options.out, png.tobytes())
    print(f"{options.out}: {picture.shape[1]} x {picture.shape[0]} pixels")


def augmentation_grid(
    config: Mapping[str, Any],
    *,
    num_images: int,
    num_draws: int,
    seed: int,
    note: Callable[[str], None],
) -> np.ndarray:
    """Draws one row per image: the evaluation input, then the augmentations of the first epochs.

    The name of its class stands above each row.

    Args:
      config: reads `data` and `augment`.
      num_images: number of rows, spread evenly over the training split.
      num_draws: number of epochs drawn.
      seed: the run's seed; the augmentations are those of the run.
      note: receives a line on the split, and one for each image that cannot be read, in whose place
        the next one is drawn where `data.on_bad_example` is "skip".

    Returns:
      uint8 [height, width, 3] RGB.

    Raises:
      BadExampleError: an image cannot be read and is not to be skipped.
    """
    data = config["data"]
    source = build_source(data, data["train_split"])
    train, evaluation = build_transforms(config["augment"], data["image_size"])
    chosen = np.linspace(0, len(source) - 1, min(num_images, len(source))).astype(int)
    note(overview([(data["train_split"], source)], "images"))
    complaints: Complaints = []

    def row_of(example: Example, record: int) -> np.ndarray:
        image = image_of(example, exif_orientation=train.exif_orientation)
        tiles = [evaluation.picture(image)]
        for epoch in range(num_draws):
            rng = sampler.augmentation_rng(seed=seed, epoch=epoch, record=record)
            tiles.append(train.picture(image, rng))
        name = source.class_names[example["label"]]
        row = _row(tiles, ["evaluation", *(f"epoch {epoch}" for epoch in range(num_draws))])
        return _stack([line_of_text(name, height=_NAME_HEIGHT), row])

    skip = skips(data["on_bad_example"])
    rows = [
        read(source, record, partial(row_of, record=record), complaints, skip=skip)
        for record in chosen.tolist()
    ]
    for line in dict(complaints).values():
        note(line)
    return _stack(rows)


def operations_sheet(image: np.ndarray, magnitude: float, size: int, seed: int = 0) -> np.ndarray:
    """Draws an image and every RandAugment operation on it: uint8 [height, width, 3] RGB.

    Args:
      image: uint8 [H, W, C].
      magnitude: M, on RandAugment's scale of ten.
      size: side of the square to which the image is resized first.
      seed: seed of the operations' directions and positions.
    """
    rng = np.random.default_rng(seed)
    image = files.squash(image, size, smooth=True)
    tiles = [image] + [operation(image, magnitude, rng) for operation in OPERATIONS.values()]
    captions = ["original", *OPERATIONS]
    tiles += [np.full_like(image, 255)] * (-len(tiles) % SHEET_COLUMNS)
    captions += [""] * (len(tiles) - len(captions))
    rows = (slice(i, i + SHEET_COLUMNS) for i in range(0, len(tiles), SHEET_COLUMNS))
    return np.concatenate([_row(tiles[row], captions[row]) for row in rows])


def _row(tiles: Sequence[np.ndarray], captions: Sequence[str]) -> np.ndarray:
    return np.concatenate(
        [_captioned(tile, caption) for tile, caption in zip(tiles, captions, strict=True)], axis=1
    )


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
