"""Every source yields what was put there, and names what is missing."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

# Imported before any test runs: while it loads, imports are made lazy for the whole process, and
# what the garbage collector finalises in that moment (iterators of other tests) cannot import.
import tensorflow_datasets  # noqa: F401
from array_record.python import array_record_module

from widenet_jax.data import images, records, sources
from widenet_jax.errors import BadInputError


def png(value: int) -> bytes:
    """A 4x5 image of one grey level."""
    return cv2.imencode(".png", np.full((4, 5, 3), value, np.uint8))[1].tobytes()


def refused(data: dict, split: str) -> str:
    with pytest.raises(BadInputError) as error:
        sources.build_source(data, split)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_unknown_source_gets_a_suggestion():
    message = refused({"source": "image_folders"}, "train")
    assert "digits, image_folder, array_record, tfds" in message
    assert "--config.data.source=image_folder?" in message


@pytest.mark.parametrize("name", ["image_folder", "array_record"])
def test_a_path_is_needed(name):
    assert refused({"source": name, "path": ""}, "train").endswith("add --config.data.path=DIR")


# --- Digits ---------------------------------------------------------------------------------------


def test_digits_are_split_by_class_and_cover_the_set():
    train = sources.build_source({"source": "digits"}, "train")
    test = sources.build_source({"source": "digits"}, "test")
    assert (len(train), len(test)) == (1437, 360)
    counts = np.bincount([test[i]["label"] for i in range(len(test))])
    assert counts.min() >= 34 and counts.max() <= 37  # a fifth of 174 to 183 a class
    pixels = sum(int(s[i]["image"].sum()) for s in (train, test) for i in range(len(s)))
    from sklearn.datasets import load_digits

    assert pixels == int(np.round(load_digits().images * 255 / 16).sum())
    image = train[0]["image"]
    assert image.shape == (8, 8, 1) and image.dtype == np.uint8


def test_digits_have_no_other_split():
    assert "no split 'val'; there are train, test" in refused({"source": "digits"}, "val")


# --- Image folders --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for value, name in enumerate(("zebra", "ant")):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "b.JPEG").write_bytes(png(10 * value))
            (tmp_path / split / name / "a.png").write_bytes(png(10 * value + 1))
            (tmp_path / split / name / "notes.txt").write_text("not an image")
            (tmp_path / split / name / "._a.png").write_bytes(b"left by a file manager")
    return tmp_path


def test_image_folder_reads_sorted_classes(folder):
    source = sources.build_source({"source": "image_folder", "path": str(folder)}, "val")
    assert source.class_names == ("ant", "zebra")
    assert [source[i]["label"] for i in range(len(source))] == [0, 0, 1, 1]
    values = [int(images.decode(source[i]["image"], "")[0, 0, 0]) for i in range(4)]
    assert values == [11, 10, 1, 0]
    assert source.describe(2) == f"{folder}/val/zebra/a.png"


def test_image_folder_lists_the_splits_there_are(folder):
    data = {"source": "image_folder", "path": str(folder)}
    assert "no split 'test'; there are train, val" in refused(data, "test")


def test_image_folder_without_images(folder, tmp_path):
    data = {"source": "image_folder", "path": str(tmp_path / "nowhere")}
    assert "no such directory" in refused(data, "train")
    (tmp_path / "train2" / "ant").mkdir(parents=True)
    assert "no image" in refused({"source": "image_folder", "path": str(tmp_path)}, "train2")
    (tmp_path / "train3").mkdir()
    assert "no class folders" in refused(
        {"source": "image_folder", "path": str(tmp_path)}, "train3"
    )


def test_a_file_that_went_away_is_named(folder):
    source = sources.build_source({"source": "image_folder", "path": str(folder)}, "val")
    (folder / "val" / "ant" / "a.png").unlink()
    with pytest.raises(BadInputError, match=r"val/ant/a\.png: No such file"):
        source[0]


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


def open_packed(packed: Path, split: str = "train") -> sources.Source:
    return sources.build_source({"source": "array_record", "path": str(packed)}, split)


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


def test_packed_set_survives_pickling_and_forking(packed):
    source = open_packed(packed)
    assert source[1]["label"] == 1  # its shard is open now
    assert pickle.loads(pickle.dumps(source))[7]["image"] == png(7)
    # Opened here, first read in the child; in a process of its own, for one with JAX must not fork.
    code = f"""
