"""Image files to pixels, and the crops: uint8 [H, W, C] in and out, C = 1 or 3 (RGB).

What crops or resizes takes an `EncodedImage` too, and decodes it.

NumPy and OpenCV only, so that worker processes stay light. OpenCV drops a trailing axis of one
channel; `_channels_back` restores it.
"""

import math

import cv2
import numpy as np

from widenet_jax.data.images.file_checks import examine, first_rows
from widenet_jax.errors import BadExampleError

# Parallelism is one image a worker; OpenCV's own threads would fight over the same cores.
cv2.setNumThreads(0)

# 8-bit RGB, without turning the photo as its EXIF says: labels and reference numbers belong to the
# stored pixels. The two flags combine; IMREAD_UNCHANGED (-1) would swallow any other flag, and keep
# alpha and 16 bits.
_DECODE_FLAGS = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION

ASPECT_RANGE = (3 / 4, 4 / 3)
CROP_ATTEMPTS = 100


class EncodedImage:
    """A JPEG or PNG file, decoded to uint8 RGB when it is sliced, and no further than that needs.

    Its pixels are the same however it is sliced. Grey becomes RGB, CMYK is converted, transparency
    is dropped, 16 bits keep the upper 8.

    Attributes:
      shape: (height, width, 3).
    """

    def __init__(self, data: bytes, where: str):
        """Looks at the file and decodes nothing.

        Args:
          data: the file's bytes.
          where: what to call the image in an error, e.g. its path.

        Raises:
          BadExampleError: the file is cut short, too large or no JPEG or PNG. Damage in the middle
            of a JPEG is mostly, not always, found: see `examine`.
        """
        self._data, self._where, self._facts = data, where, examine(data)
        if self._facts.problem:
            raise self._bad(self._facts.problem)
        self.shape = (self._facts.height, self._facts.width, 3)

    def __getitem__(self, window: tuple[slice, slice]) -> np.ndarray:
        """image[top:bottom, left:right] as of an array, with bounds inside of it.

        Raises:
          BadExampleError: the file cannot be decoded.
        """
        bottom = window[0].stop
        upper = self._data if bottom is None else first_rows(self._data, self._facts, bottom)
        image = _decode(upper)
        if image is None and upper is not self._data:
            # Data are missing: libjpeg fills up with grey, but only where it meets the file's end.
            image = _decode(self._data)
        if image is None:
            raise self._bad("not a readable JPEG or PNG image")
        return image[window]

    def _bad(self, problem: str) -> BadExampleError:
        size = f"{len(self._data):,} bytes"
        return BadExampleError(f"{self._where}: {problem} ({size}); replace or remove it")


Image = np.ndarray | EncodedImage


def decode(data: bytes, where: str) -> np.ndarray:
    """The whole of an `EncodedImage`: uint8 [H, W, 3]. Raises as that does."""
    return EncodedImage(data, where)[:, :]


def _decode(data: bytes) -> np.ndarray | None:
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), _DECODE_FLAGS)
    except cv2.error as error:
        if error.code == cv2.Error.StsNoMem:  # the machine's fault, not the file's
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
      smooth: average over the source area when shrinking (evaluation); otherwise, and whenever
        enlarging, bilinear between the four nearest pixels.
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
    """The window of an inception crop: (top, left, window height, window width).

    Drawn as TensorFlow's sample_distorted_bounding_box draws it, which trained the published
    models: an aspect ratio (width / height) uniform in 3/4..4/3, then a height uniform among those
    whose area is within area_min..1 of the image, then a place. So it is the side and not the area
    that is uniform. After 100 failures, the whole image.
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
    """A random window of the image, resized to uint8 [size, size, C]."""
    top, left, height, width = random_window(*image.shape[:2], area_min, rng)
    return resize(image[top : top + height, left : left + width], size, size, smooth=False)


def pad_and_crop(image: np.ndarray, pad: int, rng: np.random.Generator) -> np.ndarray:
    """The image moved by up to `pad` pixels each way; what comes in from outside is black."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    top, left = (int(v) for v in rng.integers(2 * pad + 1, size=2))
    return padded[top : top + height, left : left + width]


def random_flip(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirrored left to right, every other time."""
    return _channels_back(cv2.flip(image, 1)) if rng.integers(2) else image


def squash(image: Image, size: int, *, smooth: bool) -> np.ndarray:
    """The whole image at [size, size, C], whatever its aspect ratio."""
    return resize(image[:, :], size, size, smooth=smooth)


def central_crop(image: Image, size: int, short_side: int) -> np.ndarray:
    """Resizes the shorter side to `short_side`, then cuts [size, size, C] from the centre."""
    image = image[:, :]
    height, width = image.shape[:2]
    scale = short_side / min(height, width)
    scaled = resize(image, round(height * scale), round(width * scale), smooth=True)
    top, left = (scaled.shape[0] - size) // 2, (scaled.shape[1] - size) // 2
    return scaled[top : top + size, left : left + size]
