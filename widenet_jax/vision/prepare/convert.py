"""The contract of a converter, the checks that all converters share, and two converters: of image
folders and of TFDS sets.

A converter reads one layout into a `Converted`, whose (label, encoded image) pairs
`records.write_set` packs. `archives`, `npz` and `parquet` hold the others. A new layout is one new
module, and a subcommand in `cli/prepare_data.py`. JPEG and PNG files are kept byte for byte.
Nothing is unpickled.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.data.labelled import names_text
from widenet_jax.errors import BadExampleError, BadInputError, first_line, require
from widenet_jax.vision.data import folders

Examples = Iterable[tuple[int, bytes]]


@dataclasses.dataclass
class Converted:
    """An image set in another layout.

    Attributes:
      class_names: label k is class_names[k].
      splits: for each split an iterable, to be read once, of (label, encoded image).
      counts: images of each split, for the progress bar; None where unknown before the end.
      notes: lines for the user.
      left_out: how many files are not read, by suffix.
    """

    class_names: tuple[str, ...]
    splits: dict[str, Examples]
    counts: dict[str, int | None]
    notes: Sequence[str] = ()
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)


# --- Checks that converters share -----------------------------------------------------------------


def check_labels(labels: np.ndarray, where: str, num_classes: int, first: int = 0) -> None:
    """Checks the labels of some consecutive records of a file.

    Args:
      labels: any array.
      where: the file, for the message.
      num_classes: labels must be below it.
      first: index in the file of the first of these records.

    Raises:
      BadInputError: they are not one dimension of integers from 0 to num_classes - 1.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        kind = f"{labels.dtype} of shape {labels.shape}"
        raise BadInputError(f"{where}: labels must be integers in one dimension, not {kind}")
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        raise BadInputError(
            f"{where} record {first + bad[0]}: label {labels[bad[0]]} has no class name; labels "
            f"run from 0 to {num_classes - 1}"
        )


def same_classes(names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the class names that all files or splits have.

    Raises:
      BadInputError: two of them differ.
    """
    (first, expected), *rest = names.items()
    for other, classes in rest:
        if classes != expected:
            odd = sorted(set(classes) ^ set(expected))
            raise BadInputError(
                f"{first} and {other} have different classes"
                + (f" (e.g. {odd[0]})" if odd else " (in another order)")
            )
    return expected


# --- A folder of class folders --------------------------------------------------------------------


def read_image_folder(
    root: str, holdout: folders.Holdout, unreadable: list[str] | None = None
) -> Converted:
    """Reads root/SPLIT/CLASS/image files, or root/CLASS/image files divided by `holdout`.

    Args:
      root: the folder. Its classes are the classes of all splits; only "train" must have every one.
      holdout: divides the images where there is no split to evaluate on.
      unreadable: receives a line for each file that cannot be read, which is passed over; None
        raises BadInputError at the first one.

    Raises:
      BadInputError: no such directory, no splits, or the training split lacks a class.
    """
    folders.check_folder(root)
    names = folders.splits_of(root, holdout)
    if not names:
        raise BadInputError(f"{root}: no split folders; images belong in {root}/SPLIT/CLASS/")
    found = {split: folders.ImageFolder(root, split, holdout) for split in names}
    class_names = tuple(sorted({name for source in found.values() for name in source.class_names}))
    notes = []
    for split, source in found.items():
        present = {*source.class_names} - {*source.missing}
        if missing := tuple(name for name in class_names if name not in present):
            lacks = f"{split} has no image of {names_text(missing)}"
            if split == holdout.train_split:
                advice = "copy the images again, or remove these classes from every split"
                raise BadInputError(f"{root}: split {lacks}; {source.split_advice or advice}")
            notes.append(lacks + (source.split_advice and f"; {source.split_advice}"))
    return Converted(
        class_names,
        {split: _from_folder(source, class_names, unreadable) for split, source in found.items()},
        {split: len(source) for split, source in found.items()},
        notes=notes,
        left_out=sum((Counter(source.left_out) for source in found.values()), Counter()),
    )


def _from_folder(
    source: folders.ImageFolder, class_names: tuple[str, ...], unreadable: list[str] | None
) -> Iterator[tuple[int, bytes]]:
    for index in range(len(source)):
        try:
            example = source[index]
        except BadExampleError as error:
            if unreadable is None:
                raise
            unreadable.append(str(error))
            continue
        yield class_names.index(source.class_names[example["label"]]), example["image"]


# --- TensorFlow Datasets --------------------------------------------------------------------------


def prepare_tfds(name: str, data_dir: str | None) -> Any:
    """Downloads and prepares a TFDS image classification set as array_record; needs TensorFlow.

    Returns:
      The TFDS builder. A set that has been prepared before keeps its file format.

    Raises:
      BadInputError: no TensorFlow, no such set, or not a classification set.
    """
    require("tensorflow", extra="prepare", what=f"preparing the TFDS set {name}")
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        raise BadInputError(f"tfds {name}: {first_line(error)}") from None
    if not {"image", "label"} <= set(builder.info.features):
        raise BadInputError(f"tfds {name}: has no image and label features")
    builder.download_and_prepare(file_format="array_record")
    return builder


def read_tfds(builder: Any) -> Converted:
    """Reads a prepared TFDS set in any of its file formats; needs TensorFlow."""
    import tensorflow_datasets as tfds

    def examples(split: str) -> Iterator[tuple[int, bytes]]:
        encoded = {"image": tfds.decode.SkipDecoding()}
        if builder.info.file_format.value == "array_record":  # as_dataset refuses this one
            dataset = builder.as_data_source(split, decoders=encoded)
        else:
            dataset = builder.as_dataset(split=split, shuffle_files=False, decoders=encoded)
            dataset = tfds.as_numpy(dataset)
        for example in dataset:
            yield int(example["label"]), bytes(example["image"])

    names = tuple(builder.info.features["label"].names)
    counts = {split: info.num_examples for split, info in builder.info.splits.items()}
    return Converted(names, {split: examples(split) for split in counts}, counts)
