"""The sources and transforms that a config can name, and the data of a run."""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.corpus.tokenizer import FILE
from widenet_jax.corpus.unigrams import unigram_bits
from widenet_jax.data.chunks import example_spec
from widenet_jax.data.contract import (
    BuildSource,
    BuildTransforms,
    Data,
    DataInfo,
    Source,
    Stream,
    StreamInfo,
)
from widenet_jax.data.labelled import LabelledImages, Relabelled, Subset, by_class
from widenet_jax.data.splits import parse_slice
from widenet_jax.errors import BadExampleError, BadInputError, choose
from widenet_jax.files import may_replace, split_checkpoint
from widenet_jax.language.data.token_streams import (
    open_stream,
    segment_transform,
    tiny_bytes,
    tiny_pieces,
)
from widenet_jax.text.data.finetuning import alike
from widenet_jax.text.data.instances import instance_transforms
from widenet_jax.text.data.squad import Squad, Window
from widenet_jax.text.data.tables import LabelledSequence, Table
from widenet_jax.text.data.text_records import TextRecords
from widenet_jax.text.data.tiny_text import TinyText
from widenet_jax.vision.data.digits import Digits
from widenet_jax.vision.data.folders import (
    FRACTION_FIELD,
    Holdout,
    ImageFolder,
    left_out_text,
    names_text,
)
from widenet_jax.vision.data.packed import ArrayRecord, Tfds
from widenet_jax.vision.data.transforms import build_transforms


def _path(data: Mapping[str, Any]) -> str:
    if not data.get("path"):
        raise BadInputError(
            f"config.data.source={data['source']} needs a directory: add --config.data.path=DIR"
        )
    return os.path.expanduser(data["path"])


def _tfds(data: Mapping[str, Any], split: str) -> Source:
    if not data.get("name") and not data.get("path"):
        raise BadInputError("config.data.source=tfds needs a set, as in --config.data.name=cifar10")
    return Tfds(data.get("name") or "", os.path.expanduser(data.get("path") or ""), split)


def _image_folder(data: Mapping[str, Any], split: str) -> Source:
    fraction = data.get("eval_fraction", 0.0)
    names = [parse_slice(data.get(f"{part}_split", part))[0] for part in ("train", "eval")]
    return ImageFolder(_path(data), split, Holdout(fraction, *names))


def _token_stream(data: Mapping[str, Any], split: str) -> Stream:
    if not data.get("path"):
        return tiny_bytes(split, data["max_length"])
    return open_stream(_path(data), split, data["max_length"])


# Sources that come with the project: what they read, and which source reads the user's files.
_NOVEL = "the embedded novel"
EMBEDDED = {
    "digits": ("the digits of scikit-learn", "image_folder for your images"),
    "tiny_text": (_NOVEL, "text for a set that scripts/prepare_data.py text wrote"),
    "tiny_pieces": (_NOVEL, "token_stream for your text"),
}

SOURCES: dict[str, BuildSource] = {
    "digits": lambda data, split: Digits(split),
    "image_folder": _image_folder,
    "array_record": lambda data, split: ArrayRecord(_path(data), split),
    "tfds": _tfds,
    "text": lambda data, split: TextRecords(_path(data), split, data.get("max_length")),
    "table": Table,
    "squad": Squad,
    "tiny_text": lambda data, split: TinyText(split, data["max_length"]),
    "tiny_pieces": lambda data, split: tiny_pieces(split, data["max_length"]),
    "token_stream": _token_stream,
}

READ_SLICES = ("tfds", "table", "squad")  # take a split with its brackets, joined by "+" as well

# By the name of the task whose batches the transforms make.
TRANSFORMS: dict[str, BuildTransforms] = {
    "classification": lambda config, info: build_transforms(config.augment, config.data.image_size),
    "masked_lm": instance_transforms,
    "text_classification": alike(LabelledSequence),
    "span": alike(Window),
    "language_modeling": lambda config, info: (segment_transform, segment_transform),
}


# Facts in which splits may differ. They hold of a run if they hold of one of its splits.
OF_EITHER_SPLIT = ("unanswerable",)


