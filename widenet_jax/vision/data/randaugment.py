"""RandAugment: applies N operations in sequence, drawn from a fixed set, all at magnitude M.

Cubuk et al. 2020 (arXiv:1909.13719), with the operations and the strengths of the implementation
released for TPUs, which trained the published models: sixteen operations and one empty slot. M = 10
is the nominal strength; larger values are allowed (the recipe has M = 15). If Pillow has an
operation, the pixels are those that Pillow computes. Known differences:
  - Contrast blends with the image's mean grey, as in Pillow. The released code divides a pixel
    count by 256 instead of averaging, so at 224 pixels it blends with the constant 196.
  - Color and Sharpness may differ from Pillow by one grey level (rounding of the blend).
  - Solarize at M >= 10 has a threshold of 256 or more and changes nothing, in Pillow too.
  - Lengths in pixels (Cutout, TranslateX, TranslateY) are the released code's at 224 pixels, and
    scale with the image size.

Images are uint8 [H, W, C], C = 1 or 3 (RGB), of any size. Color leaves grey images unchanged.
"""

import math
from collections.abc import Callable

import cv2
import numpy as np

LEVEL_SCALE = 10.0
REFERENCE_SIZE = 224
CUTOUT_PIXELS = 40.0
TRANSLATE_PIXELS = 100.0
FILL = 128
_LEVELS = np.arange(256)
# ITU-R 601 luma with Pillow's 16-bit weights.
_LUMA = np.array([19595, 38470, 7471], np.int32)

Operation = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


# --- Operations on single pixel values: lookup tables of 256 entries ------------------------------


