"""Images for a trained classifier: files and arrays, cropped as in evaluation."""

import os

import cv2
import numpy as np
from PIL import Image, ImageOps

from widenet_jax.data.input_files import read_regular
from widenet_jax.errors import BadExampleError, BadInputError, first_line
from widenet_jax.inference.trained import Trained
from widenet_jax.vision.data import pillow_files
from widenet_jax.vision.data.files import decode
from widenet_jax.vision.data.transforms import build_transforms

# A file, an image of Pillow, or uint8 [H, W, 3] (RGB), [H, W, 1] or [H, W].
Picture = str | os.PathLike[str] | Image.Image | np.ndarray


def picture_of(image: Picture, trained: Trained) -> np.ndarray:
    """Returns an image cropped and resized as in evaluation: uint8 [h, w, C].

    Raises:
      BadExampleError: the file or Pillow's image cannot be read or decoded.
      BadInputError: an array of another type or shape.
    """
    turn = trained.config.augment.exif_orientation
    if isinstance(image, str | os.PathLike):
        pixels = read_file(os.fspath(image), turn)
    elif isinstance(image, Image.Image):
        pixels = read_pillow(image, turn)
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


def read_pillow(image: Image.Image, turn: bool) -> np.ndarray:
    """Returns an image of Pillow as `read_file` does its file."""
    where = getattr(image, "filename", "") or "an image of Pillow"
    if problem := pillow_files.problem_of(image):
        raise BadExampleError(f"{where}: {problem}")
    try:
        return pillow_files.pixels_of(ImageOps.exif_transpose(image) if turn else image)
    except MemoryError:  # says nothing about the image
        raise
    except Exception as error:  # Pillow raises many kinds at damaged files
        raise BadExampleError(f"{where}: cannot be decoded ({first_line(error)})") from None


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
