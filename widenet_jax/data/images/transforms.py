"""What happens to one image: the training and evaluation transforms `config.augment` asks for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from widenet_jax.data.images import files
from widenet_jax.data.images.randaugment import rand_augment
from widenet_jax.errors import check_range, choose

TRAIN_CROPS = dict.fromkeys(("inception", "pad", "none"))
EVAL_CROPS = dict.fromkeys(("central", "squash"))


@dataclasses.dataclass(frozen=True)
class TrainTransform:
    """Crop, flip and RandAugment one training image to uint8 [image_size, image_size, C].

    Attributes:
      image_size: side of the result.
      crop: "inception" (a random window, resized), "pad" (squashed to size, then moved by up to
        `pad_pixels`) or "none" (squashed to size).
      crop_area_min: smallest share of the image an inception window covers.
      pad_pixels: how far "pad" moves the image.
      flip: mirror every other image.
      randaugment_layers: operations an image; 0 turns RandAugment off.
      randaugment_magnitude: their strength.
      randaugment_before_crop: squash to size and RandAugment, then crop (the released code's
        order), instead of crop, flip, RandAugment.
    """

    image_size: int
    crop: str
    crop_area_min: float
    pad_pixels: int
    flip: bool
    randaugment_layers: int
    randaugment_magnitude: float
    randaugment_before_crop: bool

    def __call__(self, image: files.Image, rng: np.random.Generator) -> np.ndarray:
        """uint8 [H, W, C] or a file to uint8 [image_size, image_size, C]."""
        if self.randaugment_before_crop:
            image = self._rand_augment(files.squash(image, self.image_size, smooth=False), rng)
        image = self._crop(image, rng)
        if self.flip:
            image = files.random_flip(image, rng)
        return image if self.randaugment_before_crop else self._rand_augment(image, rng)

    def _crop(self, image: files.Image, rng: np.random.Generator) -> np.ndarray:
        if self.crop == "inception":
            return files.inception_crop(image, self.image_size, self.crop_area_min, rng)
        image = files.squash(image, self.image_size, smooth=False)
        return files.pad_and_crop(image, self.pad_pixels, rng) if self.crop == "pad" else image

    def _rand_augment(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rand_augment(
            image,
            num_layers=self.randaugment_layers,
            magnitude=self.randaugment_magnitude,
            rng=rng,
        )


@dataclasses.dataclass(frozen=True)
class EvalTransform:
    """One image as evaluation sees it: uint8 [image_size, image_size, C].

    Attributes:
      image_size: side of the result.
      crop: "central" (shorter side to `resize`, then the centre) or "squash" (the whole image).
      resize: the shorter side before a central crop.
    """

    image_size: int
    crop: str
    resize: int

    def __call__(self, image: files.Image) -> np.ndarray:
        """uint8 [H, W, C] or a file to uint8 [image_size, image_size, C]."""
        if self.crop == "central":
            return files.central_crop(image, self.image_size, self.resize)
        return files.squash(image, self.image_size, smooth=True)


def build_transforms(
    augment: Mapping[str, Any], image_size: int
) -> tuple[TrainTransform, EvalTransform]:
    """The transforms of `config.augment`.

    Args:
      augment: reads crop, crop_area_min, pad_pixels, flip, randaugment_layers,
        randaugment_magnitude, randaugment_before_crop, eval_crop and
        eval_crop_fraction.
      image_size: side of the images the model takes.

    Raises:
      BadInputError: a value that cannot work; one line naming the field.
    """
    choose(TRAIN_CROPS, augment["crop"], field="config.augment.crop")
    choose(EVAL_CROPS, augment["eval_crop"], field="config.augment.eval_crop")
    check_range("config.augment.eval_crop_fraction", augment["eval_crop_fraction"], 0.01, 1.0)
    train = TrainTransform(
        image_size=image_size,
        crop=augment["crop"],
        crop_area_min=float(augment["crop_area_min"]),
        pad_pixels=int(augment["pad_pixels"]),
        flip=bool(augment["flip"]),
        randaugment_layers=int(augment["randaugment_layers"]),
        randaugment_magnitude=float(augment["randaugment_magnitude"]),
        randaugment_before_crop=bool(augment["randaugment_before_crop"]),
    )
    evaluation = EvalTransform(
        image_size=image_size,
        crop=augment["eval_crop"],
        resize=round(image_size / augment["eval_crop_fraction"]),
    )
    check_range("config.data.image_size", image_size, 1, 65_536)
    check_range("config.augment.crop_area_min", train.crop_area_min, 0.0, 1.0)
    check_range("config.augment.pad_pixels", train.pad_pixels, 0, image_size)
    check_range("config.augment.randaugment_layers", train.randaugment_layers, 0, 100)
    check_range("config.augment.randaugment_magnitude", train.randaugment_magnitude, 0.0, 30.0)
    return train, evaluation
