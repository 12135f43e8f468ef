"""Packed sets and TFDS sets: records read back unchanged, and damaged files are named."""

import functools
import json
import operator
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Imported before any test runs. While TFDS loads, imports are lazy in the whole process. Iterators
# of other tests could not import if the garbage collector finalised them at that time.
import tensorflow_datasets  # noqa: F401
from image_sources import png, refused
from preparing import make_tfds, tfds_record, write_shard

from widenet_jax.data import labelled, records
from widenet_jax.data.contents import contents_sha256
from widenet_jax.data.contract import Source
from widenet_jax.data.labelled import class_problems
from widenet_jax.data.sources import build_source, overview
from widenet_jax.errors import BadExampleError, BadInputError

SIZES = {"train": 10, "test": 2}

# --- Packed sets ----------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    splits = {name: [(i % 3, png(i)) for i in range(size)] for name, size in SIZES.items()}
    how = {"provenance": {"made": "here"}, "shard_bytes": 3 * len(png(0))}
    records.write_set(tmp_path / "set", splits, class_names=["a", "b", "c"], **how)
    return tmp_path / "set"


def open_packed(packed: Path, split: str = "train") -> Source:
    return build_source({"source": "array_record", "path": str(packed)}, split)


def test_packed_set_reads_back_in_any_order(packed):
    source = open_packed(packed)
    assert len(source) == 10 and source.class_names == ("a", "b", "c")
    for i in (9, 0, 4, 3, 3):
        assert source[i] == {"label": i % 3, "image": png(i)}
    manifest = json.loads((packed / "dataset.json").read_text())
    assert manifest["format_version"] == 1 and manifest["splits"]["train"]["count"] == 10
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
    sums = ("train+train[:2]", refused_slice), ("train+train", False)
    for split, odd in (("train[:2]", refused_slice), (whole, False), *sums):
        sources = (build_source(data, name) for name in (whole, split))
        problems = [*class_problems(*sources, data | {"eval_split": split})]
        assert [problem.startswith(told) for problem in problems] == [True] * odd


@pytest.mark.parametrize(("read", "more"), [(512, ""), (64, " among 64 looked at")])
def test_classes_that_a_slice_of_sorted_files_lacks_are_named(tmp_path, monkeypatch, read, more):
    """Not by chance: a sample of 64 lacks some of 30 classes in mixed order, too."""
    monkeypatch.setattr(labelled, "LABELS_READ", read)
    image = png(0)
    labels = {"files": [k // 100 % 10 for k in range(2000)], "mixed": [*range(30)] * 80}
    splits = {name: [(label, image) for label in found] for name, found in labels.items()}
    names = [f"c{k}" for k in range(30)]
    records.write_set(tmp_path / "set", splits, class_names=names, provenance={})
    for split, size, told in (
        ("files", 200, f", none of c0, c1, c2, c3, c4 and 3 more{more}"),
        ("mixed", 240, ""),
    ):
        parts = [f"{split}[:90%]", f"{split}[90%:]"]
        sources = [open_packed(tmp_path / "set", part) for part in parts]
        data = {"path": "", "train_split": parts[0], "eval_split": parts[1]}
        assert not [*class_problems(*sources, data)]
        line = overview([*zip(parts, sources, strict=True)], "images")
        assert line.endswith(f"0 images, 30 classes; {parts[1]}: {size} images{told}")
        line = overview([*zip(parts[::-1], sources[::-1], strict=True)], "images")
        assert line.startswith(f"{parts[1]}: {size} images, 30 classes{told}; ")


@pytest.mark.parametrize("split", ["train+test[50%:]", "test + train[:20%]", "train[-1:]+train"])
def test_a_sum_of_splits_has_the_images_that_it_has_in_tfds(packed, tmp_path, split):
    labels = {name: [[i % 3 for i in range(size)]] for name, size in SIZES.items()}
    of_tfds = build_source(tfds(make_tfds(tmp_path, labels, ["a", "b", "c"])), split)
    source = pickle.loads(pickle.dumps(open_packed(packed, split)))
    ours, theirs = (
        [(one[i]["label"], one[i]["image"]) for i in range(len(one))] for one in (source, of_tfds)
    )
    assert ours == theirs and source.class_names == of_tfds.class_names
    first = {"train[-1:]+train": "record 0 (image 9)"}.get(split, "record 0 (image 0)")
    assert source.describe(0).endswith(first) and source.labels_to_read
    swapped = open_packed(packed, "+".join(reversed(split.split("+"))))
    assert contents_sha256(swapped) != contents_sha256(source)


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("train+dev", "no split 'dev'; there are train, test"),
        ("train+", "no split ''; there are train, test"),
        ("train+test[:1%]", "split 'test[:1%]': no image in this slice of 2"),
        ("train[5]+test", "split 'train[5]': a slice is written as train[90%:]"),
        ("(train+test)[:5]", "no split '(train'; there are train, test"),
    ],
)
def test_a_sum_of_other_parts_is_refused(packed, split, told):
    data = {"source": "array_record", "path": str(packed), "eval_split": split}
    message = refused(data, split)
    assert told in message and message.endswith(" (--config.data.eval_split)")


