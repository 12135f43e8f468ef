"""Transforms of labelled images for training and for evaluation, from `config.augment`.

Images are uint8 [H, W, C], C = 1 or 3 (RGB). Most crops also take an `EncodedImage`, and decode
only the rows that they need. OpenCV drops a trailing axis of one channel; `reshape` restores it.
"""

import dataclasses
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Union

import cv2
import numpy as np

from widenet_jax.data.contract import ArraySpec, Example
from widenet_jax.data.labelled import checked_pixels, label_of
from widenet_jax.errors import BadExampleError, BadInputError, check_range, choose

if TYPE_CHECKING:  # decoders and RandAugment are imported where a run needs them
    from widenet_jax.vision.data.files import EncodedImage

Image = Union[np.ndarray, "EncodedImage"]

TRAIN_CROPS = dict.fromkeys(("inception", "pad", "none"))
EVAL_CROPS = dict.fromkeys(("central", "squash"))
ANY_LABEL = 2**31  # where the classes are unknown: what int32 holds
ASPECT_RANGE = (3 / 4, 4 / 3)
CROP_ATTEMPTS = 100
LONGEST = 32  # sides of a square: a longer image loses its ends before it is resized
JITTERS = ("Brightness", "Contrast", "Color")
ERASED_AREA = (0.02, 1 / 3)
ERASED_ASPECT = (0.3, 1 / 0.3)
ERASE_ATTEMPTS = 10


# --- Crops ----------------------------------------------------------------------------------------


def resize(image: np.ndarray, height: int, width: int, *, smooth: bool) -> np.ndarray:
    """Resizes to [height, width, C].

    Args:
      image: uint8 [H, W, C].
      height: new height.
      width: new width.
      smooth: average over the source pixels along each side that shrinks (evaluation). Without it,
        and along sides that grow, interpolate between the nearest pixels.
    """
    old_height, old_width, channels = image.shape
    if (old_height, old_width) == (height, width):
        return image
    if smooth and (height - old_height) * (width - old_width) < 0:
        # INTER_AREA averages only where no side grows, so the side that shrinks goes first.
        image = resize(image, min(height, old_height), min(width, old_width), smooth=True)
        return resize(image, height, width, smooth=True)
    shrinking = height * width < old_height * old_width
    method = cv2.INTER_AREA if smooth and shrinking else cv2.INTER_LINEAR
    resized = cv2.resize(image, (width, height), interpolation=method)
    return resized.reshape(height, width, channels)


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
    return cv2.flip(image, 1).reshape(image.shape) if rng.integers(2) else image


def squash(image: Image, size: int, *, smooth: bool) -> np.ndarray:
    """Resizes the whole image to [size, size, C]; its aspect ratio is not kept."""
    return resize(image[:, :], size, size, smooth=smooth)


