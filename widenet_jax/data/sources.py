"""The data of a run: both splits opened, checked against each other, and described."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.data.blocks import example_spec
from widenet_jax.data.contents import contents_sha256, same_examples
from widenet_jax.data.contract import (
    OF_THE_RUN,
    Data,
    DataInfo,
    Source,
    Stream,
    StreamInfo,
    Transform,
)
from widenet_jax.data.labelled import (
    LabelledImages,
    Subset,
    by_class,
    check_class_names,
    check_seen,
    known_labels,
    labels_of,
    left_out_text,
    names_text,
    relabelled,
)
from widenet_jax.data.splits import SplitError, parse_slice, parts_of
from widenet_jax.errors import BadInputError, first_line
from widenet_jax.files import TOKENIZER, may_replace, split_checkpoint
from widenet_jax.specs import PYTHON, resolve, source_spec, task_spec

WINDOWS_AT_ONCE = 64
LABELS_READ = 512  # of a packed set, at the start of a run
SOURCE_PARTS = ("info", "describe", "__len__", "__getitem__")
STREAM_PARTS = ("read_windows", "bytes_per_token", "words_per_token", "text")
TAKEN = OF_THE_RUN | {"environment", "result"}  # keys of no `info`
FRACTION_FIELD = "config.data.eval_fraction"
# Facts in which splits may differ. They hold of a run if they hold of one of its splits.
OF_EITHER_SPLIT = ("unanswerable",)


def build_source(
    data: Mapping[str, Any], split: str, info: Mapping[str, Any] | None = None
) -> Source:
    """Opens one split of the set that `config.data` names.

    Args:
      data: `config.data`: `source` and the fields that this source needs.
      split: name of the split, such as "train"; of images, tables and SQuAD also a slice, such as
        "train[90%:]".
      info: of the trained model that will read the split; None in training.

    Raises:
      BadInputError: unknown source or split, nothing readable at the path, or a path for a source
        that reads none.
    """
    name = data["source"]
    if name == PYTHON:
        raise BadInputError(
            f"config.data.source={name}: the examples are objects of Python code, which calls "
            "widenet_jax.train(config, workdir, data=..., eval_data=...); to evaluate on files, "
            "name their --config.data.source, --config.data.path and --config.data.eval_split"
        )
    spec = source_spec(name)
    if spec.reads and data.get("path"):
        raise BadInputError(
            f"config.data.path={data['path']}: config.data.source={name} reads {spec.reads}, not "
            f"files; give --config.data.path= (nothing), or --config.data.source={spec.instead}"
        )
    if data.get("eval_fraction") and not spec.holds_out:
        raise BadInputError(
            f"add --{FRACTION_FIELD}=0, all that source={name} takes: its own splits divide "
            "it (config.data.train_split, config.data.eval_split); if it has one only, and its "
            f"images are in mixed order, take slices, as in --{FRACTION_FIELD}=0 "
            "--config.data.train_split='train[:90%]' --config.data.eval_split='train[90%:]'"
        )
    try:
        whole, bounds = (split, None) if spec.reads_slices else parse_slice(split)
        source = resolve(spec.open)(data, whole, info or {})
        if bounds is None:
            return source
        if not isinstance(source, LabelledImages):
            raise SplitError(f"config.data.source={name}: has no slices such as {split!r}")
        records = source.part(bounds)
        if not len(records):
            raise SplitError(f"split {split!r}: no image in this slice of {len(source):,}")
    except SplitError as error:
        fields = [field for field in ("train_split", "eval_split") if data.get(field) == split]
        flags = ", ".join(f"--config.data.{field}" for field in fields)
        raise BadInputError(f"{error} ({flags})" if fields else str(error)) from None
    names = source.class_names
    return Subset(source, records, names, np.arange(len(names), dtype=np.int32))


def path_of(data: Mapping[str, Any]) -> str:
    """Returns `config.data.path`; raises BadInputError where it is empty."""
    if not data.get("path"):
        raise BadInputError(
            f"config.data.source={data['source']} needs a directory: add --config.data.path=DIR"
        )
    return os.path.expanduser(data["path"])


def build_transforms(config: Any, info: Mapping[str, Any]) -> tuple[Transform, Transform]:
    """Builds the transforms of the task of a config, of training and of evaluation."""
    return resolve(task_spec(config.task.name).transforms)(config, info)


def check_slice(split: str, source: Source) -> None:
    """Raises BadInputError for a slice of a set that lies class by class: it lacks whole classes.

    TFDS shuffles its sets as it prepares them, and a slice of a folder takes its share of each
    class.
    """
    if not isinstance(source, Subset) or source.source.part_of_each_class:
        return
    if len(source) < len(source.source) and by_class(source.source):
        name, _ = parse_slice(split)
        raise BadInputError(
            f"split {split!r}: the images of {name} lie class by class, and a slice of them lacks "
            "classes; name whole splits (config.data.train_split, config.data.eval_split), or pack "
            "the folders again: scripts/prepare_data.py image_folder --eval_fraction=0.1"
        )


def check_rows(train: Source, evaluation: Source, data: Mapping[str, Any]) -> None:
    """Raises BadInputError where evaluation lacks classes, a slice of rows in order of class."""
    labels = None if isinstance(train, LabelledImages) else getattr(train, "record_labels", None)
    if labels is None or "[" not in data["eval_split"] or not by_class(train):
        return
    if lacking := set(labels.tolist()) - set(evaluation.record_labels.tolist()):
        raise BadInputError(
            f"{data['path']}: split {data['eval_split']!r} has no row of {len(lacking)} of the "
            f"{len(train.class_names)} classes, as the rows are sorted by class; shuffle them "
            "before they are sliced, or give evaluation a file of its own"
        )


def check_several_classes(train: Source, evaluation: Source, data: Mapping[str, Any]) -> None:
    """Raises BadInputError where all examples are of one class, as at a wrong level of folders."""
    names = {name for split in (train, evaluation) for name in split.info.get("class_names", ())}
    if len(names) == 1:
        path = data.get("path")
        advice = " (config.data.path names a folder that has one for each class)" if path else ""
        raise BadInputError(
            f"{path}: " * bool(path) + f"split {data['train_split']} has one class only "
            f"({names.pop()}); a classifier needs two{advice}"
        )


def open_data(
    config: Any,
    workdir: epath.Path | None = None,
    splits: tuple[Source, Source] | None = None,
    *,
    hashed: bool = False,
) -> Data:
    """Opens both splits of a run.

    Args:
      config: of the run.
      workdir: of the run. Where the tokenizer belongs to the model to start from, a run that has
        begun takes its copy in the workdir, and no longer needs that model.
      splits: objects of training and evaluation, in place of the config's data.
      hashed: whether `info` has a hash of both splits, so that a run resumes with the same examples
        alone.

    Raises:
      BadInputError: a split cannot be opened, or the training split's `info` differs from the
        evaluation split's, as where they name different classes; or a new run takes a slice of a
        set that lies class by class, or there is a single class.
    """
    data = dict(config.data)
    begun = workdir is not None and workdir.exists() and not may_replace(workdir)
    if data.get("tokenizer") == "":  # finetuning: the tokenizer of the model to start from
        copied = begun and (workdir / TOKENIZER).exists()
        data["tokenizer"] = (
            str(workdir / TOKENIZER) if copied else split_checkpoint(config.init_from)[0]
        )
    train, evaluation = open_splits(config, data, splits)
    check_windows(train, evaluation, data)
    info = common_info(train, evaluation, data)
    if hashed:
        info["content_sha256"] = contents_sha256(train) + contents_sha256(evaluation)
    train_transform, eval_transform = build_transforms(config, train.info)
    example = example_spec(evaluation, eval_transform, on_bad_example=config.data.on_bad_example)
    counts = ()
    if config.task.get("class_weights", "none") != "none":
        counts = class_counts(train)
    size = examples_an_epoch(train, config)
    stream, share = stream_info(train, evaluation), largest_share(evaluation)
    data_info = DataInfo(size, example, info, stream, counts, share)
    return Data(train, evaluation, train_transform, eval_transform, data_info)


def common_info(train: Source, evaluation: Source, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `info` of both splits; raises BadInputError where they differ."""
    info, theirs = dict(train.info), evaluation.info
    info |= {key: info[key] or theirs[key] for key in OF_EITHER_SPLIT if key in info}
    must_agree = [key for key in info if key not in OF_EITHER_SPLIT]
    differing = [key for key in must_agree if info[key] != theirs.get(key)]
    if differing:
        raise BadInputError(
            f"splits {data['train_split']} and {data['eval_split']} differ in {differing[0]}; "
            "prepare both from the same set, or name other splits (config.data.train_split, "
            "config.data.eval_split)"
        )
    return info