SHARD = "train-00001-of-00004.array_record"


def changed(path: Path, change: Callable[[bytes], bytes | None]) -> None:
    """Changes the content of a file; None removes it."""
    content = change(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)


def flipped(content: bytes) -> bytes:
    """Changes a byte inside the first image."""
    middle = content.index(b"IHDR")
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("change", "index", "kind", "told"),
    [
        (lambda content: content[:50], None, BadInputError, "shard is 50 bytes, "),
        (lambda content: None, None, BadInputError, "shard is missing, "),
        (lambda content: None, 3, BadInputError, "shard is missing; "),
        (lambda content: b"", 3, BadInputError, "shard is empty (0 bytes); "),
        (lambda content: content[: -(1 << 16)], 3, BadInputError, "shard is cut short or damaged"),
        (flipped, 3, BadExampleError, " record 0 (image 3): unreadable"),
    ],
)
def test_a_damaged_shard_is_named(packed, change, index, kind, told):
    """As the set is opened; or where it was damaged since, as its example `index` is read."""
    source = open_packed(packed)
    changed(packed / SHARD, change)
    with pytest.raises(BadInputError, match=rf"{SHARD}: shard|{SHARD} record") as error:
        open_packed(packed) if index is None else source[index]
    assert told in str(error.value) and type(error.value) is kind
    assert source[1]["label"] == 1 and len(open_packed(packed, "test")) == 2


def test_a_label_without_a_class_is_a_bad_example(packed):
    """As where a name of dataset.json was removed; the loss would count no class for it."""
    changed(packed / "dataset.json", lambda content: content.replace(b',\n  "c"', b""))
    source = open_packed(packed)
    assert source.class_names == ("a", "b") and source[1]["label"] == 1
    with pytest.raises(BadExampleError, match=r"\(image 2\): unreadable \(label 2 of 2 classes\);"):
        source[2]


SHARDS = ("splits", "train", "shards", 2)
NO_NAMES = "damaged (TypeError: class_names is no list of names)"


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ((*SHARDS, "bytes"), None, "damaged (KeyError: 'bytes')"),
        ((*SHARDS, "records"), "x", "damaged (TypeError"),
        ((*SHARDS, "records"), 1e300, "damaged (TypeError"),
        ((*SHARDS, "records"), -1, "damaged (ValueError: shards of [3, 3, -1, 1] records, count"),
        ((*SHARDS, "records"), 10**12, "damaged (ValueError: shards of [3, 3, 1000000000000, 1]"),
        (("splits", "train", "count"), 9, "shards of [3, 3, 3, 1] records, count=9)"),
        (("splits", "test"), {"shards": []}, "split test has no shards; prepare the set again"),
        (("splits",), {}, "damaged (ValueError: it names no split)"),
        (("class_names",), -1, NO_NAMES),
        (("class_names",), "ab", NO_NAMES),
        (("class_names",), [], NO_NAMES),
        (("class_names",), None, "damaged (KeyError: 'class_names')"),
        (("format_version",), 2, "format_version 2"),
    ],
)
def test_a_damaged_manifest_is_refused(packed, path: tuple, value: object, told: str):
    manifest = packed / "dataset.json"
    content = json.loads(manifest.read_text())
    holder = functools.reduce(operator.getitem, path[:-1], content)
    holder[path[-1]] = value
    if value is None:
        del holder[path[-1]]
    manifest.write_text(json.dumps(content))
    message = refused({"source": "array_record", "path": str(packed)}, "test")
    assert str(packed) in message and told in message
    assert "damaged" not in told or message.endswith("; prepare the set again")


