"""Helpers that several tests of sources and transforms share."""

import cv2
import numpy as np
import pytest

from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadInputError
from widenet_jax.vision.data.transforms import build_transforms

AUGMENT = {
    "exif_orientation": False,
    "color_jitter": 0.0,
    "random_erasing": 0.0,
    "crop": "inception",
    "crop_area_min": 0.3,
    "pad_pixels": 1,
    "flip": True,
    "randaugment_layers": 2,
    "randaugment_magnitude": 15,
    "randaugment_before_crop": False,
    "eval_crop": "squash",
    "eval_crop_fraction": 1.0,
}
TRAIN, EVAL = build_transforms(AUGMENT, 8)
PLAIN = build_transforms({**AUGMENT, "crop": "none", "flip": False, "randaugment_layers": 0}, 8)[0]


def png(value: int) -> bytes:
    """Encodes a 4x5 image of a single grey level; the files of all levels have one size."""
    return cv2.imencode(".png", np.full((4, 5, 3), value, np.uint8))[1].tobytes()


def refused(data: dict, split: str) -> str:
    """Returns the one-line error of `build_source`."""
    with pytest.raises(BadInputError) as error:
        build_source(data, split)
    message = str(error.value)
    assert "\n" not in message
    return message
