"""Readers of other layouts: image folders, parquet, .npz packs and TFDS sets (see also `archives`).

Each returns a `Converted`, whose (label, encoded image) pairs `records.write_set` packs. JPEG and
PNG files are kept byte for byte. Nothing is unpickled: arrays of objects are refused.
"""

import dataclasses
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.data.images import sources
from widenet_jax.errors import BadInputError

Examples = Iterable[tuple[int, bytes]]
MAX_ARRAY_BYTES = 16 << 30  # of one array of a .npz, which is inflated in memory


@dataclasses.dataclass
class Converted:
    """What a reader found.

    Attributes:
      class_names: label k is class_names[k].
      splits: for each split an iterable, to be read once, of (label, encoded image).
      counts: images of each split, for the progress bar; None where unknown before the end.
    """

    class_names: tuple[str, ...]
    splits: dict[str, Examples]
    counts: dict[str, int | None]


# --- A folder of class folders ------------------------------------------------------------------


def read_image_folder(root: str) -> Converted:
    """root/SPLIT/CLASS/image files; every split must have the same classes."""
    found = {}
    if not Path(root).is_dir():
        raise BadInputError(f"{root}: no such directory")
    for split in sorted(p.name for p in Path(root).iterdir() if p.is_dir()):
        found[split] = sources.ImageFolder(root, split)
    if not found:
        raise BadInputError(f"{root}: no split folders; images belong in {root}/SPLIT/CLASS/")
    names = _same_classes({split: source.class_names for split, source in found.items()})
    return Converted(
        names,
        {split: _from_source(source) for split, source in found.items()},
        {split: len(source) for split, source in found.items()},
    )


def _from_source(source: sources.Source) -> Iterator[tuple[int, bytes]]:
    for index in range(len(source)):
        example = source[index]
        yield example["label"], example["image"]


