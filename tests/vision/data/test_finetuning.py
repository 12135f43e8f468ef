"""Colour jitter and random erasing."""

import numpy as np
import pytest
from image_sources import AUGMENT
from PIL import Image, ImageEnhance

from widenet_jax.errors import BadInputError
from widenet_jax.vision.data.transforms import build_transforms, color_jitter, random_erasing

PHOTO = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
ENHANCE = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


def test_jitter_has_pillows_pixels():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        theirs = Image.fromarray(PHOTO)
        for index in rng.permutation(3):
            theirs = ENHANCE[index](theirs).enhance(rng.uniform(0.6, 1.4))
        ours = color_jitter(PHOTO, 0.4, np.random.default_rng(seed)).astype(int)
        assert (
            np.abs(ours - np.asarray(theirs)).max() <= 4
        )  # Color rounds, and the next ones amplify it
        assert np.abs(ours - PHOTO).max() > 5


def test_erasing_puts_noise_into_a_rectangle():
    black, areas = np.zeros((60, 60, 3), np.uint8), []
    for seed in range(300):
        erased = random_erasing(black, 0.5, np.random.default_rng(seed))
        rows, columns = np.nonzero(erased.any(-1))[0], np.nonzero(erased.any(-1))[1]
        if len(rows):
            height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
            assert len(rows) >= 0.97 * height * width  # noise may be black
            assert 0.2 < height / width < 5
            areas.append(height * width / 3600)
            assert erased[rows, columns].std() > 50
    assert 120 < len(areas) < 180 and min(areas) > 0.01 and 0.3 < max(areas) < 0.36
    assert not black.any()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_transform_applies_both_last_and_draws_nothing_where_they_are_off(channels):
    rng = lambda: np.random.default_rng(4)  # noqa: E731
    image = PHOTO[..., :channels]
    off, _ = build_transforms(AUGMENT, 32)
    on, _ = build_transforms({**AUGMENT, "color_jitter": 0.4, "random_erasing": 1.0}, 32)
    used = rng()
    plain = off.picture(image, used)
    expected = random_erasing(color_jitter(plain, 0.4, used), 1.0, used)
    np.testing.assert_array_equal(on.picture(image, rng()), expected)
    assert (expected != plain).any() and expected.shape == (32, 32, channels)


@pytest.mark.parametrize(("field", "value"), [("color_jitter", 1.0), ("random_erasing", 1.1)])
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(BadInputError, match=f"config.augment.{field}={value} must be between"):
        build_transforms({**AUGMENT, field: value}, 32)
