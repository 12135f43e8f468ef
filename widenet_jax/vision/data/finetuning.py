"""Augmentations that finetuning recipes use beside a crop: colour jitter and random erasing.

Images are uint8 [H, W, C] in and out.
"""

import math

import numpy as np

from widenet_jax.vision.data.randaugment import OPERATIONS, magnitude_of

JITTERS = ("Brightness", "Contrast", "Color")
ERASED_AREA = (0.02, 1 / 3)
ERASED_ASPECT = (0.3, 1 / 0.3)
ATTEMPTS = 10


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
