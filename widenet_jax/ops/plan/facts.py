"""Facts about data sets, so that planning and benchmarking need no data."""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.data.contract import ArraySpec, DataInfo, StreamInfo
from widenet_jax.errors import BadInputError, choose
from widenet_jax.text.data.instances import instance_spec

# Number of training images and of classes of the sets that the configs name.
IMAGE_SETS = {
    "imagenet": (1_281_167, 1000),
    "imagenet2012": (1_281_167, 1000),
    "tiny_imagenet": (100_000, 200),
    "cifar10": (50_000, 10),
    "digits": (1_437, 10),
}
# Number of training records and of vocabulary entries of the text sets that the configs name.
TEXT_SETS = {
    "wikipedia_books": (10_240_000, 30_000),  # 50 epochs are the paper's 125,000 steps of 4096
    "wikipedia_s": (75_000, 8_000),
    "tiny_text": (1_556, 2_000),
}
# Number of training examples and of classes of the sets to finetune on. SQuAD's are windows of
# 384 (v1.1) and 512 tokens.
TABLES = {"SST-2": (67_349, 2), "MNLI": (392_702, 3)}
SQUADS = {"train-v1.1": (88_600, 2), "train-v2.0": (131_000, 2)}
ALBERT_VOCAB_SIZE = 30_000
# Number of training tokens and of vocabulary entries of the streams that the configs name; of word
# pieces, about as many.
STREAMS = {
    "wikitext103": (140_000_000, 8_000),
    "enwik8": (90_000_000, 256),
    "c4": (10_000_000_000, 8_000),
    "pes2o": (10_000_000_000, 8_000),
    "enwik_s": (5_400_000, 256),
    "token_stream": (417_000, 256),  # without a path: the embedded novel
}


def data_info(config: ConfigDict, **given: Any) -> DataInfo:
    """Returns facts about the data set that `config.data` names.

    Args:
      config: the run.
      given: num_examples, num_classes and vocab_size; None where the caller does not know them.

    Raises:
      BadInputError: the task or the data set is unknown.
    """
    return choose(DATA_INFO, config.task.name, field="config.task.name")(config, **given)


def image_info(config: ConfigDict, **given: Any) -> DataInfo:
    """Returns facts about a set of labelled images; arguments as in `data_info`."""
    data = config.data
    name = data.name or PurePosixPath(data.path).name or data.source
    num_examples, num_classes = sizes(name.partition("/")[0], IMAGE_SETS, "num_classes", given)
    channels = 1 if data.source == "digits" else 3
    return DataInfo(
        num_examples=num_examples,
        example={
            "image": ArraySpec((data.image_size, data.image_size, channels), "uint8"),
            "label": ArraySpec((), "int32"),
        },
        info={"class_names": list(map(str, range(num_classes)))},
    )


def pretraining_info(config: ConfigDict, **given: Any) -> DataInfo:
    """Returns facts about a prepared text set; arguments as in `data_info`."""
    name = PurePosixPath(config.data.path).name or config.data.source
    num_examples, vocab_size = sizes(name, TEXT_SETS, "vocab_size", given)
    return DataInfo(num_examples, instance_spec(config), {"vocab_size": vocab_size})


def table_info(config: ConfigDict, **given: Any) -> DataInfo:
    """Returns facts about a table of texts; arguments as in `data_info`."""
    name = PurePosixPath(config.data.path).name
    num_examples, num_classes = sizes(name, TABLES, "num_classes", given)
    example = sequence_spec(config) | {"label": ArraySpec((), "int32")}
    info = {"class_names": list(map(str, range(num_classes)))}
    return DataInfo(num_examples, example, info | vocabulary(given))


def squad_info(config: ConfigDict, **given: Any) -> DataInfo:
    """Returns facts about SQuAD; arguments as in `data_info`."""
    num_examples, _ = sizes(config.data.train_split, SQUADS, "num_classes", given)
    places = dict.fromkeys(("start", "end"), ArraySpec((), "int32"))
    may_start = {"may_start": ArraySpec((config.data.max_length,), "bool")}
    example = sequence_spec(config) | places | may_start
    return DataInfo(num_examples, example, vocabulary(given))


def stream_info(config: ConfigDict, **given: Any) -> DataInfo:
    """Returns facts about a stream of tokens; arguments as in `data_info`."""
    name = PurePosixPath(config.data.path).name or config.data.source
    T, B = config.data.max_length, config.batch_size
    known = {
        stream: ((tokens - 1) // T // B * B, vocab_size)
        for stream, (tokens, vocab_size) in STREAMS.items()
    }
    num_examples, vocab_size = sizes(name, known, "vocab_size", given)
    example = {"tokens": ArraySpec((T + 1,), "int32"), "fresh": ArraySpec((), "bool")}
    return DataInfo(num_examples, example, {"vocab_size": vocab_size}, stream=StreamInfo())


def sequence_spec(config: ConfigDict) -> dict[str, ArraySpec]:
    """Returns the arrays of one padded sequence."""
    row = ArraySpec((config.data.max_length,), "int32")
    return {"tokens": row, "segments": row, "length": ArraySpec((), "int32")}


def vocabulary(given: Mapping[str, Any]) -> dict[str, int]:
    """Returns the vocabulary's size: the given one, or ALBERT's."""
    return {"vocab_size": given.get("vocab_size") or ALBERT_VOCAB_SIZE}


def sizes(name: str, known: Mapping, second: str, given: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the number of examples and the size `second` of the set `name`.

    Raises:
      BadInputError: neither `known` nor `given` has them.
    """
    of_set = known.get(name, (None, None))
    keys = ("num_examples", second)
    numbers = [given.get(key) or value for key, value in zip(keys, of_set, strict=True)]
    if None in numbers:
        raise BadInputError(
            f"the size of the set {name!r} is unknown; add --num_examples=N --{second}=N "
            f"(known sets: {', '.join(known)})"
        )
    return tuple(numbers)


# config.task.name -> facts about the sets of that task
DATA_INFO: dict[str, Callable[..., DataInfo]] = {
    "classification": image_info,
    "masked_lm": pretraining_info,
    "text_classification": table_info,
    "span": squad_info,
    "language_modeling": stream_info,
}
