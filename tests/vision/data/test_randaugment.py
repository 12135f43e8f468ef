"""RandAugment: each operation agrees with Pillow, and each is drawn equally often."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from widenet_jax.vision.data import randaugment
from widenet_jax.vision.data.randaugment import OPERATIONS, rand_augment

MAGNITUDES = (3.0, 10.0, 15.0)


class Sign:
    """Generator whose draws are all `value`: it sets the direction, and Cutout's centre."""

    def __init__(self, value: int):
        self.value = value

    def integers(self, high, size=None):
        return self.value


def photo(seed: int = 0, height: int = 96, width: int = 128) -> np.ndarray:
    """Makes a smooth picture with noise and an uneven histogram: uint8 [H, W, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 20.0
    waves = np.stack([np.sin(x), np.cos(y + x / 2), np.sin(x * y / 9)], axis=-1)
    return np.clip(110 + 60 * waves + rng.normal(0, 14, waves.shape), 20, 240).astype(np.uint8)


def transformed(image: np.ndarray, *matrix: float) -> np.ndarray:
    size, kind = image.shape[1::-1], Image.Transform.AFFINE
    moved = Image.fromarray(image).transform(size, kind, matrix, fillcolor=(128,) * 3)
    return np.asarray(moved)


def rotated(image: np.ndarray, degrees: float) -> np.ndarray:
    return np.asarray(Image.fromarray(image).rotate(degrees, fillcolor=(128,) * 3))


def factor(magnitude: float) -> float:
    return magnitude / 10 * 1.8 + 0.1


# name -> (Pillow's version with a positive direction, largest difference allowed in grey levels)
PILLOW = {
    "AutoContrast": (lambda p, m: ImageOps.autocontrast(p), 0),
    "Equalize": (lambda p, m: ImageOps.equalize(p), 0),
    "Invert": (lambda p, m: ImageOps.invert(p), 0),
    "Posterize": (lambda p, m: ImageOps.posterize(p, int(m / 10 * 4)), 0),
    "Solarize": (lambda p, m: ImageOps.solarize(p, int(m / 10 * 256)), 0),
    "Color": (lambda p, m: ImageEnhance.Color(p).enhance(factor(m)), 1),
    "Contrast": (lambda p, m: ImageEnhance.Contrast(p).enhance(factor(m)), 0),
    "Brightness": (lambda p, m: ImageEnhance.Brightness(p).enhance(factor(m)), 0),
    "Sharpness": (lambda p, m: ImageEnhance.Sharpness(p).enhance(factor(m)), 1),
}


@pytest.mark.parametrize("name", PILLOW)
def test_colour_operations_equal_pillows(name):
    reference, allowed = PILLOW[name]
    image = photo()
    for magnitude in MAGNITUDES:
        ours = OPERATIONS[name](image, magnitude, Sign(1))
        theirs = np.asarray(reference(Image.fromarray(image), magnitude))
        assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= allowed


# name -> Pillow's version for a share of the nominal strength
GEOMETRY = {
    "Rotate": lambda image, part: rotated(image, 30 * part),
    "ShearX": lambda image, part: transformed(image, 1, 0.3 * part, 0, 0, 1, 0),
    "ShearY": lambda image, part: transformed(image, 1, 0, 0, 0.3 * part, 1, 0),
    "TranslateX": lambda image, part: transformed(image, 1, 0, 100 * part * 128 / 224, 0, 1, 0),
    "TranslateY": lambda image, part: transformed(image, 1, 0, 0, 0, 1, 100 * part * 96 / 224),
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometric_operations_equal_pillows(name):
    image = photo()
    for magnitude in MAGNITUDES:
        for sign in (1, 0):
            theirs = GEOMETRY[name](image, (1 if sign else -1) * magnitude / 10)
            ours = OPERATIONS[name](image, magnitude, Sign(sign))
            # Ties between two nearest pixels go either way; at 45 degrees both diagonals are ties.
            assert (ours == theirs).all(axis=-1).mean() > 0.99
            assert not np.array_equal(ours, image)


def test_solarize_add_by_hand():
    image = np.array([0, 1, 127, 128, 255], np.uint8).reshape(1, 5, 1)
    # M = 10 adds 110 below 128; M = 15 adds 165.
    assert OPERATIONS["SolarizeAdd"](image, 10, None).ravel().tolist() == [110, 111, 237, 128, 255]
    assert OPERATIONS["SolarizeAdd"](image, 15, None).ravel().tolist() == [165, 166, 255, 128, 255]


def test_cutout_is_120_pixels_at_size_224():
    image = np.zeros((224, 224, 3), np.uint8)
    holed = OPERATIONS["Cutout"](image, 15, Sign(112))
    rows, columns = np.nonzero(holed[..., 0])
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (52, 171, 52, 171)
    assert (holed[52:172, 52:172] == 128).all()
    assert not image.any()  # the input is not modified
    corner = OPERATIONS["Cutout"](image, 15, Sign(0))
    assert (corner == 128).sum() == 60 * 60 * 3


def test_grey_equals_rgb_of_the_same_grey():
    grey = photo()[..., :1]
    rgb = np.repeat(grey, 3, axis=2)
    for name, operation in OPERATIONS.items():
        one = operation(grey, 7.0, np.random.default_rng(3))
        three = operation(rgb, 7.0, np.random.default_rng(3))
        assert np.abs(one.astype(int) - three[..., :1]).max() <= 1, name


def test_the_draw_is_even_over_sixteen_operations_and_one_empty_slot(monkeypatch):
    assert len(OPERATIONS) == 16
    seen = []
    names = {operation: name for name, operation in OPERATIONS.items()}
    noted = {name: lambda image, m, rng, n=name: seen.append(n) or image for name in OPERATIONS}
    slots = tuple(of and noted[names[of]] for of in randaugment._DRAW)
    monkeypatch.setattr(randaugment, "_DRAW", slots)
    rng = np.random.default_rng(0)
    for _ in range(1700):
        rand_augment(photo(height=4, width=4), num_layers=2, magnitude=15, rng=rng)
    counts = [seen.count(name) for name in OPERATIONS]
    counts.append(3400 - len(seen))  # the empty slot
    # 200 expected in each of 17; chi-squared with 16 degrees of freedom is below 40 almost surely.
    assert sum((count - 200) ** 2 / 200 for count in counts) < 40
