"""What a trained model says of image files."""

from collections.abc import Callable
from pathlib import Path

import cv2
import jax
import numpy as np

from widenet_jax.data.images.files import decode
from widenet_jax.data.images.transforms import build_transforms
from widenet_jax.errors import BadExampleError
from widenet_jax.experiment import make_forward
from widenet_jax.tasks.classification import to_unit_range
from widenet_jax.typing import Array
from widenet_jax.weights.trained import Trained


def read_picture(path: str, trained: Trained) -> np.ndarray:
    """An image file as the model sees it: cut and resized as in evaluation, uint8 [h, w, C].

    Raises:
      BadExampleError: it cannot be read or decoded.
    """
    try:
        image = decode(Path(path).read_bytes(), path)
    except OSError as error:
        raise BadExampleError(f"{path}: {error.strerror}") from None
    if trained.image_shape[2] == 1:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None]
    _, transform = build_transforms(trained.config.augment, trained.config.data.image_size)
    return transform(image)


def classifier(trained: Trained) -> Callable[[np.ndarray], np.ndarray]:
    """A function from a picture of `read_picture` to the probabilities of the classes, [V].

    One image at a time, a routing group of its own: no other image changes what is said of it.
    """
    forward = make_forward(trained.model)

    @jax.jit
    def probabilities(image: Array) -> Array:
        logits, _ = forward(trained.params, to_unit_range(image[None]), None, None)
        return jax.nn.softmax(logits[0])

    return lambda picture: np.asarray(probabilities(picture))


def best(probabilities: np.ndarray, trained: Trained, count: int) -> list[dict]:
    """The most probable classes: [{"class": ..., "probability": ...}, ...], best first."""
    order = np.argsort(-probabilities, kind="stable")[:count]
    return [
        {"class": trained.class_names[k], "probability": float(probabilities[k])} for k in order
    ]
