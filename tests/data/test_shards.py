"""Packed sets and TFDS sets: records read back unchanged, and damaged files are named."""

import functools
import json
import operator
import os
import pickle
import sys
from pathlib import Path

import pytest

# Imported before any test runs. While TFDS loads, imports are lazy in the whole process. Iterators
# of other tests could not import if the garbage collector finalised them at that time.
import tensorflow_datasets  # noqa: F401
from image_sources import png, refused
from preparing import make_tfds, tfds_record, write_shard

from widenet_jax.data import records
from widenet_jax.data.contract import Source
from widenet_jax.data.labelled import class_problems
from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadExampleError, BadInputError

# --- Packed sets ----------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    examples = [(i % 3, png(i)) for i in range(10)]
    records.write_set(
        tmp_path / "set",
        {"train": examples, "test": examples[:2]},
        class_names=["a", "b", "c"],
        provenance={"made": "here"},
        shard_bytes=3 * len(png(0)),
    )
    return tmp_path / "set"


def open_packed(packed: Path, split: str = "train") -> Source:
    return build_source({"source": "array_record", "path": str(packed)}, split)


def test_packed_set_reads_back_in_any_order(packed):
    source = open_packed(packed)
    assert len(source) == 10 and source.class_names == ("a", "b", "c")
    for i in (9, 0, 4, 3, 3):
        assert source[i] == {"label": i % 3, "image": png(i)}
    manifest = json.loads((packed / "dataset.json").read_text())
    assert manifest["format_version"] == 1
    assert manifest["splits"]["train"]["count"] == 10
    assert [s["records"] for s in manifest["splits"]["train"]["shards"]] == [3, 3, 3, 1]
    names = sorted(p.name for p in packed.iterdir())
    assert names[0] == "dataset.json" and names[-1] == "train-00003-of-00004.array_record"
    assert len(names) == 1 + 4 + 1


@pytest.mark.parametrize(
    ("labels", "refused_slice"),
    [
        ([0] * 5 + [2] * 3 + [1] * 2, True),  # as tar stores folders: in no order of the names
        ([0, 1, 2], True),
        ([0, 0, 1, 0, 2], False),
    ],
)
def test_a_slice_of_a_set_that_lies_class_by_class_is_refused(tmp_path, labels, refused_slice):
    examples = [(label, png(label)) for label in labels]
    out = tmp_path / "set"
    records.write_set(out, {"train": examples}, class_names="abc", provenance={})
    data = {"source": "array_record", "path": str(out), "train_split": "train[:]"}
    told, whole = "split 'train[:2]': the images of train lie class by class", "train[:]"
    for split, odd in (("train[:2]", refused_slice), (whole, False)):
        sources = (build_source(data, name) for name in (whole, split))
        problems = [*class_problems(*sources, data | {"eval_split": split})]
        assert [problem.startswith(told) for problem in problems] == [True] * odd


def test_a_damaged_shard_is_named(packed):
    shard = packed / "train-00001-of-00004.array_record"
    shard.write_bytes(shard.read_bytes()[:50])
    for found in ("50 bytes", "missing"):
        with pytest.raises(BadInputError, match=rf"train-00001-of-00004\S*: shard is {found}"):
            open_packed(packed)
        shard.unlink(missing_ok=True)
    assert len(open_packed(packed, "test")) == 2


def test_a_flipped_byte_is_found_when_read(packed):
    path = packed / "train-00001-of-00004.array_record"
    content = bytearray(path.read_bytes())
    middle = content.index(b"IHDR")  # inside the first image
    content[middle] ^= 0xFF
    path.write_bytes(content)
    source = open_packed(packed)
    place = r"train-00001-of-00004\S* record 0 \(image 3\): unreadable"
    with pytest.raises(BadExampleError, match=place):
        source[3]
    assert source[2]["label"] == 2 and source[4]["label"] == 1


def test_a_label_without_a_class_is_a_bad_example(packed):
    """As where a name of dataset.json was removed; the loss would count no class for it."""
    manifest = packed / "dataset.json"
    manifest.write_text(manifest.read_text().replace(',\n  "c"', ""))
    source = open_packed(packed)
    assert source.class_names == ("a", "b") and source[1]["label"] == 1
    with pytest.raises(BadExampleError, match=r"\(image 2\): unreadable \(label 2 of 2 classes\);"):
        source[2]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_bytes(path.read_bytes()[: -(1 << 16)]), "cut short or damaged"),
    ],
)
def test_a_shard_damaged_since_the_start_is_no_bad_example(packed, damage, found):
    source = open_packed(packed)
    damage(packed / "train-00001-of-00004.array_record")
    with pytest.raises(BadInputError, match=rf"train-00001-of-00004\S*: shard is {found}") as error:
        source[3]
    assert type(error.value) is BadInputError
    assert source[2]["label"] == 2


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("splits", "train", "shards", 2, "bytes"), None, "damaged (KeyError: 'bytes')"),
        (("splits", "train", "shards", 2, "records"), "x", "damaged (TypeError"),
        (("splits", "train", "shards", 2, "records"), 1e300, "damaged (TypeError"),
        (("splits", "train", "shards", 2, "records"), -1, "shards of [3, 3, -1, 1] records, count"),
        (("splits", "train", "shards", 2, "records"), 10**12, "shards of [3, 3, 1000000000000, 1]"),
        (("splits", "train", "count"), 9, "shards of [3, 3, 3, 1] records, count=9)"),
        (("splits", "test"), {"shards": []}, "split test has no shards"),
        (("splits",), {}, "damaged (ValueError: it names no split)"),
        (("class_names",), -1, "damaged (TypeError: class_names is no list of names)"),
        (("class_names",), "ab", "damaged (TypeError: class_names is no list of names)"),
        (("class_names",), [], "damaged (TypeError: class_names is no list of names)"),
        (("class_names",), None, "damaged (KeyError: 'class_names')"),
    ],
)
def test_a_damaged_manifest_is_refused(packed, path: tuple, value: object, told: str):
    manifest = packed / "dataset.json"
    content = json.loads(manifest.read_text())
    holder = functools.reduce(operator.getitem, path[:-1], content)
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    manifest.write_text(json.dumps(content))
    message = refused({"source": "array_record", "path": str(packed)}, "test")
    assert str(packed) in message and told in message
    assert message.endswith("; prepare the set again")