import os
from widenet_jax.data.sources import ArrayRecord
source = ArrayRecord({str(packed)!r}, "train")
if os.fork() == 0:
    os._exit(0 if [source[i]["label"] for i in range(4)] == [0, 1, 2, 0] else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "50 bytes"),
    ],
)
def test_a_damaged_shard_is_named(packed, damage, found):
    damage(packed / "train-00001-of-00004.array_record")
    with pytest.raises(BadInputError, match=rf"train-00001-of-00004\S*: shard is {found}"):
        open_packed(packed)
    assert len(open_packed(packed, "test")) == 2


def test_a_flipped_byte_is_found_when_read(packed):
    path = packed / "train-00001-of-00004.array_record"
    content = bytearray(path.read_bytes())
    middle = content.index(b"IHDR")  # inside the first image
    content[middle] ^= 0xFF
    path.write_bytes(content)
    source = open_packed(packed)
    with pytest.raises(BadInputError, match=r"train-00001-of-00004\S* record 0: unreadable"):
        source[3]
    assert source[2]["label"] == 2


def test_an_unfinished_or_newer_set_is_refused(packed):
    manifest = packed / "dataset.json"
    content = manifest.read_text()
    manifest.write_text(content.replace('"format_version": 1', '"format_version": 2'))
    assert "format_version 2" in refused({"source": "array_record", "path": str(packed)}, "train")
    manifest.write_text(content[:40])
    assert "not valid JSON" in refused({"source": "array_record", "path": str(packed)}, "train")
    manifest.unlink()
    assert "no dataset.json" in refused({"source": "array_record", "path": str(packed)}, "train")


# --- TensorFlow Datasets --------------------------------------------------------------------------


@pytest.fixture
def tfds_dir(tmp_path: Path) -> Path:
    """A set as TFDS prepares it (array_record), written without TensorFlow: data_dir/tiny/1.0.0."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.proto import tf_example_pb2

    version = tmp_path / "tiny" / "1.0.0"
    version.mkdir(parents=True)
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["ant", "bee"]),
        }
    )
    features.save_config(str(version))
    shard = version / "tiny-train.array_record-00000-of-00001"
    writer = array_record_module.ArrayRecordWriter(str(shard), "group_size:1")
    for i in range(5):
        example = tf_example_pb2.Example()
        example.features.feature["image"].bytes_list.value.append(png(i))
        example.features.feature["label"].int64_list.value.append(i % 2)
        writer.write(example.SerializeToString())
    writer.close()
    described = {
        "name": "tiny",
        "version": "1.0.0",
        "fileFormat": "array_record",
        "splits": [
            {
                "name": "train",
                "numBytes": "1",
                "shardLengths": ["5"],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
        ],
    }
    (version / "dataset_info.json").write_text(json.dumps(described))
    return tmp_path


def test_tfds_reads_without_tensorflow(tfds_dir):
    loaded_before = "tensorflow" in sys.modules
    by_name = sources.build_source(
        {"source": "tfds", "name": "tiny", "path": str(tfds_dir)}, "train"
    )
    path = str(tfds_dir / "tiny" / "1.0.0")
    by_path = sources.build_source({"source": "tfds", "name": "", "path": path}, "train")
    for source in (by_name, by_path, pickle.loads(pickle.dumps(by_name))):
        assert len(source) == 5 and source.class_names == ("ant", "bee")
        assert source[3] == {"image": png(3), "label": 1}
    part = sources.build_source({"source": "tfds", "name": "", "path": path}, "train[2:4]")
    assert [part[i]["image"] for i in range(len(part))] == [png(2), png(3)]
    assert ("tensorflow" in sys.modules) == loaded_before


def test_tfds_mistakes_name_the_remedy(tfds_dir):
    data = {"source": "tfds", "name": "tiny", "path": str(tfds_dir)}
    assert "no split 'test'; there are train" in refused(data, "test")
    advice = "python scripts/prepare_data.py tfds cifar10"
    assert advice in refused({**data, "name": "cifar10"}, "train")
    described = tfds_dir / "tiny" / "1.0.0" / "dataset_info.json"
    described.write_text(described.read_text().replace("array_record", "tfrecord"))
    message = refused(data, "train")
    assert "prepared as tfrecord" in message
    assert message.endswith("prepare_data.py tfds tiny --out DIR")
