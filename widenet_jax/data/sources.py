"""The data of a run: both splits opened, checked against each other, and described."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.data import labelled
from widenet_jax.data.blocks import example_spec, skips
from widenet_jax.data.contents import contents_sha256, same_examples
from widenet_jax.data.contract import Data, DataInfo, Source, Stream, StreamInfo, Transform
from widenet_jax.data.foreign import try_source
from widenet_jax.data.labelled import Joined, LabelledImages, Subset, with_classes
from widenet_jax.data.splits import SplitError, names_in, parse_slice, parts_of
from widenet_jax.errors import BadInputError, raise_first, refuse
from widenet_jax.files import TOKENIZER, find_model, may_replace
from widenet_jax.specs import PYTHON, resolve, source_spec, task_spec

WINDOWS_AT_ONCE = 64
FRACTION_FIELD = "config.data.eval_fraction"
# Facts in which splits may differ. They hold of a run if they hold of one of its splits.
OF_EITHER_SPLIT = ("unanswerable",)


def build_source(
    data: Mapping[str, Any], split: str, info: Mapping[str, Any] | None = None
) -> Source:
    """Opens one split of the set that `config.data` names.

    Args:
      data: `config.data`: `source` and the fields that this source needs.
      split: name of the split, such as "train"; of images, tables and SQuAD also slices and sums,
        such as "train[:90%]+val".
      info: of the trained model that will read the split; None in training.

    Raises:
      BadInputError: unknown source or split, nothing readable at the path, or a path for a source
        that reads none.
    """
    raise_first(_misplaced(data))
    spec = source_spec(data["source"])
    try:
        if spec.reads_slices:
            return resolve(spec.open)(data, split, info or {})
        names = dict.fromkeys(names_in(split))
        opened = {name: resolve(spec.open)(data, name, info or {}) for name in names}
        if split in opened:
            return opened[split]
        if not all(isinstance(source, LabelledImages) for source in opened.values()):
            where = f"config.data.source={data['source']}"
            raise SplitError(f"{where}: has no slices or sums such as {split!r}")
        names, *others = {tuple(source.class_names) for source in opened.values()}
        names = sorted({*names}.union(*others)) if others else names
        index = {name: label for label, name in enumerate(names)}
        found = [_part(opened, part, index) for part in parts_of(split)]
    except SplitError as error:
        fields = [field for field in ("train_split", "eval_split") if data.get(field) == split]
        flags = ", ".join(f"--config.data.{field}" for field in fields)
        raise BadInputError(f"{error} ({flags})" if fields else str(error)) from None
    return found[0] if len(found) == 1 else Joined(found)


def _part(opened: Mapping[str, LabelledImages], split: str, index: Mapping[str, int]) -> Subset:
    """Returns a split or a slice of it, with the label that `index` has for each class.

    Raises:
      SplitError: it holds no image.
    """
    name, bounds = parse_slice(split)
    source = opened[name]
    records = source.part(bounds or ("", ""))
    if not len(records):
        raise SplitError(f"split {split!r}: no image in this slice of {len(source):,}")
    return Subset(source, records, [*index], [index[name] for name in source.class_names])


def _misplaced(data: Mapping[str, Any]) -> Iterator[str]:
    """Yields fields of `config.data` that its source does not read."""
    name = data["source"]
    if name == PYTHON:
        yield (
            f"config.data.source={name}: the examples are objects of Python code, which calls "
            "widenet_jax.train(config, workdir, data=..., eval_data=...); to evaluate on files, "
            "name their --config.data.source, --config.data.path and --config.data.eval_split"
        )
    spec = source_spec(name)
    if spec.reads and data.get("path"):
        yield (
            f"config.data.path={data['path']}: config.data.source={name} reads {spec.reads}, not "
            f"files; give --config.data.path= (nothing), or --config.data.source={spec.instead}"
        )
    if data.get("eval_fraction") and not spec.holds_out:
        yield (
            f"add --{FRACTION_FIELD}=0, all that source={name} takes: its own splits divide "
            "it (config.data.train_split, config.data.eval_split); if it has one only, and its "
            f"images are in mixed order, take slices, as in --{FRACTION_FIELD}=0 "
            "--config.data.train_split='train[:90%]' --config.data.eval_split='train[90%:]'"
        )


def path_of(data: Mapping[str, Any]) -> str:
    """Returns `config.data.path`; raises BadInputError where it is empty."""
    absent = f"config.data.source={data.get('source')} needs a directory"
    refuse(absent, (not data.get("path"), "add --config.data.path=DIR"))
    return os.path.expanduser(data["path"])


def build_transforms(config: Any, info: Mapping[str, Any]) -> tuple[Transform, Transform]:
    """Builds the transforms of the task of a config, of training and of evaluation."""
    return resolve(task_spec(config.task.name).transforms)(config, info)


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
    if data.get("tokenizer") == "":  # finetuning: the tokenizer of the model to start from
        data["tokenizer"] = find_model(config.init_from)[0]
        begun = workdir is not None and workdir.exists() and not may_replace(workdir)
        if begun and (workdir / TOKENIZER).exists():
            data["tokenizer"] = str(workdir / TOKENIZER)
    train, evaluation = open_splits(config, data, splits)
    info = common_info(train, evaluation, data)
    if hashed:
        info["content_sha256"] = contents_sha256(train) + contents_sha256(evaluation)
    train_transform, eval_transform = build_transforms(config, train.info)
    example = example_spec(evaluation, eval_transform, skip=skips(config.data.on_bad_example))
    weighted = config.task.get("class_weights", "none") != "none"
    counts = labelled.class_counts(train) if weighted else ()
    size = examples_an_epoch(train, config)
    stream, share = stream_info(train, evaluation), labelled.largest_share(evaluation)
    data_info = DataInfo(size, example, info, stream, counts, share)
    return Data(train, evaluation, train_transform, eval_transform, data_info)


def common_info(train: Source, evaluation: Source, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `info` of both splits; raises BadInputError where they differ."""
    info, theirs = dict(train.info), evaluation.info
    info |= {key: info[key] or theirs[key] for key in OF_EITHER_SPLIT if key in info}
    must_agree = [key for key in info if key not in OF_EITHER_SPLIT]
    raise_first(
        f"splits {data['train_split']} and {data['eval_split']} differ in {key}; prepare both from "
        "the same set, or name other splits (config.data.train_split, config.data.eval_split)"
        for key in must_agree
        if info[key] != theirs.get(key)
    )
    return info


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
        try_source(source, place, config)
    train, evaluation = opened
    raise_first(labelled.class_problems(train, evaluation, data))
    if isinstance(train, LabelledImages) and train.class_names != evaluation.class_names:
        evaluation = with_classes(evaluation, train.class_names, place="training")
    return train, evaluation


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


def overview(splits: Sequence[tuple[str, Source]], unit: str) -> str:
    """Returns what splits, each with its name, hold, lack and leave out.

    Such as "train: 220 images, 5 classes; val: 60 images; 60 files left out (.heic 60)" or
    "train: 6,513 sequences of mine.txt; valid: 361 sequences". Splits may have examples in
    common: "train[:60%]: 60 rows; train[50%:]: 50 rows, 10 of them in train[:60%] too".
    """
    lines, advice, left_out = [], "", Counter()
    for name, source in splits:
        missing = labelled.missing_classes(source)
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
            text += f", none of {labelled.names_text(missing)}"
        elif lost := labelled.lacking(source, splits[0 if lines else -1][1]):
            text += f", none of {lost}"
        lines.append(text)
    lines += [labelled.left_out_text(left_out) if left_out else "", advice]
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
    if {*names_in(one[0])} & {*names_in(other[0])} and not isinstance(one[1], Stream):
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
    windows = f"{len(train):,} windows of config.data.max_length={config.data.max_length} tokens"
    advice = "too few for so many rows; take fewer rows, shorter windows, or more text"
    few = f"the training split has {windows}, {advice}"
    refuse(f"config.batch_size={B}", (len(train) < B, few))
    return len(train) // B * B
