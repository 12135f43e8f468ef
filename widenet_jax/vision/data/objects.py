"""Python objects as labelled images: what `widenet_jax.train(data=...)` takes."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.data.input_files import read_regular
from widenet_jax.data.labelled import LabelledImages, check_class_names
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.vision.data.files import checked_pixels, read_pillow


class Objects(LabelledImages):
    """A split whose example i is (image, label), as `examples[i]` of a user's object.

    An image is a path, the bytes of a file, an image of Pillow, or uint8 [H, W, 3], [H, W, 1] or
    [H, W]. A label is a class's name or number.
    """

    def __init__(self, name: str, examples: Any, class_names: Sequence[Any], *, upright: bool):
        """Checks the class names.

        Args:
          name: of the argument that the user gave, for messages.
          examples: with a length, readable by index from several threads.
          class_names: of the labels, in their order.
          upright: whether images of Pillow are turned as their EXIF says.
        """
        self.class_names = tuple(map(str, class_names))
        check_class_names(self.class_names, f"{name}.classes")
        self._name, self._examples, self._upright = name, examples, upright
        self._numbers = {name: k for k, name in enumerate(class_names)}
        self._numbers |= {k: k for k in range(len(class_names))}

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns one example; raises BadInputError for one that is no pair of such values."""
        image, label = pair_at(self._examples, index, self._name)
        if label not in self._numbers:
            raise BadInputError(
                f"{self.describe(index)} has the label {label!r}, none of the "
                f"{len(self.class_names)} classes"
            )
        return {"image": self._stored(image, index), "label": self._numbers[label]}

    def describe(self, index: int) -> str:
        return f"{self._name}[{index}]"

    def _stored(self, image: Any, index: int) -> bytes | np.ndarray:
        """Returns the bytes of a file, or uint8 [H, W, 1 or 3]."""
        try:
            if isinstance(image, str | os.PathLike):
                return read_regular(image)
            if hasattr(image, "convert"):  # Pillow's
                return read_pillow(image, self._upright)
            return image if isinstance(image, bytes) else checked_pixels(image)
        except OSError as error:
            raise BadExampleError(f"{self.describe(index)}: {image}: {error.strerror}") from None
        except BadInputError as error:
            raise type(error)(f"{self.describe(index)}: {error}") from None


def pair_at(examples: Any, index: int, name: str) -> tuple[Any, Any]:
    """Returns image and label of an example; raises BadInputError where it is no such pair."""
    try:
        image, label = examples[index]
        label = label.item() if hasattr(label, "item") else label  # of NumPy, JAX or PyTorch
        hash(label)
    except (TypeError, ValueError):
        raise BadInputError(f"{name}[{index}] is no pair (image, label)") from None
    return image, label


def splits_of(
    train: Any, evaluation: Any, config: Any, _: Mapping[str, Any]
) -> tuple[Objects, Objects]:
    """Returns both splits; see `specs.TaskSpec`.

    The classes are `train.classes`, as of torchvision's datasets. Without it all training labels
    are read once: names are sorted, numbers are 0 to the largest.
    """
    names = getattr(train, "classes", None) or classes_of(train)
    upright = config.augment.exif_orientation
    splits = {"data": train, "eval_data": evaluation}
    first, second = (Objects(*one, names, upright=upright) for one in splits.items())
    return first, second


def classes_of(examples: Any) -> list[Any]:
    """Returns the classes of the labels of all examples.

    Raises:
      BadInputError: labels are neither names nor numbers from 0 on.
    """
    labels = {pair_at(examples, index, "data")[1] for index in range(len(examples))}
    if labels and all(isinstance(label, str) for label in labels):
        return sorted(labels)
    if not labels or not all(isinstance(label, int) and label >= 0 for label in labels):
        raise BadInputError("data: labels are names of classes, or numbers from 0 on")
    return list(range(max(labels) + 1))
