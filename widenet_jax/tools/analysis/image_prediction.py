"""Predictions of a trained classifier for image files."""

from collections.abc import Callable

import cv2
import jax
import numpy as np

from widenet_jax.data.images.files import decode
from widenet_jax.data.images.transforms import build_transforms
from widenet_jax.data.input_files import read_regular
from widenet_jax.errors import BadExampleError
from widenet_jax.experiment import make_forward
from widenet_jax.tasks.classification import to_unit_range
from widenet_jax.typing import Array
from widenet_jax.weights.trained import Trained


def read_picture(path: str, trained: Trained) -> np.ndarray:
    """Reads an image file, cropped and resized as in evaluation: uint8 [h, w, C].

    Raises:
      BadExampleError: the file cannot be read or decoded.
    """
    turn = trained.config.augment.exif_orientation
    try:
        image = decode(read_regular(path), path, exif_orientation=turn)
    except OSError as error:
        raise BadExampleError(f"{path}: {error.strerror}") from None
    if trained.task.image_shape[2] == 1:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None]
    _, transform = build_transforms(trained.config.augment, trained.config.data.image_size)
    return transform.picture(image)


def classifier(trained: Trained) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from a picture of `read_picture` to the probabilities of the classes, [V].

    Each image is its own routing group, so that no other image changes its probabilities.
    """
    forward = make_forward(trained.model)

    @jax.jit
    def probabilities(image: Array) -> Array:
        logits, _ = forward(trained.params, {"image": to_unit_range(image[None])}, None)
        return jax.nn.softmax(logits[0])

    return lambda picture: np.asarray(probabilities(picture))


def best(probs: np.ndarray, trained: Trained, count: int) -> list[dict]:
    """Lists the most probable classes: [{"class": ..., "probability": ...}, ...], best first."""
    order = np.argsort(-probs, kind="stable")[:count]
    return [{"class": trained.class_names[k], "probability": float(probs[k])} for k in order]
