"""Where images come from: random-access sources, one per storage layout.

`build_source` makes the one that `config.data` names. A source is small to pickle: worker processes
get a copy, and open files only when they first read one.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from widenet_jax.data import records
from widenet_jax.errors import BadInputError, choose

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
# The digits' test set: drawn once for everybody, whatever the run's seed.
DIGITS_SPLIT_SEED = 0
DIGITS_TEST_SHARE = 0.2


class Source(Protocol):
    """A labelled image set that can be read in any order.

    Attributes:
      class_names: label k is class_names[k].
    """

    class_names: tuple[str, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """{"image": uint8 [H, W, 1 or 3] or the bytes of a JPEG or PNG file, "label": int}."""
        ...

    def describe(self, index: int) -> str:
        """Which image this is, for an error message: a path, or a set, split and index."""
        ...


class Digits:
    """scikit-learn's 1,797 handwritten digits: real 8x8 scans that need no download.

    A fifth (360 images) is the test split, stratified by class and the same for every run.
    Images are uint8 [8, 8, 1], the original's 17 grey levels spread over 0..255.
    """

    class_names = tuple(str(digit) for digit in range(10))

    def __init__(self, split: str):
        # Slow to import, and needed by this source alone.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        _check_split(split, ("train", "test"), "the digits")
        digits = load_digits()
        train, test = train_test_split(
            np.arange(len(digits.target)),
            test_size=DIGITS_TEST_SHARE,
            random_state=DIGITS_SPLIT_SEED,
            stratify=digits.target,
        )
        chosen = np.sort(train if split == "train" else test)
        pixels = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
        self._images = pixels[..., None]
        self._labels = digits.target[chosen].astype(np.int32)
        self._split = split

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self._images[index], "label": int(self._labels[index])}

    def describe(self, index: int) -> str:
        return f"digits {self._split} image {index}"


class ImageFolder:
    """Image files in `root/split/class/`, ImageNet's layout; classes in sorted order."""

    def __init__(self, root: str, split: str):
        folder = Path(root)
        if not folder.is_dir():
            raise BadInputError(f"config.data.path={root}: no such directory")
        _check_split(split, _subfolders(folder), f"config.data.path={root}")
        self.class_names = tuple(_subfolders(folder / split))
        if not self.class_names:
            raise BadInputError(
                f"{folder / split}: has no class folders; images belong in {root}/SPLIT/CLASS/"
            )
        self._folder = str(folder / split)
        self._files: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            files = sorted(
                entry.name
                for entry in os.scandir(folder / split / name)
                if entry.name.lower().endswith(IMAGE_SUFFIXES) and not entry.name.startswith(".")
            )
            self._files += [f"{name}/{file}" for file in files]
            labels += [label] * len(files)
        self._labels = np.asarray(labels, np.int32)
        if not self._files:
            raise BadInputError(
                f"{folder / split}: no image in its {len(self.class_names)} class folders "
                f"({', '.join(IMAGE_SUFFIXES)})"
            )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            image = Path(self.describe(index)).read_bytes()
        except OSError as error:
            raise BadInputError(f"{self.describe(index)}: {error.strerror}") from None
        return {"image": image, "label": int(self._labels[index])}

    def describe(self, index: int) -> str:
        return f"{self._folder}/{self._files[index]}"