def check_windows(train: Source, evaluation: Source, data: Mapping[str, Any]) -> None:
    """Raises BadInputError where a stream's windows are not T tokens and the one after them."""
    streams = {"training": train, "evaluation": evaluation}
    for name, stream in streams.items() if isinstance(train, Stream) else ():
        shape = np.shape(stream.read_windows(np.zeros(1, np.int64)))
        if shape != (1, data["max_length"] + 1):
            raise BadInputError(
                f"{name} data: read_windows of one index returns an array {list(shape)}; it must "
                f"be [1, {data['max_length'] + 1}], config.data.max_length={data['max_length']} "
                "tokens and the one after"
            )


def open_splits(
    config: Any, data: Mapping[str, Any], objects: tuple[Any, Any] | None
) -> tuple[Source, Source]:
    """Opens the sources of training and of evaluation, and checks them and their classes.

    Args:
      config: of the run.
      data: `config.data`, with the tokenizer.
      objects: Python's, in place of the config's data.

    Raises:
      BadInputError: a split cannot be opened, or is no source of the task; or a split's classes are
        not those of training.
    """
    names = data["train_split"], data["eval_split"]
    if objects:
        splits_of = resolve(task_spec(config.task.name).splits_of)
        opened = splits_of(*objects, config, data) if splits_of else objects
    else:
        opened = tuple(build_source(data, name) for name in names)
    places = ("data", "eval_data") if objects else (f"split {name}" for name in names)
    for source, place in zip(opened, places, strict=True):
        check_source(source, place, config)
    train, evaluation = opened
    check_several_classes(train, evaluation, data)
    check_slice(data["train_split"], train)
    check_slice(data["eval_split"], evaluation)
    check_rows(train, evaluation, data)
    own = evaluation
    evaluation = with_classes_of(train, own, data) if isinstance(train, LabelledImages) else own
    check_evaluated(train, own, data)
    return train, evaluation


