"""Hosts compare a hash of what they read: the same for a copy, another for other data."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from image_sources import png
from PIL import Image

from widenet_jax.data import records
from widenet_jax.data.contents import contents_sha256
from widenet_jax.data.sources import build_source


def sha256(path: Path, source: str, split: str = "train") -> str:
    return contents_sha256(build_source({"source": source, "path": str(path)}, split))


def write_folder(root: Path) -> None:
    for value, name in enumerate(("ant", "bee")):
        (root / "train" / name).mkdir(parents=True)
        for number in range(3):
            (root / "train" / name / f"{number}.png").write_bytes(png(10 * value + number))


def write_packed(root: Path, first: int) -> None:
    examples = [(i % 2, png(first + i)) for i in range(6)]
    how = {"class_names": ["ant", "bee"], "provenance": {}, "shard_bytes": 2 * len(png(0))}
    records.write_set(root, {"train": examples}, **how)


def relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere.png")


CHANGES = {
    "bytes": lambda train: (train / "ant" / "1.png").write_bytes(png(200)),
    "a name": lambda train: (train / "ant" / "1.png").rename(train / "ant" / "1a.png"),
    "classes": lambda train: [
        (train / a).rename(train / b) for a, b in (("ant", "x"), ("bee", "ant"), ("x", "bee"))
    ],
    "a missing link": lambda train: relink(train / "bee" / "2.png"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_copy_of_a_folder_and_another_folder(tmp_path: Path, change: Callable):
    """Names, counts and classes alone would not tell all of these changes."""
    write_folder(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    splits = ("train", "train[:50%]")
    ours = [sha256(tmp_path / "one", "image_folder", split) for split in splits]
    assert [sha256(tmp_path / "two", "image_folder", split) for split in splits] == ours
    change(tmp_path / "two" / "train")
    assert sha256(tmp_path / "two", "image_folder") != ours[0]


def test_files_out_of_the_sample_count_by_name_and_size(tmp_path: Path, monkeypatch):
    write_folder(tmp_path)
    monkeypatch.setattr("widenet_jax.data.contents.SAMPLE", 0)
    hashes, ants = {sha256(tmp_path, "image_folder")}, tmp_path / "train" / "ant"
    (ants / "0.png").write_bytes(png(0) + b"longer")
    hashes.add(sha256(tmp_path, "image_folder"))
    (ants / "2.png").rename(ants / "3.png")
    assert len({*hashes, sha256(tmp_path, "image_folder")}) == 3


def test_packed_sets(tmp_path: Path):
    """Two sets whose shards have equal names and sizes differ by the examples."""
    for name, first in (("one", 0), ("two", 0), ("other", 100)):
        write_packed(tmp_path / name, first)
    one, two, other = (sha256(tmp_path / name, "array_record") for name in ("one", "two", "other"))
    assert one == two != other
    source = build_source({"source": "array_record", "path": str(tmp_path / "one")}, "train")
    assert source.files()[0].startswith("train-00000-of-00003.array_record 2 ")


class Sentences(list):
    """Examples of texts: lists of arrays of any lengths."""

    def __getitem__(self, index: int) -> dict:
        return {"sentences": [np.arange(n) for n in super().__getitem__(index)]}

    describe = str


def test_sentences_of_different_lengths():
    found = [contents_sha256(Sentences([lengths])) for lengths in ([2, 3], [2, 3], [3, 2], [5])]
    assert found[0] == found[1] and len(set(found)) == 3


class Objects:
    """Examples of one value each, made anew at each read."""

    info: Mapping = MappingProxyType({})

    def __init__(self, make: Callable[[], object]):
        self.make = make

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict:
        return {"value": self.make()}

    def describe(self, index: int) -> str:
        return str(index)


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: Image.fromarray(np.eye(4, dtype=np.uint8)), lambda: Image.new("L", (4, 4))),
        (lambda: np.array(["".join("ab")], object), lambda: np.array(["ac"], object)),
        (object, lambda: 1),
    ],
)
def test_addresses_do_not_count(make: Callable, other: Callable):
    kept = [make()]  # so that the next one lies elsewhere
    ours = contents_sha256(Objects(lambda: kept[0]))
    assert contents_sha256(Objects(make)) == ours != contents_sha256(Objects(other))


def test_the_order_of_a_set_does_not_count():
    """0 and 8 have one place in a small table, so that the first one to come has it."""
    ours, theirs = {0, 8}, {8, 0}
    assert [*ours] != [*theirs]
    assert contents_sha256(Objects(lambda: ours)) == contents_sha256(Objects(lambda: theirs))
