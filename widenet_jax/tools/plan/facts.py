"""Facts about data sets, so that planning and benchmarking need no data."""

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.data.contract import ArraySpec, DataFacts
from widenet_jax.errors import BadInputError, choose

# Number of training images and of classes of the sets that the configs name.
IMAGE_SETS = {
    "imagenet": (1_281_167, 1000),
    "imagenet2012": (1_281_167, 1000),
    "tiny_imagenet": (100_000, 200),
    "cifar10": (50_000, 10),
    "digits": (1_437, 10),
}


def data_facts(config: ConfigDict, **given: Any) -> DataFacts:
    """Returns facts about the data set that `config.data` names.

    Args:
      config: the run.
      given: num_examples and num_classes; None where the caller does not know them.

    Raises:
      BadInputError: the task or the data set is unknown.
    """
    return choose(DATA_FACTS, config.task.name, field="config.task.name")(config, **given)


def image_facts(config: ConfigDict, **given: Any) -> DataFacts:
    """Returns facts about a set of labelled images; arguments as in `data_facts`."""
    data = config.data
    name = data.name or PurePosixPath(data.path).name or data.source
    known = IMAGE_SETS.get(name.partition("/")[0], (None, None))
    numbers = [given.get(key) or value for key, value in
               zip(("num_examples", "num_classes"), known, strict=True)]  # fmt: skip
    if None in numbers:
        raise BadInputError(
            f"the size of the image set {name!r} is unknown; add --num_examples=N --num_classes=N "
            f"(known sets: {', '.join(IMAGE_SETS)})"
        )
    num_examples, num_classes = numbers
    channels = 1 if data.source == "digits" else 3
    return DataFacts(
        num_examples=num_examples,
        example={
            "image": ArraySpec((data.image_size, data.image_size, channels), "uint8"),
            "label": ArraySpec((), "int32"),
        },
        info={"class_names": list(map(str, range(num_classes)))},
    )


# config.task.name -> facts about the sets of that task
DATA_FACTS: dict[str, Callable[..., DataFacts]] = {"classification": image_facts}
