"""Python objects as labelled images: what `widenet_jax.train(data=...)` takes."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.data.foreign import example_at
from widenet_jax.data.labelled import LabelledImages, check_class_names, checked_pixels, names_text
from widenet_jax.errors import BadInputError, refuse
from widenet_jax.vision.data.files import read_pillow
from widenet_jax.vision.data.folders import read_photo


@dataclasses.dataclass(eq=False)
class Objects(LabelledImages):
    """A split whose example i is (image, label), as `examples[i]` of a user's object.

    Or it is a dict with both, as of tfds.data_source. An image is as of `stored_image`. A label is
    a class's name or number.

    Attributes:
      name: of the argument that the user gave, for messages.
      examples: with a length, readable by index from several threads.
      class_names: of the labels, in their order; given as the labels have them.
      by_place: whether a label may be the place of its class, if the names are no numbers.
      channels: that each image must have.
      upright: whether images of Pillow are turned as their EXIF says.
    """

    name: str
    examples: Any
    class_names: Sequence[Any]
    _: dataclasses.KW_ONLY
    by_place: bool
    channels: int
    upright: bool

    def __post_init__(self) -> None:
        given, self.class_names = self.class_names, tuple(map(str, self.class_names))
        check_class_names(self.class_names, f"{self.name}.classes")
        self._numbers = {name: k for k, name in enumerate(given)}
        if self.by_place and all(isinstance(name, str) for name in given):
            self._numbers |= {k: k for k in range(len(given))}
        kind = type(self.examples)
        if kind.__getitem__ in (list.__getitem__, tuple.__getitem__):  # it costs nothing
            with contextlib.suppress(BadInputError):  # named when its example is read
                pairs = [pair_at(self.examples, i, self.name) for i in range(len(self))]
                self.named_labels = np.array([self._numbers.get(label, -1) for _, label in pairs])
                self.contents = np.array([content_of(image) for image, _ in pairs], np.int64)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns one example; raises BadInputError for one that is no pair of such values."""
        image, label = pair_at(self.examples, index, self.name)
        if label not in self._numbers:
            raise BadInputError(
                f"{self.describe(index)} has the label {label!r}, none of the "
                f"{len(self.class_names)} classes ({names_text(self.class_names)})"
            )
        with naming(self.describe(index)):
            stored = stored_image(image, self.upright)
            channels = 3 if isinstance(stored, bytes) else stored.shape[2]
            if channels != self.channels:
                raise BadInputError(
                    f"an image with {channels} channels, and data[0] has {self.channels}; give "
                    "all images as many (files and images of Pillow have 3)"
                )
        return {"image": stored, "label": self._numbers[label]}

    def describe(self, index: int) -> str:
        return f"{self.name}[{index}]"


def stored_image(image: Any, upright: bool) -> bytes | np.ndarray:
    """Returns the bytes of an image's file, or its pixels, uint8 [H, W, 1 or 3].

    Args:
      image: a path, the bytes of a file, an image of Pillow, or uint8 [H, W, 3], [H, W, 1] or
        [H, W].
      upright: whether an image of Pillow is turned as its EXIF says.

    Raises:
      BadExampleError: the file or Pillow's image cannot be read.
      BadInputError: an array of another type or shape.
    """
    if isinstance(image, str | os.PathLike):
        return read_photo(image)
    if hasattr(image, "convert"):  # Pillow's
        return read_pillow(image, upright)
    return image if isinstance(image, bytes) else checked_pixels(image)


@contextlib.contextmanager
def naming(example: str) -> Iterator[None]:
    """Puts the name of an example before the line of an error."""
    try:
        yield
    except BadInputError as error:
        raise type(error)(f"{example}: {error}") from None


def content_of(image: Any) -> int:
    """Returns a number of a file's name or bytes, or of an object, see `sources.common`."""
    return hash(image) if isinstance(image, str | bytes | os.PathLike) else id(image)


def pair_at(examples: Any, index: int, name: str) -> tuple[Any, Any]:
    """Returns image and label of an example; raises BadInputError where it is no such pair."""
    example, place = example_at(examples, index, name), f"{name}[{index}]"
    whole = index == 0 and isinstance(examples, tuple) and len(examples) == 2
    hint = f"; for two arrays give {name}=list(zip(images, labels))" if whole else ""
    problem = f" is no pair (image, label), and no dict with both{hint}"
    try:
        both = isinstance(example, Mapping)
        image, label = (example["image"], example["label"]) if both else example
        shape = list(getattr(label, "shape", ()))
        problem = f": its label is {type(label).__name__} {shape}; give a class's name or number"
        label = label.item() if hasattr(label, "item") else label  # of NumPy, JAX or PyTorch
        hash(label)
    except (KeyError, TypeError, ValueError, RuntimeError):  # PyTorch's
        raise BadInputError(place + problem) from None
    return image, label


def splits_of(
    train: Any, evaluation: Any, config: Any, _: Mapping[str, Any]
) -> tuple[Objects, Objects]:
    """Returns both splits; see `specs.TaskSpec`.

    The classes are `train.classes`, as of torchvision's datasets. Without it all training labels
    are read once: names are sorted, numbers are 0 to the largest. `evaluation.classes` are those
    of its own labels, by default the training split's. All arrays have the channels of the first
    training image, as files and images of Pillow have three.
    """
    named, theirs = given_classes(train), given_classes(evaluation)
    labels = [] if named else labels_of(train)
    names = named or classes_of(labels)
    how = {"channels": channels_of(train), "upright": config.augment.exif_orientation}
    how["by_place"] = bool(named or theirs)
    first = Objects("data", train, names, **how)
    if not named:
        numbers = {name: k for k, name in enumerate(names)}
        first.record_labels = np.array([numbers[label] for label in labels], np.int32)
        advice = "by an attribute data.classes, or number the labels from 0 on without gaps"
        first.split_advice = f"name the classes {advice}"
    return first, Objects("eval_data", evaluation, theirs or names, **how)


def channels_of(examples: Any) -> int:
    """Returns the channels of the first image: files and images of Pillow become RGB."""
    image = pair_at(examples, 0, "data")[0] if len(examples) else ""
    if isinstance(image, str | bytes | os.PathLike) or hasattr(image, "convert"):
        return 3
    with naming("data[0]"):
        return checked_pixels(image).shape[2]


def given_classes(examples: Any) -> list[Any]:
    """Returns the `classes` of an object, a list or an array; [] where it has none."""
    classes = getattr(examples, "classes", None)
    classes = [] if classes is None else list(classes)
    if not any(isinstance(names, tuple) for names in classes):
        return classes
    # torchvision's ImageNet: tuples of synonyms, and two of them are ("crane",).
    names = [", ".join(map(str, names)) for names in classes]
    return [f"{one} ({k})" if names.count(one) > 1 else one for k, one in enumerate(names)]


def labels_of(examples: Any) -> list[Any]:
    """Returns the labels of all examples; raises BadInputError where there is none."""
    refuse("data", (not len(examples), "has no example"))
    return [pair_at(examples, index, "data")[1] for index in range(len(examples))]


def classes_of(labels: Sequence[Any]) -> list[Any]:
    """Returns the classes of labels.

    Raises:
      BadInputError: they are neither names nor numbers from 0 on.
    """
    if all(isinstance(label, str) for label in labels):
        return sorted(set(labels))
    for index, label in enumerate(labels):
        if not isinstance(label, int) or label < 0:
            raise BadInputError(
                f"data[{index}] has the label {label!r}; labels are all names of classes, or all "
                "whole numbers from 0 on"
            )
    return list(range(max(labels) + 1))
