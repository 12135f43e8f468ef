"""What a plan needs to know of a data set, so that the set itself need not be here."""

from pathlib import PurePosixPath
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.errors import BadInputError
from widenet_jax.experiment import DataFacts

# Training images and classes of the sets that the configs name.
KNOWN = {
    "imagenet": (1_281_167, 1000),
    "imagenet2012": (1_281_167, 1000),
    "tiny_imagenet": (100_000, 200),
    "cifar10": (50_000, 10),
    "digits": (1_437, 10),
}


def data_facts(config: ConfigDict, **given: Any) -> DataFacts:
    """What is known of the set that `config.data` names.

    Args:
      config: the run's.
      given: num_examples and num_classes, where the caller knows better; None is unknown.

    Raises:
      BadInputError: neither the caller nor this module knows the set.
    """
    data = config.data
    name = data.name or PurePosixPath(data.path).name or data.source
    known = KNOWN.get(name.partition("/")[0], (None, None))
    numbers = [given.get(key) or value for key, value in
               zip(("num_examples", "num_classes"), known, strict=True)]  # fmt: skip
    if None in numbers:
        raise BadInputError(
            f"how large is the image set {name!r}? Known are {', '.join(KNOWN)}; for another add "
            "--num_examples=N --num_classes=N"
        )
    num_examples, num_classes = numbers
    channels = 1 if data.source == "digits" else 3
    return DataFacts(
        num_examples=num_examples,
        class_names=tuple(map(str, range(num_classes))),
        image_shape=(data.image_size, data.image_size, channels),
    )