def central_crop(image: Image, size: int, short_side: int) -> np.ndarray:
    """Resizes the shorter side to `short_side`, then cuts [size, size, C] from the centre.

    An image more than `LONGEST` times as long as wide is first cut, evenly at both ends: a resized
    strip of 1 x 20,000 pixels would take gigabytes. Other images are not, as the cut changes the
    rounding of the interpolation's places, and so some pixels.
    """
    image = image[:, :]
    longest = LONGEST * min(image.shape[:2])
    top, left = (max(0, (side - longest) // 2) for side in image.shape[:2])
    image = image[top : image.shape[0] - top, left : image.shape[1] - left]
    height, width = image.shape[:2]
    scale = short_side / min(height, width)
    scaled = resize(image, round(height * scale), round(width * scale), smooth=True)
    top, left = (scaled.shape[0] - size) // 2, (scaled.shape[1] - size) // 2
    return scaled[top : top + size, left : left + size]


# --- Colour jitter and random erasing -------------------------------------------------------------


def color_jitter(image: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Changes brightness, contrast and saturation, in a random order.

    Each by a factor uniform in 1 - strength .. 1 + strength, with Pillow's pixels, as torchvision's
    ColorJitter does (without its hue).
    """
    from widenet_jax.vision.data.randaugment import OPERATIONS, magnitude_of

    for index in rng.permutation(len(JITTERS)):
        factor = rng.uniform(1 - strength, 1 + strength)
        image = OPERATIONS[JITTERS[index]](image, magnitude_of(factor), rng)
    return image


def random_erasing(image: np.ndarray, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Replaces a random rectangle by random pixels, with the given probability.

    Random erasing (Zhong et al. 2020, arXiv:1708.04896), variant R: an area of 2 % to 33 % of the
    image, an aspect ratio of 0.3 to 3.3. Differs from the paper: the aspect ratio is uniform in its
    logarithm, as in timm. An image for which ten draws do not fit stays whole.
    """
    if rng.uniform() >= probability:
        return image
    height, width, channels = image.shape
    low, high = (math.log(bound) for bound in ERASED_ASPECT)
    for _ in range(ERASE_ATTEMPTS):
        area = rng.uniform(*ERASED_AREA) * height * width
        aspect = math.exp(rng.uniform(low, high))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < h < height and 0 < w < width:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            image = image.copy()
            noise = rng.integers(0, 256, (h, w, channels), dtype=np.uint8)
            image[top : top + h, left : left + w] = noise
            break
    return image


# --- Transforms -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ImageTransform:
    """Turns an example, {"image": an array or a file's bytes, "label"}, into a row of a batch.

    Attributes:
      image_size: side of the result.
      augment: the fields of `config.augment`; docs/reference/config.md explains each.
      num_classes: each label is below it.
    """

    image_size: int
    augment: Any
    num_classes: int = ANY_LABEL

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, np.ndarray]:
        picture = self.picture(self.image_of(example), rng)
        return {"image": picture, "label": np.int32(label_of(example, self.num_classes))}

    def image_of(self, example: Example) -> Image:
        """Returns the example's image; an image file is decoded only when it is cropped.

        Raises:
          BadExampleError: there is none, or an array other than uint8 [H, W, 1 or 3] or [H, W].
        """
        image, turn = example.get("image"), self.augment.exif_orientation
        if isinstance(image, bytes):
            from widenet_jax.vision.data.files import EncodedImage

            return EncodedImage(image, example["where"], exif_orientation=turn)
        try:
            return checked_pixels(image, "the bytes of a file")
        except BadInputError as error:
            problem = "has no 'image'" if image is None else error
            raise BadExampleError(f"{example['where']}: {problem}") from None


class TrainTransform(ImageTransform):
    """Augmentation of one training image to uint8 [image_size, image_size, C]."""

    def picture(self, image: Image, rng: np.random.Generator) -> np.ndarray:
        """Augments uint8 [H, W, C] or a file to uint8 [image_size, image_size, C]."""
        augment, size = self.augment, self.image_size
        if augment.randaugment_before_crop:  # the released code's order
            image = randomly_augmented(squash(image, size, smooth=False), augment, rng)
        if augment.crop == "inception":
            image = inception_crop(image, size, augment.crop_area_min, rng)
        else:
            image = squash(image, size, smooth=False)
            image = pad_and_crop(image, augment.pad_pixels, rng) if augment.crop == "pad" else image
        if augment.flip:
            image = random_flip(image, rng)
        if not augment.randaugment_before_crop:
            image = randomly_augmented(image, augment, rng)
        if augment.color_jitter:
            image = color_jitter(image, augment.color_jitter, rng)
        if augment.random_erasing:
            image = random_erasing(image, augment.random_erasing, rng)
        return image


def randomly_augmented(image: np.ndarray, augment: Any, rng: np.random.Generator) -> np.ndarray:
    """Applies RandAugment as the fields of `config.augment` say."""
    if not augment.randaugment_layers:
        return image
    from widenet_jax.vision.data.randaugment import rand_augment

    layers, magnitude = augment.randaugment_layers, augment.randaugment_magnitude
    return rand_augment(image, num_layers=layers, magnitude=magnitude, rng=rng)


class EvalTransform(ImageTransform):
    """Crop of one image for evaluation, to uint8 [image_size, image_size, C]."""

    def picture(self, image: Image, rng: np.random.Generator | None = None) -> np.ndarray:
        """Crops uint8 [H, W, C] or a file to uint8 [image_size, image_size, C]."""
        if self.augment.eval_crop == "central":
            short_side = round(self.image_size / self.augment.eval_crop_fraction)
            return central_crop(image, self.image_size, short_side)
        return squash(image, self.image_size, smooth=True)


def build_transforms(
    augment: Mapping[str, Any], image_size: int, num_classes: int = ANY_LABEL
) -> tuple[TrainTransform, EvalTransform]:
    """Builds the transforms of `config.augment`.

    Args:
      augment: the section.
      image_size: side of the model's input images.
      num_classes: of the labels.

    Raises:
      BadInputError: an unknown crop, or more padding than the image has pixels.
    """
    choose(TRAIN_CROPS, augment["crop"], field="config.augment.crop")
    choose(EVAL_CROPS, augment["eval_crop"], field="config.augment.eval_crop")
    check_range("config.augment.pad_pixels", augment["pad_pixels"], 0, image_size)
    fields = image_size, SimpleNamespace(**augment), num_classes
    return TrainTransform(*fields), EvalTransform(*fields)


def task_transforms(config: Any, info: Mapping[str, Any]) -> tuple[TrainTransform, EvalTransform]:
    """Builds the transforms of a run; see `specs.TaskSpec`."""
    num_classes = len(info.get("class_names", ())) or ANY_LABEL
    return build_transforms(config.augment, config.data.image_size, num_classes)


def example_of(config: Any, params: Any) -> dict[str, ArraySpec]:
    """Returns the arrays of one example; the first layer of a trained model has the channels."""
    size, channels = config.data.image_size, 1 if config.data.source == "digits" else 3
    if params is not None:
        channels = params["embed"]["projection"]["kernel"].shape[2]
    return {"image": ArraySpec((size, size, channels), "uint8"), "label": ArraySpec((), "int32")}
