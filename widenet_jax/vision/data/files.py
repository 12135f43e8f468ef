"""Decoding of image files, and crops: uint8 [H, W, C] in and out, C = 1 or 3 (RGB).

Most crops also take an `EncodedImage`, and decode only the rows that they need.

Imports NumPy and OpenCV, and Pillow only where a file needs it, so that worker processes stay
light. OpenCV drops a trailing axis of one channel; `_channels_back` restores it.
"""

import math

import cv2
import numpy as np

from widenet_jax.errors import BadExampleError
from widenet_jax.vision.data import pillow_files
from widenet_jax.vision.data.file_checks import examine, first_rows

# Each worker decodes one image at a time; OpenCV's threads would compete for the same cores.
cv2.setNumThreads(0)

# 8-bit RGB of the stored pixels; `EncodedImage` turns them where the user asks for it.
# IMREAD_UNCHANGED (-1) would override the other flag and keep alpha and 16 bits.
_DECODE_FLAGS = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION

ASPECT_RANGE = (3 / 4, 4 / 3)
CROP_ATTEMPTS = 100


class EncodedImage:
    """An image file, decoded to uint8 RGB when it is sliced, a JPEG down to the last row needed.

    The pixels do not depend on the slice, and equal Pillow's: grey becomes RGB, CMYK is
    converted, transparency is dropped, of 16 bits the upper 8 remain, and of several frames the
    first.

    Attributes:
      shape: (height, width, 3), after turning.
    """

    def __init__(self, data: bytes, where: str, *, exif_orientation: bool = False):
        """Examines the file without decoding it.

        Args:
          data: the file's bytes.
          where: the image's name in messages, e.g. its path.
          exif_orientation: whether to turn the image as its EXIF says. (A TIFF is always turned.)

        Raises:
          BadExampleError: the file is cut short, too large, or of no kind that is read. `examine`
            says which damage inside a JPEG is found.
        """
        self._data, self._where, self._info = data, where, examine(data)
        if self._info.problem:
            raise self._bad(self._info.problem)
        self._turn = pillow_files.orientation_of(data) if exif_orientation else pillow_files.UPRIGHT
        height, width = self._info.height, self._info.width
        sideways = self._turn > 4
        self.shape = (width, height, 3) if sideways else (height, width, 3)

    def __getitem__(self, window: tuple[slice, slice]) -> np.ndarray:
        """Decodes image[top:bottom, left:right]; the bounds must lie inside the image.

        Raises:
          BadExampleError: the file cannot be decoded.
        """
        if self._info.pillow:
            image = pillow_files.decode(self._data, self._info.pillow)
        elif self._turn != pillow_files.UPRIGHT:
            image = _decode(self._data)
        else:
            image = self._decode_rows(window[0].stop)
        if image is None:
            raise self._bad("damaged or truncated, cannot be decoded")
        return pillow_files.turn(image, self._turn)[window]

    def _decode_rows(self, bottom: int | None) -> np.ndarray | None:
        """Decodes the rows above `bottom`, and others where that is no slower."""
        upper = self._data if bottom is None else first_rows(self._data, self._info, bottom)
        image = _decode(upper)
        if image is None and upper is not self._data:
            # Image data are missing. libjpeg fills the gap with grey only if the file has its end.
            image = _decode(self._data)
        return image

    def _bad(self, problem: str) -> BadExampleError:
        size = f"{len(self._data):,} bytes"
        return BadExampleError(f"{self._where}: {problem} ({size}); replace or remove it")


Image = np.ndarray | EncodedImage


def decode(data: bytes, where: str, *, exif_orientation: bool = False) -> np.ndarray:
    """Decodes a whole file to uint8 [H, W, 3]. Arguments and errors: see `EncodedImage`."""
    return EncodedImage(data, where, exif_orientation=exif_orientation)[:, :]


def _decode(data: bytes) -> np.ndarray | None:
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), _DECODE_FLAGS)
    except cv2.error as error:
        if error.code == cv2.Error.StsNoMem:  # out of memory says nothing about the file
            raise
        return None


def _channels_back(image: np.ndarray) -> np.ndarray:
    return image if image.ndim == 3 else image[..., None]


def resize(image: np.ndarray, height: int, width: int, *, smooth: bool) -> np.ndarray:
    """Resizes to [height, width, C].

    Args:
      image: uint8 [H, W, C].
      height: new height.
      width: new width.
      smooth: average over the source area when shrinking (evaluation). Without it, and when
        enlarging, interpolate between the four nearest pixels.
    """
    old_height, old_width = image.shape[:2]
    if (old_height, old_width) == (height, width):
        return image
    shrinking = height * width < old_height * old_width
    method = cv2.INTER_AREA if smooth and shrinking else cv2.INTER_LINEAR
    return _channels_back(cv2.resize(image, (width, height), interpolation=method))


def random_window(
    height: int, width: int, area_min: float, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draws the window of an inception crop: (top, left, window height, window width).

    Follows TensorFlow's sample_distorted_bounding_box, with which the published models were
    trained: an aspect ratio (width / height) uniform in 3/4..4/3, then a height uniform among those
    that give an area within area_min..1 of the image, then a position. The side is uniform, not the
    area. After 100 failed attempts the window is the whole image.
    """
    lowest, highest = area_min * height * width, float(height * width)
    for _ in range(CROP_ATTEMPTS):
        aspect = rng.uniform(*ASPECT_RANGE)
        shortest = round(math.sqrt(lowest / aspect))
        tallest = min(height, round(math.sqrt(highest / aspect)), int((width + 0.5) / aspect))
        window_height = int(rng.integers(shortest, max(tallest, shortest) + 1))
        window_width = round(window_height * aspect)
        fits = 1 <= window_height <= height and 1 <= window_width <= width
        if fits and lowest <= window_height * window_width <= highest:
            top = int(rng.integers(height - window_height + 1))
            left = int(rng.integers(width - window_width + 1))
            return top, left, window_height, window_width
    return 0, 0, height, width


def inception_crop(
    image: Image, size: int, area_min: float, rng: np.random.Generator
) -> np.ndarray:
    """Resizes a random window of the image to uint8 [size, size, C]."""
    top, left, height, width = random_window(*image.shape[:2], area_min, rng)
    return resize(image[top : top + height, left : left + width], size, size, smooth=False)


def pad_and_crop(image: np.ndarray, pad: int, rng: np.random.Generator) -> np.ndarray:
    """Shifts the image by up to `pad` pixels in each direction; pixels from outside are black."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    top, left = (int(v) for v in rng.integers(2 * pad + 1, size=2))
    return padded[top : top + height, left : left + width]


def random_flip(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirrors the image left to right with probability 1/2."""
    return _channels_back(cv2.flip(image, 1)) if rng.integers(2) else image


def squash(image: Image, size: int, *, smooth: bool) -> np.ndarray:
    """Resizes the whole image to [size, size, C]; its aspect ratio is not kept."""
    return resize(image[:, :], size, size, smooth=smooth)


def central_crop(image: Image, size: int, short_side: int) -> np.ndarray:
    """Resizes the shorter side to `short_side`, then cuts [size, size, C] from the centre."""
    image = image[:, :]
    height, width = image.shape[:2]
    scale = short_side / min(height, width)
    scaled = resize(image, round(height * scale), round(width * scale), smooth=True)
    top, left = (scaled.shape[0] - size) // 2, (scaled.shape[1] - size) // 2
    return scaled[top : top + size, left : left + size]