def _same_classes(names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    (first, expected), *rest = names.items()
    for other, classes in rest:
        if classes != expected:
            odd = sorted(set(classes) ^ set(expected))
            raise BadInputError(
                f"{first} and {other} have different classes"
                + (f" (e.g. {odd[0]})" if odd else " (in another order)")
            )
    return expected


# --- Hugging Face parquet -----------------------------------------------------------------------


def read_parquet(
    files: Mapping[str, Sequence[str]], *, image_column: str = "image", label_column: str = "label"
) -> Converted:
    """Parquet files of a Hugging Face image set: a struct {bytes, path} and an integer label.

    Class names come from the set's own description in the file; without one they are the numbers.
    """
    import pyarrow.parquet as pq

    names: dict[str, tuple[str, ...]] = {}
    counts: dict[str, int | None] = {}
    for split, paths in files.items():
        opened = [_open_parquet(path, image_column, label_column) for path in paths]
        counts[split] = sum(file.metadata.num_rows for file in opened)
        described = _class_names_of(opened[0].schema_arrow.metadata, label_column)
        names[split] = described or _numbers(opened, label_column)

    def examples(paths: Sequence[str]) -> Iterator[tuple[int, bytes]]:
        for path in paths:
            batches = pq.ParquetFile(path).iter_batches(256, columns=[image_column, label_column])
            for batch in batches:
                for row in batch.to_pylist():
                    yield row[label_column], _parquet_image(row[image_column], path)

    longest = max(names.values(), key=len)
    if any(own != longest[: len(own)] for own in names.values()):
        _same_classes(names)
    return Converted(longest, {split: examples(paths) for split, paths in files.items()}, counts)


def _open_parquet(path: str, image_column: str, label_column: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInputError(f"{path}: not a readable parquet file ({error})") from None
    for column, option in ((image_column, "--image-column"), (label_column, "--label-column")):
        if column not in file.schema_arrow.names:
            raise BadInputError(
                f"{path}: no column {column!r}; there are {', '.join(file.schema_arrow.names)} "
                f"(choose with {option})"
            )
    return file


def _class_names_of(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """The names in the description that the `datasets` library stores with a schema."""
    try:
        described = json.loads((metadata or {})[b"huggingface"])
        return tuple(described["info"]["features"][column]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


def _numbers(files: Sequence[Any], column: str) -> tuple[str, ...]:
    highest = max(max(file.read([column])[column].to_pylist()) for file in files)
    return tuple(str(label) for label in range(highest + 1))


def _parquet_image(value: Any, path: str) -> bytes:
    image = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(image, bytes):
        raise BadInputError(f"{path}: an image is not stored in the file (no bytes)")
    return image


# --- Packed .npz --------------------------------------------------------------------------------


def read_npz(files: Mapping[str, Sequence[str]]) -> Converted:
    """.npz packs: `jpeg` (uint8, all files end to end), `offsets` (int64 [n + 1]), `labels`,
    `class_names`; image i is jpeg[offsets[i]:offsets[i + 1]]."""
    names: dict[str, tuple[str, ...]] = {}
    counts: dict[str, int | None] = {}
    for split, paths in files.items():
        counts[split] = 0
        for path in paths:
            pack = _load_npz(path, ("class_names", "labels"))
            names[path] = tuple(str(name) for name in pack["class_names"])
            counts[split] += len(pack["labels"])

    def examples(paths: Sequence[str]) -> Iterator[tuple[int, bytes]]:
        for path in paths:
            pack = _load_npz(path, ("jpeg", "offsets", "labels"))
            jpeg, offsets, labels = pack["jpeg"], pack["offsets"], pack["labels"]
            if len(offsets) != len(labels) + 1 or offsets[-1] > len(jpeg):
                raise BadInputError(f"{path}: offsets do not fit the labels and the image bytes")
            for i, label in enumerate(labels.tolist()):
                yield label, jpeg[offsets[i] : offsets[i + 1]].tobytes()

    return Converted(
        _same_classes(names), {split: examples(paths) for split, paths in files.items()}, counts
    )


def _load_npz(path: str, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays asked for, each inflated once."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.file_size > MAX_ARRAY_BYTES:
                    raise BadInputError(f"{path}: array {member.filename} is too large")
        with np.load(path, allow_pickle=False) as pack:
            return {key: pack[key] for key in keys}
    except KeyError as error:
        raise BadInputError(f"{path}: {error.args[0]}; needs {', '.join(keys)}") from None
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, BadInputError):
            raise
        raise BadInputError(f"{path}: not a readable .npz pack ({error})") from None


# --- TensorFlow Datasets ------------------------------------------------------------------------


def prepare_tfds(name: str, data_dir: str | None) -> Any:
    """Downloads and prepares a TFDS image classification set as array_record; needs TensorFlow.

    Returns:
      The TFDS builder. A set that is there already is left in the format it has.

    Raises:
      BadInputError: no TensorFlow, no such set, or not a classification set.
    """
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        raise BadInputError(
            f"tfds {name}: preparing a TFDS set needs TensorFlow; "
            "pip install -e '.[prepare]', or convert the images with another subcommand"
        ) from None
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        raise BadInputError(f"tfds {name}: {str(error).strip().splitlines()[0]}") from None
    if not {"image", "label"} <= set(builder.info.features):
        raise BadInputError(f"tfds {name}: has no image and label features")
    builder.download_and_prepare(file_format="array_record")
    return builder


def read_tfds(builder: Any) -> Converted:
    """The images of a prepared TFDS set in whatever format it is stored; needs TensorFlow."""
    import tensorflow_datasets as tfds

    def examples(split: str) -> Iterator[tuple[int, bytes]]:
        encoded = {"image": tfds.decode.SkipDecoding()}
        if builder.info.file_format.value == "array_record":  # as_dataset refuses this one
            dataset = builder.as_data_source(split, decoders=encoded)
        else:
            dataset = tfds.as_numpy(
                builder.as_dataset(split=split, shuffle_files=False, decoders=encoded)
            )
        for example in dataset:
            yield int(example["label"]), bytes(example["image"])

    return Converted(
        tuple(builder.info.features["label"].names),
        {split: examples(split) for split in builder.info.splits},
        {split: info.num_examples for split, info in builder.info.splits.items()},
    )
