"""Images for a trained classifier: files and arrays, cropped as in evaluation."""

import os

import cv2
import numpy as np
from PIL import Image, ImageOps

from widenet_jax.data.images.files import decode
from widenet_jax.data.images.transforms import build_transforms
from widenet_jax.data.input_files import read_regular
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.weights.trained import Trained

# A file, an image of Pillow, or uint8 [H, W, 3] (RGB), [H, W, 1] or [H, W].
Picture = str | os.PathLike[str] | Image.Image | np.ndarray


def picture_of(image: Picture, trained: Trained) -> np.ndarray:
    """Returns an image cropped and resized as in evaluation: uint8 [h, w, C].

    Raises:
      BadExampleError: the file cannot be read or decoded.
      BadInputError: an array of another type or shape.
    """
    turn = trained.config.augment.exif_orientation
    if isinstance(image, str | os.PathLike):
        pixels = read_file(os.fspath(image), turn)
    elif isinstance(image, Image.Image):
        pixels = np.asarray((ImageOps.exif_transpose(image) if turn else image).convert("RGB"))
    else:
        pixels = rgb(image)
    if trained.task.image_shape[2] == 1:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None]
    _, transform = build_transforms(trained.config.augment, trained.config.data.image_size)
    return transform.picture(pixels)


def read_file(path: str, turn: bool) -> np.ndarray:
    """Decodes an image file to uint8 [H, W, 3], turned as its EXIF says where `turn` is True."""
    try:
        return decode(read_regular(path), path, exif_orientation=turn)
    except OSError as error:
        raise BadExampleError(f"{path}: {error.strerror}") from None


def rgb(image: np.ndarray) -> np.ndarray:
    """Returns an array of pixels as uint8 [H, W, 3]."""
    pixels = np.asarray(image)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    channels = pixels.shape[2:]
    if pixels.dtype != np.uint8 or channels not in [(1,), (3,)] or not pixels.size:
        raise BadInputError(
            f"an image is an array {pixels.dtype} {list(pixels.shape)}; give a path, an image of "
            "Pillow, or uint8 [height, width, 3] or [height, width]"
        )
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