def check_source(source: Any, where: str, config: Any) -> None:
    """Raises BadInputError where an object, perhaps a user's own, is no source of a run's task.

    Transforms check the examples.
    """
    spec, kind, parts = task_spec(config.task.name), "Source", SOURCE_PARTS
    if spec.stream:
        kind, parts = "Stream", (*SOURCE_PARTS, *STREAM_PARTS)
    if missing := [name for name in parts if not hasattr(source, name)]:
        raise BadInputError(
            f"{where} is {type(source).__name__}, without {', '.join(missing)}; the task "
            f"{spec.name} reads a {kind} (widenet_jax.data.contract): {', '.join(parts)}"
        )
    try:
        len(source)
    except (TypeError, ValueError) as error:
        raise BadInputError(f"{where}: its __len__ must return a count: {error}") from None
    info = source.info
    if not isinstance(info, Mapping) or not info.keys() >= set(spec.info):
        keys = ", ".join(spec.info) or "what the model must know of the set, or {}"
        raise BadInputError(f"{where}: its info must be a dict with {keys}")
    for key, value in info.items():
        if key in TAKEN:
            raise BadInputError(f"{where}: info[{key!r}] is a name of the run's own; rename it")
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise BadInputError(
                f"{where}: info[{key!r}] is not as JSON holds it: {error}"
            ) from None
    if "class_names" in spec.info:
        if not isinstance(info["class_names"], list | tuple):
            raise BadInputError(f"{where}: info['class_names'] must be a list of names")
        check_class_names(info["class_names"], where)


