"""What must be known of a data set to plan and benchmark without it."""

from pathlib import PurePosixPath

from ml_collections import ConfigDict

from widenet_jax.data.contract import DataInfo, StreamInfo
from widenet_jax.errors import BadInputError
from widenet_jax.specs import TaskSpec, resolve, task_spec


def data_info(config: ConfigDict, **given: int | None) -> DataInfo:
    """Returns what is known of the data set that `config.data` names.

    Args:
      config: the run.
      **given: num_examples, num_classes and vocab_size; None where the caller does not know them.

    Raises:
      BadInputError: the task or the data set is unknown.
    """
    spec = task_spec(config.task.name)
    known = dict(zip(spec.sizes, spec.sets.get(set_name(config, spec), ()), strict=False))
    numbers = {**spec.usual, **known, **{k: v for k, v in given.items() if v is not None}}
    if "num_tokens" in numbers and "num_examples" not in numbers:
        windows = (numbers["num_tokens"] - 1) // config.data.max_length
        numbers["num_examples"] = windows // config.batch_size * config.batch_size
    needed = ["num_examples", *spec.sizes[1:]]
    if any(name not in numbers for name in needed):
        flags = " ".join(f"--{name}=N" for name in needed)
        raise BadInputError(
            f"the size of the set {set_name(config, spec)!r} is unknown; add {flags} "
            f"(known sets: {', '.join(spec.sets)})"
        )
    info = {}
    if "num_classes" in spec.sizes:
        info["class_names"] = list(map(str, range(numbers["num_classes"])))
    if "vocab_size" in {*spec.sizes, *spec.usual}:
        info["vocab_size"] = numbers["vocab_size"]
    stream = StreamInfo() if spec.stream else None
    return DataInfo(numbers["num_examples"], resolve(spec.example)(config, None), info, stream)


def set_name(config: ConfigDict, spec: TaskSpec) -> str:
    """Returns the name of a set: its split, its name in TFDS, its directory or its source."""
    data = config.data
    if data.train_split in spec.sets:
        return data.train_split
    name = data.get("name", "") or PurePosixPath(data.path).name or data.source
    return name.partition("/")[0]
