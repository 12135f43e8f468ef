"""Transforms of labelled images for training and for evaluation, from `config.augment`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from widenet_jax.data.contract import ArraySpec, Example
from widenet_jax.errors import check_range, choose
from widenet_jax.vision.data import files
from widenet_jax.vision.data.randaugment import OPERATIONS, magnitude_of, rand_augment

TRAIN_CROPS = dict.fromkeys(("inception", "pad", "none"))
EVAL_CROPS = dict.fromkeys(("central", "squash"))

JITTERS = ("Brightness", "Contrast", "Color")
ERASED_AREA = (0.02, 1 / 3)
ERASED_ASPECT = (0.3, 1 / 0.3)
ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class TrainTransform:
    """Augmentation of one training image to uint8 [image_size, image_size, C].

    Attributes:
      image_size: side of the result.
      crop: "inception" (a random window, resized), "pad" (squashed to size, then moved by up to
        `pad_pixels`) or "none" (squashed to size).
      crop_area_min: smallest share of the image that an inception window covers.
      pad_pixels: largest shift of "pad", in pixels.
      flip: whether to mirror images, with probability 1/2.
      randaugment_layers: operations per image; 0 turns RandAugment off.
      randaugment_magnitude: their strength.
      randaugment_before_crop: the released code's order: squash to size, RandAugment, crop, flip.
        Otherwise: crop, flip, RandAugment. Jitter and erasing follow.
      exif_orientation: whether image files are turned as their EXIF says.
      color_jitter: largest change of brightness, contrast and saturation; 0 changes nothing.
      random_erasing: probability that a rectangle is replaced by noise, at the end.
    """

    image_size: int
    crop: str
    crop_area_min: float
    pad_pixels: int
    flip: bool
    randaugment_layers: int
    randaugment_magnitude: float
    randaugment_before_crop: bool
    exif_orientation: bool
    color_jitter: float
    random_erasing: float

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Turns {"image": an array or a file's bytes, "label"} into a row of a batch."""
        image = image_of(example, exif_orientation=self.exif_orientation)
        return labelled(self.picture(image, rng), example)

    def picture(self, image: files.Image, rng: np.random.Generator) -> np.ndarray:
        """Augments uint8 [H, W, C] or a file to uint8 [image_size, image_size, C]."""
        if self.randaugment_before_crop:
            image = self._rand_augment(files.squash(image, self.image_size, smooth=False), rng)
        image = self._crop(image, rng)
        if self.flip:
            image = files.random_flip(image, rng)
        if not self.randaugment_before_crop:
            image = self._rand_augment(image, rng)
        if self.color_jitter:
            image = color_jitter(image, self.color_jitter, rng)
        return random_erasing(image, self.random_erasing, rng) if self.random_erasing else image

    def _crop(self, image: files.Image, rng: np.random.Generator) -> np.ndarray:
        if self.crop == "inception":
            return files.inception_crop(image, self.image_size, self.crop_area_min, rng)
        image = files.squash(image, self.image_size, smooth=False)
        return files.pad_and_crop(image, self.pad_pixels, rng) if self.crop == "pad" else image

    def _rand_augment(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rand_augment(
            image, num_layers=self.randaugment_layers, magnitude=self.randaugment_magnitude, rng=rng
        )


@dataclasses.dataclass(frozen=True)
class EvalTransform:
    """Crop of one image for evaluation, to uint8 [image_size, image_size, C].

    Attributes:
      image_size: side of the result.
      crop: "central" (shorter side to `resize`, then the centre) or "squash" (the whole image).
      resize: the shorter side before a central crop.
      exif_orientation: whether image files are turned as their EXIF says.
    """

    image_size: int
    crop: str
    resize: int
    exif_orientation: bool

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Turns {"image": an array or a file's bytes, "label"} into a row of a batch."""
        image = image_of(example, exif_orientation=self.exif_orientation)
        return labelled(self.picture(image), example)

    def picture(self, image: files.Image) -> np.ndarray:
        """Crops uint8 [H, W, C] or a file to uint8 [image_size, image_size, C]."""
        if self.crop == "central":
            return files.central_crop(image, self.image_size, self.resize)
        return files.squash(image, self.image_size, smooth=True)


def color_jitter(image: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Changes brightness, contrast and saturation, in a random order.

    Each by a factor uniform in 1 - strength .. 1 + strength, with Pillow's pixels, as torchvision's
    ColorJitter does (without its hue).
    """
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
    for _ in range(ATTEMPTS):
        area = rng.uniform(*ERASED_AREA) * height * width
        aspect = math.exp(rng.uniform(low, high))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < h < height and 0 < w < width:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            image = image.copy()
            noise = rng.integers(0, 256, (h, w, channels), dtype=np.uint8)
            image[top : top + h, left : left + w] = noise
            return image
    return image


def image_of(example: Example, *, exif_orientation: bool = False) -> files.Image:
    """Returns the example's image; an image file is decoded only when it is cropped."""
    image = example["image"]
    if not isinstance(image, bytes):
        return image
    return files.EncodedImage(image, example["where"], exif_orientation=exif_orientation)


def labelled(picture: np.ndarray, example: Example) -> dict[str, np.ndarray]:
    """Returns one example's row of a batch: {"image", "label"}."""
    return {"image": picture, "label": np.int32(example["label"])}


def build_transforms(
    augment: Mapping[str, Any], image_size: int
) -> tuple[TrainTransform, EvalTransform]:
    """Builds the transforms of `config.augment`.

    Args:
      augment: the section; the fields of `TrainTransform`, eval_crop and eval_crop_fraction are
        used.
      image_size: side of the model's input images.

    Raises:
      BadInputError: a field is out of range; the message names it.
    """
    choose(TRAIN_CROPS, augment["crop"], field="config.augment.crop")
    choose(EVAL_CROPS, augment["eval_crop"], field="config.augment.eval_crop")
    check_range("config.augment.eval_crop_fraction", augment["eval_crop_fraction"], 0.01, 1.0)
    names = [field.name for field in dataclasses.fields(TrainTransform)]
    own = {name: augment[name] for name in names if name != "image_size"}
    train = TrainTransform(image_size=image_size, **own)
    resize = round(image_size / augment["eval_crop_fraction"])
    evaluation = EvalTransform(
        image_size, augment["eval_crop"], resize, augment["exif_orientation"]
    )
    check_range("config.augment.crop_area_min", train.crop_area_min, 0.0, 1.0)
    check_range("config.augment.color_jitter", train.color_jitter, 0.0, 0.9)
    check_range("config.augment.random_erasing", train.random_erasing, 0.0, 1.0)
    check_range("config.augment.pad_pixels", train.pad_pixels, 0, image_size)
    check_range("config.augment.randaugment_magnitude", train.randaugment_magnitude, 0.0, 30.0)
    return train, evaluation


def task_transforms(config: Any, info: Mapping[str, Any]) -> tuple[TrainTransform, EvalTransform]:
    """Builds the transforms of a run; see `specs.TaskSpec`."""
    del info
    return build_transforms(config.augment, config.data.image_size)


def example_of(config: Any, params: Any) -> dict[str, ArraySpec]:
    """Returns the arrays of one example; the first layer of a trained model has the channels."""
    size, channels = config.data.image_size, 1 if config.data.source == "digits" else 3
    if params is not None:
        channels = params["embed"]["projection"]["kernel"].shape[2]
    return {"image": ArraySpec((size, size, channels), "uint8"), "label": ArraySpec((), "int32")}