def example_at(examples: Any, index: int, name: str) -> Any:
    """Returns an example of a user's object; raises BadInputError where its code fails."""
    try:
        return examples[index]
    except BadInputError:  # it may be a BadExampleError
        raise
    except Exception as error:
        raise BadInputError(
            f"{name}[{index}] cannot be read: {type(error).__name__}: {first_line(error)}"
        ) from error


def with_classes_of(
    train: LabelledImages, evaluation: LabelledImages, data: Mapping[str, Any]
) -> LabelledImages:
    """Returns the evaluation split with the training split's labels; some may be missing.

    Raises:
      BadInputError: a split has no image, or the training split has none of a class.
    """
    names, theirs = train.class_names, evaluation.class_names
    index = {name: label for label, name in enumerate(names)}
    for split, source in ((data["train_split"], train), (data["eval_split"], evaluation)):
        if not len(source):
            advice = source.split_advice and f"; {source.split_advice}"
            raise BadInputError(f"split {split} has no image{advice}")
    lacking = missing_classes(train) if train.record_labels is not None else ()
    seen = [name for name in names if name not in lacking]
    check_seen(data["train_split"], seen, dict.fromkeys([*names, *theirs]), train.split_advice)
    if names == theirs:
        return evaluation
    return relabelled(evaluation, names, [index[name] for name in theirs])


def check_evaluated(train: Source, evaluation: Source, data: Mapping[str, Any]) -> None:
    """Raises BadInputError where evaluation has examples of a class, and training has none.

    Labels of packed sets are read: all of a small set, a sample of a larger one. Splits whose
    samples have a class in common pass; otherwise all of the training split is read. `check` reads
    all.
    """
    splits = (train, evaluation)
    names = [source.info.get("class_names", ()) for source in splits]
    labels = [known_labels(source) for source in splits]
    if reads := all(getattr(source, "labels_to_read", False) for source in splits):
        rng = np.random.default_rng(0)
        orders = [rng.permutation(len(source))[:LABELS_READ] for source in splits]
        labels = [labels_of(source, order) for source, order in zip(splits, orders, strict=True)]
        if len(train) > LABELS_READ and not {*labels[0]} & {*labels[1]}:
            labels[0] = labels_of(train, np.arange(len(train)))
    if not all(names) or any(known is None for known in labels):
        return
    seen, wanted = ([names[i][k] for k in np.unique(labels[i]) if k >= 0] for i in (0, 1))
    if not (reads and len(train) > LABELS_READ and {*seen} & {*wanted}):
        check_seen(data["train_split"], seen, wanted, getattr(train, "split_advice", ""))


def unigram_entropy(counts: np.ndarray) -> float:
    """Returns the entropy, in nats, of ids that occur `counts` times: integers [V].

    It is the loss of a model that knows nothing but how frequent each id is.
    """
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def unigram_bits(stream: Stream) -> float:
    """Returns the entropy, in bits per byte, of all tokens that a stream's windows predict."""
    counts = np.zeros(stream.info["vocab_size"], np.int64)
    for first in range(0, len(stream), WINDOWS_AT_ONCE):
        windows = stream.read_windows(np.arange(first, min(first + WINDOWS_AT_ONCE, len(stream))))
        counts += np.bincount(windows[:, 1:].ravel(), minlength=len(counts))
    return unigram_entropy(counts) / stream.bytes_per_token / math.log(2)


