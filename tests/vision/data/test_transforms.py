"""Crops with results computed by hand; the steps of a transform and their order."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from image_sources import AUGMENT
from PIL import Image, ImageEnhance

from widenet_jax.errors import BadInputError
from widenet_jax.vision.data import transforms
from widenet_jax.vision.data.randaugment import rand_augment
from widenet_jax.vision.data.transforms import color_jitter, random_erasing

ENHANCE = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


def build(size: int = 32, **changes):
    return transforms.build_transforms({**AUGMENT, **changes}, size)


def gradient(height: int = 40, width: int = 60) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 4, y * 6, (x + y) * 2], axis=-1).astype(np.uint8)


def photo(height: int = 50, width: int = 70) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


# --- Crops ----------------------------------------------------------------------------------------


def test_windows_keep_to_area_and_aspect():
    rng = np.random.default_rng(0)
    height, width, shares, aspects = 300, 400, [], []
    for _ in range(2000):
        top, left, h, w = transforms.random_window(height, width, 0.05, rng)
        assert 0 <= top <= height - h and 0 <= left <= width - w
        shares.append(h * w / (height * width))
        aspects.append(w / h)
    assert min(shares) >= 0.05 and max(shares) <= 1
    assert 0.74 < min(aspects) < 0.76 and 1.32 < max(aspects) < 1.35
    # The height is uniform over its range, which ends at the photo's 300 rows (aspect up to 4/3).
    # Its mean is about half way from sqrt(0.05) to 1; the aspect ratio shifts it a little.
    assert 0.55 < np.mean(np.sqrt(shares)) < 0.65
    assert transforms.random_window(400, 2, 0.9, rng) == (0, 0, 400, 2)  # no window fits


def test_central_crop_by_hand():
    # 40x60, shorter side 20 -> 20x30; centre 10x10 starts at row 5, column 10: each output pixel
    # averages a 2x2 block of the original.
    image = gradient()
    blocks = image.reshape(20, 2, 30, 2, 3).mean(axis=(1, 3))
    assert np.abs(transforms.central_crop(image, 10, 20) - blocks[5:15, 10:20]).max() <= 0.5


def test_a_strip_is_cut_before_it_is_resized():
    """With the pixels of one that is resized whole, and without its gigabytes.

    Whole, 1 x 2,000 pixels become 16 x 32,000, and the crop begins at 15,992.
    """
    strip = np.arange(2000).astype(np.uint8)
    lying = transforms.resize(strip[None, :, None], 16, 32_000, smooth=True)[:, 15_992:16_008]
    standing = transforms.resize(strip[:, None, None], 32_000, 16, smooth=True)[15_992:16_008]
    for image, crop in ((strip[None, :, None], lying), (strip[:, None, None], standing)):
        np.testing.assert_array_equal(transforms.central_crop(image, 16, 16), crop)
    tracemalloc.start()
    image = transforms.central_crop(np.zeros((1, 20_000, 3), np.uint8), 224, 256)
    assert image.shape == (224, 224, 3) and tracemalloc.get_traced_memory()[1] < 30e6
    tracemalloc.stop()


def test_shrinking_smoothly_averages_and_enlarging_interpolates():
    stripes = np.tile(np.array([0, 0, 0, 200], np.uint8), (8, 2))[..., None]
    assert (transforms.squash(stripes, 2, smooth=True) == 50).all()
    assert set(np.unique(transforms.squash(stripes, 2, smooth=False))) == {0}
    two = np.array([[0, 100], [0, 100]], np.uint8)[..., None]
    assert transforms.squash(two, 4, smooth=True)[0, :, 0].tolist() == [0, 25, 75, 100]


def test_the_side_that_shrinks_averages_where_the_other_grows():
    stripes = np.tile(np.array([0, 0, 0, 200], np.uint8), (2, 40))[..., None]
    for size in (4, 20):  # fewer pixels, and more
        for image in (stripes, stripes.swapaxes(0, 1)):
            assert (transforms.squash(image, size, smooth=True) == 50).all()


def test_every_shift_and_both_sides_are_drawn():
    image = np.full((4, 4, 1), 9, np.uint8)
    rng = np.random.default_rng(0)
    assert len({transforms.pad_and_crop(image, 1, rng).tobytes() for _ in range(200)}) == 9
    assert transforms.pad_and_crop(image, 0, rng).tobytes() == image.tobytes()
    flips = [transforms.random_flip(photo(), rng) for _ in range(20)]
    mirrored = [np.array_equal(flip, photo()[:, ::-1]) for flip in flips]
    assert 3 < sum(mirrored) < 17
    assert all(m or np.array_equal(f, photo()) for f, m in zip(flips, mirrored, strict=True))


# --- Colour jitter and random erasing -------------------------------------------------------------


def test_jitter_has_pillows_pixels():
    image = photo(40, 50)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        theirs = Image.fromarray(image)
        for index in rng.permutation(3):
            theirs = ENHANCE[index](theirs).enhance(rng.uniform(0.6, 1.4))
        ours = color_jitter(image, 0.4, np.random.default_rng(seed)).astype(int)
        # Color rounds, and the next ones amplify it.
        assert np.abs(ours - np.asarray(theirs)).max() <= 4 and np.abs(ours - image).max() > 5


def test_erasing_puts_noise_into_a_rectangle():
    black, areas = np.zeros((60, 60, 3), np.uint8), []
    for seed in range(300):
        erased = random_erasing(black, 0.5, np.random.default_rng(seed))
        rows, columns = np.nonzero(erased.any(-1))
        if len(rows):
            height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
            assert len(rows) >= 0.97 * height * width  # noise may be black
            assert 0.2 < height / width < 5
            areas.append(height * width / 3600)
            assert erased[rows, columns].std() > 50
    assert 120 < len(areas) < 180 and min(areas) > 0.01 and 0.3 < max(areas) < 0.36
    assert not black.any()


# --- Transforms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_images_have_the_size(channels):
    for before in (False, True):
        for crop in transforms.TRAIN_CROPS:
            train, _ = build(crop=crop, randaugment_before_crop=before)
            for seed in range(10):
                image = train.picture(photo()[..., :channels], np.random.default_rng(seed))
                assert image.shape == (32, 32, channels) and image.dtype == np.uint8
    for crop in transforms.EVAL_CROPS:
        _, evaluation = build(eval_crop=crop, eval_crop_fraction=8 / 9)
        for shape in ((50, 70), (70, 50), (8, 300), (32, 32)):
            assert evaluation.picture(photo(*shape)[..., :channels]).shape == (32, 32, channels)


@pytest.mark.parametrize("before", [False, True])
def test_order_of_steps(before):
    """Crop, flip, RandAugment; or squash, RandAugment, crop, flip; then jitter and erasing."""
    image = photo()
    train, _ = build(randaugment_before_crop=before, color_jitter=0.4, random_erasing=1.0)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        augment = partial(rand_augment, num_layers=2, magnitude=15, rng=rng)
        expected = image
        if before:
            expected = augment(transforms.squash(expected, 32, smooth=False))
        expected = transforms.inception_crop(expected, 32, AUGMENT["crop_area_min"], rng)
        expected = transforms.random_flip(expected, rng)
        if not before:
            expected = augment(expected)
        expected = random_erasing(color_jitter(expected, 0.4, rng), 1.0, rng)
        np.testing.assert_array_equal(train.picture(image, np.random.default_rng(seed)), expected)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("crop", "inceptoin", r" .*=inception\?"),
        ("eval_crop", "centre", " .*central"),
        ("pad_pixels", -1, " must be between"),
    ],
)
def test_mistakes_are_named_in_one_line(field, value, message):
    with pytest.raises(BadInputError, match=f"augment.{field}={value!r}{message}") as error:
        build(**{field: value})
    assert "\n" not in str(error.value)
