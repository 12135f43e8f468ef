"""The steps of a transform and their order; values that `config.augment` may not have."""

import functools

import numpy as np
import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.vision.data import files, transforms

AUGMENT = {
    "exif_orientation": False,
    "color_jitter": 0.0,
    "random_erasing": 0.0,
    "crop": "inception",
    "crop_area_min": 0.05,
    "pad_pixels": 4,
    "flip": True,
    "randaugment_layers": 2,
    "randaugment_magnitude": 15,
    "randaugment_before_crop": False,
    "eval_crop": "central",
    "eval_crop_fraction": 0.875,
    "mixup_alpha": 0.5,  # belongs to the device side
}


def build(size: int = 224, **changes):
    return transforms.build_transforms({**AUGMENT, **changes}, size)


def photo(height: int = 50, width: int = 70) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("crop", transforms.TRAIN_CROPS)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_train_images_have_the_size(crop, before, channels):
    train, _ = build(32, crop=crop, randaugment_before_crop=before, eval_crop_fraction=8 / 9)
    for seed in range(20):
        image = train.picture(photo()[..., :channels], np.random.default_rng(seed))
        assert image.shape == (32, 32, channels) and image.dtype == np.uint8


@pytest.mark.parametrize("crop", transforms.EVAL_CROPS)
@pytest.mark.parametrize("shape", [(50, 70), (70, 50), (8, 300), (32, 32)])
def test_eval_images_have_the_size_and_no_luck(crop, shape):
    _, evaluation = build(32, eval_crop=crop, eval_crop_fraction=8 / 9)
    image = evaluation.picture(photo(*shape))
    assert image.shape == (32, 32, 3)
    np.testing.assert_array_equal(image, evaluation.picture(photo(*shape)))


def test_nothing_asked_nothing_done():
    train, evaluation = build(
        8, crop="none", flip=False, randaugment_layers=0, eval_crop="squash", eval_crop_fraction=1.0
    )
    image = photo(8, 8)
    np.testing.assert_array_equal(train.picture(image, np.random.default_rng(0)), image)
    np.testing.assert_array_equal(evaluation.picture(image), image)


@pytest.mark.parametrize("before", [False, True])
def test_order_of_steps(before):
    """Crop, flip, RandAugment; or squash, RandAugment, crop, flip: the same draws step by step."""
    image = photo(50, 70)
    train, _ = build(32, randaugment_before_crop=before)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        augment = functools.partial(
            transforms.rand_augment,
            num_layers=train.randaugment_layers,
            magnitude=train.randaugment_magnitude,
            rng=rng,
        )
        expected = image
        if before:
            expected = augment(files.squash(expected, 32, smooth=False))
        expected = files.inception_crop(expected, 32, train.crop_area_min, rng)
        expected = files.random_flip(expected, rng)
        if not before:
            expected = augment(expected)
        np.testing.assert_array_equal(train.picture(image, np.random.default_rng(seed)), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop": "inceptoin"}, r"augment.crop='inceptoin' .*=inception\?"),
        ({"eval_crop": "centre"}, "augment.eval_crop='centre' .*central"),
        ({"crop_area_min": float("nan")}, "augment.crop_area_min=nan must be between"),
        ({"crop_area_min": 1.5}, "augment.crop_area_min=1.5 must be between"),
        ({"pad_pixels": -1}, "augment.pad_pixels=-1 must be between"),
        ({"randaugment_magnitude": 99.0}, "augment.randaugment_magnitude=99.0 must be between"),
        ({"eval_crop_fraction": 1.5}, "augment.eval_crop_fraction=1.5 must be between"),
    ],
)
def test_mistakes_are_named_in_one_line(changes, message):
    with pytest.raises(BadInputError, match=message) as error:
        build(**changes)
    assert "\n" not in str(error.value)
