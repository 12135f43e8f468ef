"""What several tests of the data say of sources and transforms."""

import pytest

from widenet_jax.data.images import sources
from widenet_jax.data.images.transforms import build_transforms
from widenet_jax.errors import BadInputError

AUGMENT = {
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


def refused(data: dict, split: str) -> str:
    """The one line that `build_source` answers with."""
    with pytest.raises(BadInputError) as error:
        sources.build_source(data, split)
    message = str(error.value)
    assert "\n" not in message
    return message