def build_source(data: Mapping[str, Any], split: str) -> Source:
    """Opens one split of the set that `config.data` names.

    Args:
      data: reads `source` (a key of SOURCES), `path` and `name`, as the source needs them.
      split: name of the split, such as "train"; of images, tables and SQuAD also a slice, such as
        "train[90%:]".

    Raises:
      BadInputError: unknown source or split, nothing readable at the path, or a path for a source
        that reads none.
    """
    build = choose(SOURCES, data["source"], field="config.data.source")
    if data["source"] in EMBEDDED and data.get("path"):
        told, own = EMBEDDED[data["source"]]
        raise BadInputError(
            f"config.data.path={data['path']}: config.data.source={data['source']} reads {told}, "
            f"not files; give --config.data.path= (nothing), or --config.data.source={own}"
        )
    if data["source"] != "image_folder" and data.get("eval_fraction"):
        raise BadInputError(
            f"--{FRACTION_FIELD}=0 is all that source={data['source']} takes: its own splits "
            "divide it (config.data.train_split, config.data.eval_split); if it has one only, and "
            "its images are in mixed order, take slices, as in "
            "--config.data.train_split='train[:90%]' --config.data.eval_split='train[90%:]'"
        )
    if data["source"] in READ_SLICES:
        return build(data, split)
    name, bounds = parse_slice(split)
    if bounds is None:
        return build(data, split)
    source = build(data, name)
    if not isinstance(source, LabelledImages):
        raise BadInputError(f"config.data.source={data['source']}: has no slices such as {split!r}")
    records = source.part(bounds)
    if not len(records):
        raise BadInputError(f"split {split!r}: no image in this slice of {len(source):,}")
    return Subset(source, records)


def check_slice(split: str, source: Source) -> None:
    """Raises BadInputError for a slice of a set that lies class by class: it lacks whole classes.

    TFDS shuffles its sets as it prepares them, and a slice of a folder takes its share of each
    class.
    """
    if not isinstance(source, Subset) or isinstance(source.source, ImageFolder):
        return
    if len(source) < len(source.source) and by_class(source.source):
        name, _ = parse_slice(split)
        raise BadInputError(
            f"split {split!r}: the images of {name} lie class by class, and a slice of them lacks "
            "classes; name whole splits (config.data.train_split, config.data.eval_split), or pack "
            "the folders again: scripts/prepare_data.py image_folder --eval_fraction=0.1"
        )


def open_data(config: Any, workdir: epath.Path | None = None) -> Data:
    """Opens both splits of a run.

    Args:
      config: of the run.
      workdir: of the run. Where the tokenizer is that of the model to start from, a run that has
        begun takes its copy in the workdir, and no longer needs that model.

    Raises:
      BadInputError: a split cannot be opened, or the training split's `info` differs from the
        evaluation split's, as where they name different classes; or a new run takes a slice of a
        set that lies class by class.
    """
    data = dict(config.data)
    begun = workdir is not None and workdir.exists() and not may_replace(workdir)
    if data.get("tokenizer") == "":  # finetuning: that of the model to start from
        copied = begun and (workdir / FILE).exists()
        data["tokenizer"] = str(workdir / FILE) if copied else split_checkpoint(config.init_from)[0]
    if begun and data["source"] in EMBEDDED:
        data["path"] = ""  # runs used to be started with one, which was not read
    train = build_source(data, data["train_split"])
    evaluation = build_source(data, data["eval_split"])
    if not begun:  # earlier versions took such slices
        check_slice(data["train_split"], train)
        check_slice(data["eval_split"], evaluation)
    if isinstance(train, LabelledImages):
        evaluation = with_classes_of(train, evaluation, data)
    info, theirs = dict(train.info), evaluation.info
    info |= {key: info[key] or theirs[key] for key in OF_EITHER_SPLIT if key in info}
    must_agree = [key for key in info if key not in OF_EITHER_SPLIT]
    differing = [key for key in must_agree if info[key] != theirs.get(key)]
    if differing:
        raise BadInputError(
            f"splits {config.data.train_split} and {config.data.eval_split} differ in "
            f"{differing[0]}; prepare both from the same set, or name other splits "
            "(config.data.train_split, config.data.eval_split)"
        )
    build = choose(TRANSFORMS, config.task.name, field="config.task.name")
    train_transform, eval_transform = build(config, train.info)
    example = example_spec(evaluation, eval_transform, on_bad_example=config.data.on_bad_example)
    counts = ()
    if config.task.get("class_weights", "none") != "none":
        counts = class_counts(train)
    size = examples_an_epoch(train, config)
    data_info = DataInfo(size, example, info, stream_info(train, evaluation), counts)
    return Data(train, evaluation, train_transform, eval_transform, data_info)