def _apply_table(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Maps every value through `table`: uint8 [256], or [1, 256, C] for one per channel."""
    return cv2.LUT(image, table).reshape(image.shape)


def _map_channels(image: np.ndarray, table_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Maps each channel through the table that `table_of` makes of its histogram, int64 [256]."""
    counts = (cv2.calcHist([image], [c], None, [256], [0, 256]) for c in range(image.shape[2]))
    tables = [table_of(count.astype(np.int64).ravel()) for count in counts]
    return _apply_table(image, np.stack(tables, axis=-1)[None])


def _autocontrast_table(histogram: np.ndarray) -> np.ndarray:
    used = np.flatnonzero(histogram)
    low, high = used[0], used[-1]
    if high <= low:
        return _LEVELS.astype(np.uint8)
    scale = 255.0 / (high - low)
    return np.clip((_LEVELS * scale - low * scale).astype(np.int64), 0, 255).astype(np.uint8)


def _equalize_table(histogram: np.ndarray) -> np.ndarray:
    used = np.flatnonzero(histogram)
    step = (histogram.sum() - histogram[used[-1]]) // 255
    if len(used) <= 1 or step == 0:
        return _LEVELS.astype(np.uint8)
    below = np.cumsum(histogram) - histogram
    return np.clip((below + step // 2) // step, 0, 255).astype(np.uint8)


def auto_contrast(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Stretches each channel to the full range."""
    return _map_channels(image, _autocontrast_table)


def equalize(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Flattens each channel's histogram."""
    return _map_channels(image, _equalize_table)


def invert(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Replaces each value by 255 - value."""
    return 255 - image


def posterize(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Keeps the highest int(4 M / 10) bits (6 at M = 15; eight keep everything)."""
    bits = min(int(magnitude / LEVEL_SCALE * 4), 8)
    return image & np.uint8((0xFF << (8 - bits)) & 0xFF)


def solarize(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Inverts values of at least int(256 M / 10)."""
    threshold = int(magnitude / LEVEL_SCALE * 256)
    table = np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS)
    return _apply_table(image, table.astype(np.uint8))


def solarize_add(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Adds int(110 M / 10) to values below 128."""
    added = np.minimum(_LEVELS + int(magnitude / LEVEL_SCALE * 110), 255)
    return _apply_table(image, np.where(_LEVELS < 128, added, _LEVELS).astype(np.uint8))


# --- Blends: factor 0 gives a degenerate image, 1 the image itself, more than 1 extrapolates ------


def _factor(magnitude: float) -> float:
    return magnitude / LEVEL_SCALE * 1.8 + 0.1


def magnitude_of(factor: float) -> float:
    """Returns the magnitude at which Color, Contrast and Brightness have this factor."""
    return (factor - 0.1) / 1.8 * LEVEL_SCALE


def _blend_table(degenerate: int, factor: float) -> np.ndarray:
    """Blends every value with one grey level; truncates fractions, as Pillow does."""
    blended = degenerate + np.float32(factor) * (_LEVELS - degenerate).astype(np.float32)
    return np.clip(blended, 0, 255).astype(np.uint8)


def _blend(degenerate: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    # addWeighted rounds to nearest; subtracting almost half a level makes it truncate.
    blended = cv2.addWeighted(image, factor, degenerate, 1 - factor, -0.499)
    return blended.reshape(image.shape)


def _grey(image: np.ndarray) -> np.ndarray:
    """Computes the luma: uint8 [H, W]."""
    if image.shape[2] == 1:
        return image[..., 0]
    return ((image @ _LUMA + 0x8000) >> 16).astype(np.uint8)


def color(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Blends with the grey version of the image, or extrapolates away from it."""
    if image.shape[2] == 1:
        return image
    grey = cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB)
    return _blend(grey, image, _factor(magnitude))


def contrast(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Blends with the image's mean grey level, or extrapolates away from it."""
    mean = int(_grey(image).mean() + 0.5)
    return _apply_table(image, _blend_table(mean, _factor(magnitude)))


def brightness(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Blends with black, or extrapolates away from it."""
    return _apply_table(image, _blend_table(0, _factor(magnitude)))


def sharpness(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Blends with a 3x3 blur, or extrapolates away from it; border pixels do not change."""
    kernel = np.ones((3, 3), np.float32)
    kernel[1, 1] = 5
    smooth = image.copy()
    inner = cv2.filter2D(image, -1, kernel / 13).reshape(image.shape)
    smooth[1:-1, 1:-1] = inner[1:-1, 1:-1]
    return _blend(smooth, image, _factor(magnitude))


# --- Geometry: nearest-pixel sampling, grey outside the image -------------------------------------


def _signed(value: float, rng: np.random.Generator) -> float:
    return value if rng.integers(2) else -value


def warp(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Computes output(x, y) = image(matrix @ (x, y, 1)) at the nearest pixel.

    Args:
      image: uint8 [H, W, C].
      matrix: float [2, 3], with the convention of Pillow's Image.transform(AFFINE): the centre of
        the first pixel is (0.5, 0.5).
    """
    # OpenCV puts the centre of the first pixel at (0, 0).
    corner = matrix.astype(np.float64).copy()
    corner[:, 2] += corner[:, :2].sum(axis=1) * 0.5 - 0.5
    nearest, size = cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP, (image.shape[1], image.shape[0])
    warped = cv2.warpAffine(
        image, corner, size, flags=nearest, borderMode=cv2.BORDER_CONSTANT, borderValue=(FILL,) * 3
    )
    return warped.reshape(image.shape)


def rotate(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Rotates by 30 M / 10 degrees about the centre, in a random direction."""
    angle = math.radians(_signed(magnitude / LEVEL_SCALE * 30.0, rng))
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = image.shape[1] / 2, image.shape[0] / 2
    matrix = [[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]]
    return warp(image, np.array(matrix))


def shear_x(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Shears in x: moves row y by 0.3 M / 10 * y pixels, in a random direction."""
    return warp(image, np.array([[1, _signed(magnitude / LEVEL_SCALE * 0.3, rng), 0], [0, 1, 0]]))


def shear_y(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Shears in y: moves column x by 0.3 M / 10 * x pixels, in a random direction."""
    return warp(image, np.array([[1, 0, 0], [_signed(magnitude / LEVEL_SCALE * 0.3, rng), 1, 0]]))


def _translate(
    image: np.ndarray, magnitude: float, rng: np.random.Generator, axis: int
) -> np.ndarray:
    """Computes output[i] = image[i + shift] along `axis`, with FILL outside the image."""
    scale = image.shape[axis] / REFERENCE_SIZE
    pixels = _signed(magnitude / LEVEL_SCALE * TRANSLATE_PIXELS * scale, rng)
    shift, padding = math.floor(pixels + 0.5), [(0, 0)] * 3
    padding[axis] = (max(0, -shift), max(0, shift))
    padded = np.pad(image, padding, constant_values=FILL).swapaxes(0, axis)
    return padded[max(0, shift) :][: image.shape[axis]].swapaxes(0, axis)


def translate_x(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Shifts left or right by 100 M / 10 pixels at a width of 224."""
    return _translate(image, magnitude, rng, axis=1)


def translate_y(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Shifts up or down by 100 M / 10 pixels at a height of 224."""
    return _translate(image, magnitude, rng, axis=0)


def cutout(image: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Paints a grey square of half-width int(40 M / 10) pixels (at 224) about a random pixel."""
    height, width = image.shape[:2]
    reach = int(magnitude / LEVEL_SCALE * CUTOUT_PIXELS * min(height, width) / REFERENCE_SIZE)
    y, x = int(rng.integers(height)), int(rng.integers(width))
    holed = image.copy()
    holed[max(0, y - reach) : y + reach, max(0, x - reach) : x + reach] = FILL
    return holed


def by_name(*operations: Callable) -> dict[str, Callable]:
    """Maps the paper's names of operations to functions: "ShearX" to `shear_x`."""
    return {of.__name__.title().replace("_", ""): of for of in operations}


OPERATIONS: dict[str, Operation] = by_name(
    auto_contrast, equalize, invert, rotate, posterize, solarize, color, contrast, brightness,
    sharpness, shear_x, shear_y, translate_x, translate_y, cutout, solarize_add,
)  # fmt: skip
_DRAW: tuple[Operation | None, ...] = (*OPERATIONS.values(), None)


def rand_augment(
    image: np.ndarray, *, num_layers: int, magnitude: float, rng: np.random.Generator
) -> np.ndarray:
    """Applies `num_layers` operations, each drawn uniformly from OPERATIONS and the empty slot.

    Args:
      image: uint8 [H, W, C], C = 1 or 3.
      num_layers: N, the number of operations.
      magnitude: M; LEVEL_SCALE is the nominal strength.
      rng: draws the operations, their directions and positions.

    Returns:
      uint8 [H, W, C]; the input is not modified.
    """
    for _ in range(num_layers):
        operation = _DRAW[int(rng.integers(len(_DRAW)))]
        if operation is not None:
            image = operation(np.ascontiguousarray(image), magnitude, rng)
    return image