def test_an_unfinished_or_newer_set_is_refused(packed):
    manifest, data = packed / "dataset.json", {"source": "array_record", "path": str(packed)}
    content = manifest.read_text()
    newer = content.replace('"format_version": 1', '"format_version": 2')
    for text, problem in ((newer, "format_version 2"), (content[:40], "not valid JSON")):
        manifest.write_text(text)
        assert problem in refused(data, "train")
    manifest.unlink()
    assert "no dataset.json" in refused(data, "train")
    os.mkfifo(manifest)
    assert "not a regular file" in refused(data, "train")


# --- TensorFlow Datasets --------------------------------------------------------------------------


@pytest.fixture
def tfds_dir(tmp_path: Path) -> Path:
    return make_tfds(tmp_path, {"train": [[0, 1, 0], [1, 0]]}, ["ant", "bee"])


def test_tfds_reads_without_tensorflow(tfds_dir):
    loaded_before = "tensorflow" in sys.modules
    by_name = build_source({"source": "tfds", "name": "tiny", "path": str(tfds_dir)}, "train")
    path = str(tfds_dir / "tiny" / "1.0.0")
    by_path = build_source({"source": "tfds", "name": "", "path": path}, "train")
    for source in (by_name, by_path, pickle.loads(pickle.dumps(by_name))):
        assert len(source) == 5 and source.class_names == ("ant", "bee")
        assert source[3] == {"image": png(3), "label": 1}
    part = build_source({"source": "tfds", "name": "", "path": path}, "train[2:4]")
    assert [part[i]["image"] for i in range(len(part))] == [png(2), png(3)]
    joined = build_source({"source": "tfds", "name": "", "path": path}, "train + train[:1]")
    assert [joined[i]["image"] for i in range(len(joined))] == [*map(png, range(5)), png(0)]
    assert ("tensorflow" in sys.modules) == loaded_before


def test_tfds_mistakes_name_the_remedy(tfds_dir):
    data = {"source": "tfds", "name": "tiny", "path": str(tfds_dir)}
    named = refused(data | {"eval_split": "test"}, "test")
    assert named.endswith("no split 'test'; there are train (--config.data.eval_split)")
    assert "no split 'val'; there are train" in refused(data, "train[:2]+val")
    for split in ("train[2:]+train[:1%]", "train[:1%]"):
        assert "split 'train[:1%]' has no rows: leave it out" in refused(data, split)
    advice = "python scripts/prepare_data.py tfds cifar10"
    assert advice in refused({**data, "name": "cifar10"}, "train")
    described = tfds_dir / "tiny" / "1.0.0" / "dataset_info.json"
    described.write_text(described.read_text().replace("array_record", "tfrecord"))
    message = refused(data, "train")
    assert "prepared as tfrecord" in message
    assert message.endswith("prepare_data.py tfds tiny --out DIR")


def second_shard(tfds_dir: Path) -> Path:
    return tfds_dir / "tiny" / "1.0.0" / "tiny-train.array_record-00001-of-00002"


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:70]), "cut short or damaged"),
        (lambda path: write_shard(path, [b""]), r"cut short or damaged \(1 of 2 records found\)"),
    ],
)
def test_a_damaged_tfds_shard_is_named_at_the_start(tfds_dir, damage, found):
    damage(second_shard(tfds_dir))
    data = {"source": "tfds", "name": "tiny", "path": str(tfds_dir)}
    with pytest.raises(BadInputError, match=rf"train\S*-00001-of-00002: shard is {found}") as error:
        build_source(data, "train")
    assert type(error.value) is BadInputError
    # A slice of the split that lies in other shards can still be read.
    assert len(build_source(data, "train[:2]")) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"no protocol buffer",
        tfds_record(label=1),
        tfds_record(image=1, label=1),
        tfds_record(image=png(3), label=-1),  # as in splits without labels
    ],
    ids=["garbage", "no image", "a number for an image", "no class"],
)
def test_a_bad_tfds_record_is_a_bad_example(tfds_dir, content):
    write_shard(second_shard(tfds_dir), [tfds_record(image=png(3), label=1), content])
    data = {"source": "tfds", "name": "tiny", "path": str(tfds_dir)}
    source = build_source(data, "train[1:]")
    assert source[2] == {"image": png(3), "label": 1}
    assert source.describe(1).endswith("-00000-of-00002 record 2 (image 1)")
    place = r"tiny-train\S*-00001-of-00002 record 1 \(image 3\): unreadable"
    with pytest.raises(BadExampleError, match=place) as error:
        source[3]
    assert "\n" not in str(error.value)