def stream_info(train: Source, evaluation: Source) -> StreamInfo | None:
    """Returns the statistics of both splits of a stream; None of other sources."""
    if not isinstance(train, Stream):
        return None
    losses = getattr(evaluation, "losses", {})
    return StreamInfo(train.bytes_per_token, unigram_bits(evaluation), losses)


def class_counts(source: Source) -> tuple[int, ...]:
    """Counts the examples of each class; reads all of a source that does not know its labels.

    An example that cannot be read counts for no class.
    """
    classes = len(source.info["class_names"])
    return tuple(np.bincount(labels_of(source, np.arange(len(source))), minlength=classes).tolist())


def missing_classes(source: Source) -> tuple[str, ...]:
    """Returns the classes without an example; () where only reading would tell.

    A source with `named_labels` knows its labels, but may lack classes.
    """
    if (labels := known_labels(source)) is None:
        return ()
    present, names = set(labels.tolist()), source.info.get("class_names", ())
    return tuple(name for label, name in enumerate(names) if label not in present)


def largest_share(source: Source) -> float | None:
    """Returns the share of the most frequent class; None of a source that does not know labels."""
    labels = getattr(source, "record_labels", None)
    return None if labels is None else float(np.bincount(labels).max() / len(labels))


def overview(splits: Sequence[tuple[str, Source]], unit: str) -> str:
    """Returns what splits, each with its name, hold, lack and leave out.

    Such as "train: 220 images, 5 classes; val: 60 images; 60 files left out (.heic 60)" or
    "train: 6,513 sequences of mine.txt; valid: 361 sequences". Splits may have examples in
    common: "train[:60%]: 60 rows; train[50%:]: 50 rows, 10 of them in train[:60%] too".
    """
    lines, advice, left_out = [], "", Counter()
    for name, source in splits:
        missing = missing_classes(source)
        text = f"{name}: {len(source):,} {unit}"
        if isinstance(source, Stream) and not lines:
            text += f" of {source.text}"
        if isinstance(source, LabelledImages):
            text += f", {len(source.class_names):,} classes" if not lines else ""
            left_out.update(source.left_out)
            advice = advice or (source.split_advice if missing else "")
        if lines and (count := common(splits[0], (name, source))):
            text += f", {count:,} of them in {splits[0][0]} too"
        if missing:
            text += f", none of {names_text(missing)}"
        lines.append(text)
    lines += [left_out_text(left_out) if left_out else "", advice]
    return "; ".join(filter(None, lines))


def common(one: tuple[str, Source], other: tuple[str, Source]) -> int:
    """Returns how many examples of the other (name, source) are in the first.

    By their `contents`, a number of each example, or by name and slice; else all or none, by a
    sample of both.
    """
    if all(hasattr(source, "contents") for _, source in (one, other)) and (
        count := int(np.isin(other[1].contents, one[1].contents).sum())
    ):
        return count
    names = [{parse_slice(part)[0] for part in parts_of(name)} for name, _ in (one, other)]
    if names[0] & names[1] and not isinstance(one[1], Stream):
        known, places = (set(map(s.describe, range(len(s)))) for _, s in (one, other))
        if known & places:
            return len(known & places)
    return len(other[1]) if same_examples(one[1], other[1]) else 0


def examples_an_epoch(train: Source, config: Any) -> int:
    """Returns the size of the training split; of a stream, the windows in its whole batches.

    Raises:
      BadInputError: a stream is too short for one batch.
    """
    if not isinstance(train, Stream):
        return len(train)
    B = config.batch_size
    if len(train) < B:
        raise BadInputError(
            f"config.batch_size={B}: the training split has {len(train):,} windows of "
            f"config.data.max_length={config.data.max_length} tokens, too few for so many rows; "
            "take fewer rows, shorter windows, or more text"
        )
    return len(train) // B * B