class ArrayRecord:
    """A packed set written by `scripts/prepare_data.py` (see `records`)."""

    def __init__(self, directory: str, split: str):
        from array_record.python import array_record_data_source

        manifest = records.read_manifest(directory)
        _check_split(split, tuple(manifest["splits"]), f"config.data.path={directory}")
        self.class_names = tuple(manifest["class_names"])
        entry = manifest["splits"][split]
        paths = records.checked_shards(directory, split, entry["shards"])
        sizes = [shard["records"] for shard in entry["shards"]]
        # Opens nothing yet: "path[first:last]" spares it from counting the records itself, shards
        # are opened when first read, and a pickled copy opens its own. (A process must not read,
        # then fork, then read in the child: ArrayRecord's threads do not survive that.)
        self._records = array_record_data_source.ArrayRecordDataSource(
            [f"{path}[0:{size}]" for path, size in zip(paths, sizes, strict=True)]
        )
        self._paths = paths
        self._ends = np.cumsum(sizes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            record = self._records[index]
        except (RuntimeError, OSError, ValueError, IndexError) as error:
            raise BadInputError(
                f"{self.describe(index)}: unreadable ({_first_line(error)}); copy the shard again "
                "or prepare the set again"
            ) from None
        label, image = records.decode_record(record)
        return {"image": image, "label": label}

    def describe(self, index: int) -> str:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        first = self._ends[shard - 1] if shard else 0
        return f"{self._paths[min(shard, len(self._paths) - 1)]} record {index - first}"


class Tfds:
    """An image classification set prepared by TensorFlow Datasets as array_record.

    Reading needs no TensorFlow. `path` is TFDS's data directory (its default if empty), or with an
    empty `name` the directory of one prepared set (the one that holds dataset_info.json).
    """

    def __init__(self, name: str, path: str, split: str):
        import tensorflow_datasets as tfds

        builder = _tfds_builder(name, path)
        label = name or path
        features = builder.info.features
        if features is None or not {"image", "label"} <= set(features):
            raise BadInputError(
                f"config.data.name={label}: has no image and label features; choose a TFDS image "
                "classification set"
            )
        _check_split(split.split("[")[0], tuple(builder.info.splits), f"TFDS {label}")
        try:
            self._records = builder.as_data_source(
                split, decoders={"image": tfds.decode.SkipDecoding()}
            )
        except NotImplementedError:
            raise BadInputError(
                f"TFDS {label}: prepared as {builder.info.file_format.value}, which cannot be read "
                "in random order; pack it where TensorFlow is installed: "
                f"python scripts/prepare_data.py tfds {builder.name} --out DIR"
            ) from None
        except (ValueError, AssertionError) as error:
            raise BadInputError(_tfds_advice(label, _first_line(error))) from None
        names = getattr(features["label"], "names", None)
        count = features["label"].num_classes
        self.class_names = tuple(names or (str(k) for k in range(count)))
        self._name = f"TFDS {label} {split}"

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self._records[index]
        return {"image": record["image"], "label": int(record["label"])}

    def describe(self, index: int) -> str:
        return f"{self._name} record {index}"


def _tfds_builder(name: str, path: str) -> Any:
    import tensorflow_datasets as tfds

    try:
        if name:
            builder = tfds.builder(name, data_dir=path or None)
        else:
            builder = tfds.builder_from_directory(path)
    except Exception as error:  # TFDS raises many kinds; each means the set is not there to read
        raise BadInputError(_tfds_advice(name or path, _first_line(error))) from None
    if not builder.info.splits:
        raise BadInputError(_tfds_advice(name or path, f"not prepared in {builder.data_dir}"))
    return builder


def _tfds_advice(name: str, reason: str) -> str:
    return (
        f"TFDS {name}: not readable ({reason}); prepare it where TensorFlow is installed: "
        f"python scripts/prepare_data.py tfds {name}"
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def _subfolders(folder: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_dir() and not entry.name.startswith(".")
    )


def _check_split(split: str, known: tuple[str, ...] | list[str], where: str) -> None:
    if split not in known:
        raise BadInputError(f"{where}: no split {split!r}; there are {', '.join(known) or 'none'}")


def _need_path(data: Mapping[str, Any]) -> str:
    if not data.get("path"):
        raise BadInputError(
            f"config.data.source={data['source']} needs a directory: add --config.data.path=DIR"
        )
    return os.path.expanduser(data["path"])


def _build_tfds(data: Mapping[str, Any], split: str) -> Source:
    if not data.get("name") and not data.get("path"):
        raise BadInputError(
            "config.data.source=tfds needs a set: add --config.data.name=cifar10, for instance"
        )
    return Tfds(data.get("name") or "", os.path.expanduser(data.get("path") or ""), split)


SOURCES: dict[str, Callable[[Mapping[str, Any], str], Source]] = {
    "digits": lambda data, split: Digits(split),
    "image_folder": lambda data, split: ImageFolder(_need_path(data), split),
    "array_record": lambda data, split: ArrayRecord(_need_path(data), split),
    "tfds": _build_tfds,
}


def build_source(data: Mapping[str, Any], split: str) -> Source:
    """The source that `config.data` names.

    Args:
      data: reads `source` (a key of SOURCES), `path` (all but digits) and `name` (tfds).
      split: the split to open, e.g. "train".

    Raises:
      BadInputError: unknown source or split, or nothing readable at the path; one line.
    """
    return choose(SOURCES, data["source"], field="config.data.source")(data, split)
