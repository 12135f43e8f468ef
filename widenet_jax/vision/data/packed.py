"""Packed sets of labelled images, of `prepare_data.py` and of TensorFlow Datasets (TFDS)."""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from widenet_jax.data import records
from widenet_jax.data.labelled import LabelledImages, check_class_names
from widenet_jax.data.shards import Packed, PackedSet, Shards
from widenet_jax.data.sources import path_of
from widenet_jax.data.splits import check_part, check_split, parts_of
from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.files import readable


class ArrayRecord(PackedSet, LabelledImages):
    """A packed set of labelled images."""

    labels_to_read = True

    def __init__(self, directory: str, split: str):
        super().__init__(directory, split, kind="images", unit="image")
        self.class_names = tuple(self.manifest["class_names"])
        check_class_names(self.class_names, f"{directory}/{records.MANIFEST}")

    def _example(self, record: bytes) -> dict[str, Any]:
        label, image = records.decode_record(record)
        return {"image": image, "label": self.checked(label)}


class Tfds(Packed, LabelledImages):
    """An image classification set that TensorFlow Datasets (TFDS) prepared as array_record.

    Reading needs no TensorFlow. `path` is TFDS's data directory (its default if empty), or with an
    empty `name` the directory of one prepared set (the one that holds dataset_info.json).

    TFDS does not store the sizes of its shards in bytes, so each is opened once at the start.
    """

    labels_to_read = True

    def __init__(self, name: str, path: str, split: str):
        import tensorflow_datasets as tfds

        label = name or path
        command = f"python scripts/prepare_data.py tfds {label}"
        advice = f"; prepare it where TensorFlow is installed: {command}"
        opening = partial(refusing, f"TFDS {label}: not readable", Exception, advice=advice)
        readable(path)  # refuses a place that TFDS cannot read
        with opening():
            if name:
                builder = tfds.builder(name, data_dir=path or None)
            else:
                builder = tfds.builder_from_directory(path)
            info = builder.info
            if not info.splits:
                raise FileNotFoundError(f"not prepared in {builder.data_dir}")
        self.class_names = label_names(info, f"TFDS {label}")
        for part in parts_of(split):
            check_split(part.split("[")[0], tuple(info.splits), f"TFDS {label}")
        with opening():
            for part in parts_of(split):
                check_part(part, info.splits[part].num_examples, where=f"TFDS {label}")
            encoded = {"image": tfds.decode.SkipDecoding()}
            try:
                self._records = builder.as_data_source(split, decoders=encoded)
            except NotImplementedError:
                raise BadInputError(
                    f"TFDS {label}: prepared as {info.file_format.value}, which cannot be read in "
                    "random order; pack it where TensorFlow is installed: "
                    f"python scripts/prepare_data.py tfds {builder.name} --out DIR"
                ) from None
            files = info.splits[split].file_instructions
        self._shards = Shards(
            paths=[file.filename for file in files],
            sizes=[file.examples_in_shard for file in files],
            skips=[file.skip for file in files],
            takes=[file.take for file in files],
            remedy="copy it again or prepare the set again with TFDS",
        )
        self._shards.check_all()

    @property
    def contents(self) -> np.ndarray:
        """A number for each record's file and place in it, int64 [n]; see `sources.common`."""
        files = zip(self._shards.paths, self._shards.skips, self._shards.takes, strict=True)
        return np.concatenate([np.arange(take) + hash(path) + skip for path, skip, take in files])

    def _example(self, record: dict[str, Any]) -> dict[str, Any]:
        image, label = record["image"], record["label"]
        # TFDS gives None for a missing feature.
        if not isinstance(image, bytes) or label is None:
            raise TypeError("record without an image or a label")
        return {"image": image, "label": self.checked(int(label))}


def label_names(info: Any, place: str) -> tuple[str, ...]:
    """Returns the classes of a TFDS set; raises BadInputError where it has no images of classes."""
    import tensorflow_datasets as tfds

    label = info.features["label"] if {"image", "label"} <= set(info.features or ()) else None
    fits = isinstance(label, tfds.features.ClassLabel)
    problem = "has no image, or no label of a class; choose a TFDS image classification set"
    refuse(place, (not fits, problem))
    return tuple(label.names)


def open_array_record(data: Mapping[str, Any], split: str, info: Mapping[str, Any]) -> ArrayRecord:
    """Opens a split of a packed set; see `specs.SourceSpec`."""
    return ArrayRecord(path_of(data), split)


def open_tfds(data: Mapping[str, Any], split: str, info: Mapping[str, Any]) -> Tfds:
    """Opens a split of a TFDS set; see `specs.SourceSpec`."""
    name, path = data.get("name") or "", data.get("path") or ""
    if not (name or path):
        raise BadInputError("config.data.source=tfds needs a set, as in --config.data.name=cifar10")
    return Tfds(name, os.path.expanduser(path), split)