def with_classes_of(
    train: LabelledImages, evaluation: LabelledImages, data: Mapping[str, Any]
) -> LabelledImages:
    """Returns the evaluation split with the training split's labels, of which some may be missing.

    Raises:
      BadInputError: a split has no image, or the training split has none of a class.
    """
    names, theirs = train.class_names, evaluation.class_names
    for split, source in ((data["train_split"], train), (data["eval_split"], evaluation)):
        if not len(source):
            advice = source.split_advice and f"; {source.split_advice}"
            raise BadInputError(f"split {split} has no image{advice}")
    unknown = tuple(name for name in theirs if name not in names)
    if lacking := train.missing or unknown:
        count = f"{len(lacking)} of {len({*names, *theirs})} classes ({names_text(lacking)})"
        advice = "copy their images again, or remove these classes from every split"
        raise BadInputError(
            f"split {data['train_split']} has no image of {count}; {train.split_advice or advice}"
        )
    if names == theirs:
        return evaluation
    labels = np.array([names.index(name) for name in theirs], np.int32)
    return Relabelled(evaluation, names, labels)


def stream_info(train: Source, evaluation: Source) -> StreamInfo | None:
    """Returns the facts about both splits of a stream; None of other sources."""
    if not isinstance(train, Stream):
        return None
    return StreamInfo(train.bytes_per_token, unigram_bits(evaluation))


def class_counts(source: LabelledImages) -> tuple[int, ...]:
    """Counts the examples of each class; reads all of a source that does not know its labels.

    An example that cannot be read counts for no class.
    """
    labels = source.record_labels
    if labels is None:
        labels = []
        for index in range(len(source)):
            with contextlib.suppress(BadExampleError):
                labels.append(source[index]["label"])
    return tuple(np.bincount(labels, minlength=len(source.class_names)).tolist())


def overview(splits: Sequence[tuple[str, Source]], unit: str) -> str:
    """Returns what splits, each with its name, hold, lack and leave out.

    Such as "train: 220 images, 5 classes; val: 60 images; 60 files left out (.heic 60)" or
    "train: 6,513 sequences of mine.txt; valid: 361 sequences".
    """
    told, split_advice, left_out = [], "", Counter()
    for name, source in splits:
        text = f"{name}: {len(source):,} {unit}"
        if isinstance(source, Stream) and not told:
            text += f" of {source.text}"
        if isinstance(source, LabelledImages):
            text += f", {len(source.class_names):,} classes" if not told else ""
            text += f", none of {names_text(source.missing)}" if source.missing else ""
            left_out.update(source.left_out)
            split_advice = split_advice or source.split_advice
        told.append(text)
    if left_out:
        told.append(left_out_text(left_out))
    if split_advice:
        told.append(split_advice)
    return "; ".join(told)


def examples_an_epoch(train: Source, config: Any) -> int:
    """Returns the size of the training split; of a stream, the segments in its whole batches.

    Raises:
      BadInputError: a stream is too short for one batch.
    """
    if not isinstance(train, Stream):
        return len(train)
    B = config.batch_size
    if len(train) < B:
        raise BadInputError(
            f"config.batch_size={B}: the training split has {len(train):,} segments of "
            f"config.data.max_length={config.data.max_length} tokens, too few for so many rows; "
            "take fewer rows, shorter segments, or more text"
        )
    return len(train) // B * B