def test_an_unfinished_set_is_refused(packed):
    manifest, data = packed / "dataset.json", {"source": "array_record", "path": str(packed)}
    changed(manifest, lambda content: content[:40])
    assert "not valid JSON" in refused(data, "train")
    manifest.unlink()
    assert "no dataset.json" in refused(data, "train")
    os.mkfifo(manifest)
    assert "not a regular file" in refused(data, "train")


# --- TensorFlow Datasets --------------------------------------------------------------------------


@pytest.fixture
def tfds_dir(tmp_path: Path) -> Path:
    return make_tfds(tmp_path, {"train": [[0, 1, 0], [1, 0]]}, ["ant", "bee"])


def tfds(folder: Path, **fields: str) -> dict[str, str]:
    return {"source": "tfds", "name": "tiny", "path": str(folder), **fields}


@pytest.mark.parametrize("evaluated", ["train[40%:]", "train[4:]+train[:1]"])
def test_slices_of_tfds_that_overlap_are_counted(tfds_dir, evaluated):
    names = "train[20%:]", evaluated
    splits = [(name, build_source(tfds(tfds_dir), name)) for name in names]
    count = {"train[40%:]": 3, "train[4:]+train[:1]": 1}[evaluated]
    assert f" images, {count} of them in train[20%:] too" in overview(splits, "images")


def test_tfds_reads_without_tensorflow(tfds_dir):
    loaded_before = "tensorflow" in sys.modules
    by_name = build_source(tfds(tfds_dir), "train")
    at = tfds(tfds_dir / "tiny" / "1.0.0", name="")
    for source in (by_name, build_source(at, "train"), pickle.loads(pickle.dumps(by_name))):
        assert len(source) == 5 and source.class_names == ("ant", "bee")
        assert source[3] == {"image": png(3), "label": 1}
    for split, images in (("train[2:4]", [2, 3]), ("train + train[:1]", [*range(5), 0])):
        part = build_source(at, split)
        assert [part[i]["image"] for i in range(len(part))] == [*map(png, images)]
    assert ("tensorflow" in sys.modules) == loaded_before


@pytest.mark.parametrize(
    ("fields", "split", "told"),
    [
        ({"eval_split": "test"}, "test", "no split 'test'; there are train (--config.data.eval_"),
        ({}, "train[:2]+val", "no split 'val'; there are train"),
        ({}, "train[2:]+train[:1%]", "split 'train[:1%]' has no rows: leave it out"),
        ({}, "train[:1%]", "split 'train[:1%]' has no rows: leave it out"),
        ({"name": "cifar10"}, "train", "python scripts/prepare_data.py tfds cifar10"),
    ],
)
def test_tfds_mistakes_name_the_remedy(tfds_dir, fields, split, told):
    assert told in refused(tfds(tfds_dir, **fields), split)


def test_tfds_in_another_format(tfds_dir):
    changed(
        tfds_dir / "tiny" / "1.0.0" / "dataset_info.json",
        lambda content: content.replace(b"array_record", b"tfrecord"),
    )
    message = refused(tfds(tfds_dir), "train")
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
    with pytest.raises(BadInputError, match=rf"train\S*-00001-of-00002: shard is {found}") as error:
        build_source(tfds(tfds_dir), "train")
    assert type(error.value) is BadInputError
    # A slice of the split that lies in other shards can still be read.
    assert len(build_source(tfds(tfds_dir), "train[:2]")) == 2


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
    source = build_source(tfds(tfds_dir), "train[1:]")
    assert source[2] == {"image": png(3), "label": 1}
    assert source.describe(1).endswith("-00000-of-00002 record 2 (image 1)")
    place = r"tiny-train\S*-00001-of-00002 record 1 \(image 3\): unreadable"
    with pytest.raises(BadExampleError, match=place) as error:
        source[3]
    assert "\n" not in str(error.value)
