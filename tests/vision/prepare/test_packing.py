"""Each reader's tiny input is packed; the packed set has the same images and labels."""

import json
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import preparing
import pyarrow as pa
import pytest
from messy_photos import picture, saved, unreadable
from preparing import make_npz, make_parquet, make_tar, photo, refused, run, write

from widenet_jax.data.sources import build_source
from widenet_jax.vision.data import files
from widenet_jax.vision.prepare.packing import split_files


def read_back(path: Path, split: str = "train") -> tuple[tuple[str, ...], list[tuple[int, bytes]]]:
    source = build_source({"source": "array_record", "path": str(path)}, split)
    examples = [source[i] for i in range(len(source))]
    return source.class_names, [(e["label"], e["image"]) for e in examples]


def packed(out: Path, *command: object) -> Path:
    """Runs a packer, which must succeed; returns the set."""
    assert run(*command, "--out", out) == 0
    return out


def make_folder(root: Path, **photos: bytes) -> Path:
    """Writes images, each named SPLIT_CLASS_FILE."""
    for name, data in photos.items():
        write(root / (name.replace("_", "/") + ".jpg"), data)
    return root


# --- Image folders --------------------------------------------------------------------------------


def test_image_folder(tmp_path):
    values = {"train_cat_x": 1, "train_dog_x": 2, "val_cat_x": 3, "val_dog_x": 4}
    root = make_folder(tmp_path / "in", **{name: photo(value) for name, value in values.items()})
    out = packed(tmp_path / "out", "image_folder", "--input", root)
    assert read_back(out) == (("cat", "dog"), [(0, photo(1)), (1, photo(2))])
    assert read_back(out, "val")[1] == [(0, photo(3)), (1, photo(4))]


def test_damaged_files_are_packed_and_named(tmp_path, capsys):
    """All that `check` finds: cut files of every kind, and a PNG with a flipped byte of pixels."""
    flipped = bytearray(saved(picture(), "PNG"))
    flipped[len(flipped) // 2] ^= 1
    bad = [*unreadable().values(), bytes(flipped)]
    photos = {f"train_cat_{k}": data for k, data in enumerate([photo(0), photo(1), *bad])}
    folder = make_folder(tmp_path / "in", **photos)
    packing = ["image_folder", "--input", folder]
    packed(tmp_path / "out", *packing)
    warning = capsys.readouterr().err
    first = f"{folder}/train/cat/10.jpg: damaged or truncated, cannot be decoded"
    assert f"cannot be read: {first}" in warning
    assert f"and {len(bad) - 5} more" in warning
    assert read_back(tmp_path / "out")[1][2] == (0, bad[-1])
    packed(tmp_path / "out", *packing, "--overwrite", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["images"] == {"train": 11} and len(report["damaged"]) == len(bad)
    assert run("check", folder) == 2
    assert f"{len(bad) + 1} problems" in capsys.readouterr().err  # and a class alone


def test_image_folder_with_other_classes_in_one_split(tmp_path, capsys):
    """A class may be missing where images are evaluated, and not where they train."""
    photos = dict.fromkeys(("train_cat_x", "train_dog_x", "val_dog_x"), photo(1))
    packing = ["image_folder", "--input", make_folder(tmp_path / "in", **photos), "--out"]
    assert run(*packing, tmp_path / "out") == 0
    assert "val has no image of cat" in capsys.readouterr().out
    assert read_back(tmp_path / "out", "val") == (("cat", "dog"), [(1, photo(1))])
    make_folder(tmp_path / "in", val_eel_x=photo(1))
    message = refused(capsys, *packing, tmp_path / "other")
    assert "train has no example of 1 of 3 classes (eel)" in message
    assert not (tmp_path / "other").exists()


# --- Files that hold many images ------------------------------------------------------------------


def test_npz_joins_files_of_a_split(tmp_path):
    for name, values in {"a": [0, 1], "b": [2], "c": [5]}.items():
        make_npz(tmp_path / f"{name}.npz", values)
    splits = [f"train={tmp_path}/a.npz,{tmp_path}/b.npz", f"test={tmp_path}/c*.npz"]
    out = packed(tmp_path / "out", "npz", *(f"--split={split}" for split in splits))
    expected = ("even", "odd"), [(0, photo(0)), (1, photo(1)), (0, photo(2))]
    assert read_back(out) == expected and read_back(out, "test")[1] == [(1, photo(5))]
    provenance = json.loads((out / "dataset.json").read_text())["provenance"]
    assert provenance == {"converter": "npz", "input": splits}


@pytest.mark.parametrize("names", [["cat", "dog"], None])
def test_npz_of_pixels(tmp_path, names):
    """They come back to the bit, grey as three equal channels; labels name classes by default."""
    rng = np.random.default_rng(0)
    for name, shape in {"a": (2, 5, 4, 3), "b": (1, 6, 4), "c": (1, 6, 4, 1)}.items():
        pixels = rng.integers(0, 256, shape, np.uint8)
        more = {"class_names": names} if names else {}
        np.savez(tmp_path / name, images=pixels, labels=np.arange(shape[0]), **more)
    splits = [f"--split=train={tmp_path}/a.npz", f"--split=test={tmp_path}/b.npz,{tmp_path}/c.npz"]
    out = packed(tmp_path / "out", "npz", *splits)
    classes, examples = read_back(out)
    assert classes == tuple(names or ["0", "1"])
    for label, data in examples:
        expected = np.load(tmp_path / "a.npz")["images"][label]
        np.testing.assert_array_equal(files.decode(data, ""), expected)
    for (_, data), name in zip(read_back(out, "test")[1], "bc", strict=False):
        grey = np.load(tmp_path / f"{name}.npz")["images"].reshape(6, 4)
        np.testing.assert_array_equal(files.decode(data, ""), np.stack([grey] * 3, axis=-1))


@pytest.mark.parametrize("names", [["cat", "dog", "elk"], None])
def test_parquet(tmp_path, names):
    for name, labels in {"train-0": [2, 0], "train-1": [1], "test": [1]}.items():
        make_parquet(tmp_path / f"{name}.parquet", labels, names)
    splits = [f"--split={name}={tmp_path}/{name}*.parquet" for name in ("train", "test")]
    out = packed(tmp_path / "out", "parquet", *splits)
    expected = tuple(names or ["0", "1", "2"]), [(2, photo(20)), (0, photo(0)), (1, photo(10))]
    assert read_back(out) == expected and read_back(out, "test")[1] == [(1, photo(10))]


@pytest.mark.parametrize("kind", ["struct", "bytes"])
def test_parquet_of_hugging_faces_cifar10(tmp_path, capsys, kind):
    """Its images are in a column `img`."""
    labels, images = [1, 0], [photo(7), photo(8)]
    stored = images if kind == "bytes" else [{"bytes": one, "path": "x.png"} for one in images]
    path = make_parquet(tmp_path / "train.parquet", labels, ["cat", "dog"], stored, ["img"])
    out = packed(tmp_path / "out", "parquet", f"--split=train={path}")
    assert read_back(out) == (("cat", "dog"), [*zip(labels, images, strict=True)])
    assert run("check", path) == 0 and "2 images; 0 problems" in capsys.readouterr().out
    both = make_parquet(tmp_path / "both.parquet", labels, None, stored, ["image", "img"])
    packing = ["parquet", f"--split=train={both}", "--out", tmp_path / "2"]
    needs = "needs one column 'image' or 'img'; there are image, img, label (choose with --image-"
    for command in (packing, ["check", both]):
        assert f"{both}: {needs}column)" in "".join((run(*command), capsys.readouterr())[1])
    assert run(*packing, "--image-column=img") == 0


def test_labels_of_text_name_the_classes_in_sorted_order(tmp_path, capsys):
    """A column of texts, one of pandas' categories, and an array; another file may lack a class."""
    pixels, images = np.zeros((2, 4, 4), np.uint8), [{"bytes": photo(k)} for k in range(2)]
    make_parquet(tmp_path / "a", ["zoo", "ant"], images=images)
    make_parquet(tmp_path / "b", pa.array(["bee", "bee"]).dictionary_encode(), images=images)
    make_parquet(tmp_path / "c", [0, 1])
    np.savez(tmp_path / "a.npz", images=pixels, labels=["zoo", "ant"])
    np.savez(tmp_path / "b.npz", images=pixels, labels=["bee", "bee"])
    for command, end in (("parquet", ""), ("npz", ".npz")):
        splits = [f"--split={name}={tmp_path}/{name}{end}" for name in ("a", "b")]
        out = packed(tmp_path / command, command, *splits)
        classes, examples = read_back(out, "a")
        assert classes == ("ant", "bee", "zoo") and [label for label, _ in examples] == [2, 0]
        assert [label for label, _ in read_back(out, "b")[1]] == [1, 1]
    mixed = ["parquet", f"--split=train={tmp_path}/a,{tmp_path}/c", "--out", tmp_path / "d"]
    assert "text in some files and integers in others" in refused(capsys, *mixed)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_of_class_folders(tmp_path, capsys, mode):
    members = {"set/zoo/1.jpg": photo(1), "set/ant/2.JPEG": photo(2), "set/readme.txt": b"x"}
    make_tar(tmp_path / "a.tar", members | {"set/zoo/3.png": b"", "set/zoo/4.HEIC": b"x"}, mode)
    out = packed(tmp_path / "out", "tar", f"--split=train={tmp_path}/a.tar", "--skip_bad")
    assert read_back(out) == (("ant", "zoo"), [(1, photo(1)), (0, photo(2))])
    report, warning = capsys.readouterr()
    assert report.endswith("2 files left out (.heic 1, .txt 1)\n")
    assert f"{tmp_path}/a.tar:set/zoo/3.png: empty file" in warning


def test_tar_of_several_splits_is_told(tmp_path, capsys):
    """An archive with train/ and test/ is one split, and one archive cannot be two."""
    members = {f"{s}/{c}/0.jpg": photo(0) for s in ("train", "test") for c in ("cat", "dog")}
    make_tar(tmp_path / "d.tar", members)
    flag = f"train={tmp_path}/d.tar"
    packed(tmp_path / "out", "tar", f"--split={flag}")
    told = f"{tmp_path}/d.tar: classes lie in test, train; each split has the images of all"
    assert told in capsys.readouterr().out
    both = f"train={tmp_path}/d.tar,{tmp_path}/*.tar"
    assert split_files([both]) == {"train": [f"{tmp_path}/d.tar"]}
    assert f"note: given twice, read once: {tmp_path}/d.tar\n" in capsys.readouterr().err
    twice = ["--split", flag, "--split", flag.replace("train", "test"), "--out", tmp_path / "b"]
    assert f"{tmp_path}/d.tar is in two splits" in refused(capsys, "tar", *twice)


def test_tar_of_one_archive_a_class_and_a_flat_one_with_labels(tmp_path, capsys):
    photos = {"n02_1.JPEG": photo(21), "n02_2.HEIC": b"x"}
    inner = {
        "n02.tar": make_tar(tmp_path / "2", photos).read_bytes(),
        "n01.tar": make_tar(tmp_path / "1", {"n01_9.JPEG": photo(11)}).read_bytes(),
    }
    make_tar(tmp_path / "train.tar", inner)
    make_tar(tmp_path / "val.tar", {"val/V 1.JPEG": photo(31), "V_2.JPEG": photo(32)})
    labels = write(
        tmp_path / "labels.txt", "V 1.JPEG n02\nV_2.JPEG n01\nV_2.JPEG  n01\n\nfile class\n"
    )
    splits = [f"--split={name}={tmp_path}/{name}.tar" for name in ("train", "val")]
    out = packed(tmp_path / "out", "tar", *splits, "--labels", labels)
    told = capsys.readouterr().out
    assert "1 file left out (.heic 1)" in told
    assert told.count("1 lines of --labels name no image, such as 'file'") == 1
    assert read_back(out) == (("n01", "n02"), [(1, photo(21)), (0, photo(11))])
    assert read_back(out, "val")[1] == [(1, photo(31)), (0, photo(32))]


@pytest.mark.parametrize("kind", ["cls", "json", "txt"])
def test_webdataset(tmp_path, capsys, kind):
    """Members of one name up to its first dot are a sample; the label may come before the image."""
    named = kind == "txt"
    labels = {0: "cat", 1: "a zebra", 2: "cat"} if named else {0: 3, 1: 0, 2: 3}
    image = {0: saved(picture(0), "PNG"), 1: saved(picture(1), "WEBP"), 2: photo(2)}
    for shard, numbers in enumerate(([0, 1], [2])):
        members = {"README": b"x"} if shard else {}
        for n in numbers:
            end, text = ("png", "WEBP", "jpeg")[n], json.dumps({"label": labels[n], "width": 4})
            label = {f"v1.0/00{n}.{kind}": (text if kind == "json" else f"{labels[n]}\n").encode()}
            pixels = {f"v1.0/00{n}.{end}": image[n], f"v1.0/00{n}.seg.png": b"x"}
            members |= label | pixels if n else pixels | label
            members |= {f"v1.0/00{n}.txt": b"a caption"} if kind == "cls" else {}
        make_tar(tmp_path / f"train-00{shard}.tar", members)
    shards = tmp_path / "train-{000..001}.tar"
    both = [f"{tmp_path}/train-00{n}.tar" for n in (1, 0)]
    assert split_files([f"a={tmp_path}/train-{{001..000}}.tar"]) == {"a": both}
    out = packed(tmp_path / "out", "webdataset", f"--split=train={shards}")
    captions = "seg.png 3, .txt 3, no suffix 1" if kind == "cls" else "seg.png 3, no suffix 1"
    assert f"files left out (.{captions})" in capsys.readouterr().out
    classes, examples = read_back(out)
    assert classes == (("a zebra", "cat") if named else ("0", "1", "2", "3"))
    expected = [classes.index(str(labels[n])) for n in labels]
    assert examples == [*zip(expected, image.values(), strict=True)]
    for number, count in enumerate((2, 1)):
        shard = tmp_path / f"train-00{number}.tar"
        assert run("check", shard) == 0
        assert f"{shard}: {count} images; 0 problems" in capsys.readouterr().out
    if kind == "cls":  # all images would be of a class v1.0
        line = refused(capsys, "tar", f"--split=train={shards}", "--out", tmp_path / "other")
        assert "train-000.tar:v1.0/000.cls: the commands webdataset, cifar_python read" in line


def test_a_field_that_is_named_has_the_labels_of_webdataset(tmp_path, capsys):
    """Whatever stands in .cls; an image without a .json is refused."""
    members = {}
    for n, name in enumerate(("cat", "ant")):
        fields = json.dumps({"label": 1 - n, "animal": name}).encode()
        members |= {f"{n}.jpg": photo(n), f"{n}.cls": b"7", f"{n}.json": fields}
    make_tar(tmp_path / "train.tar", members)
    flags = f"--split=train={tmp_path}/train.tar", "--label-column"
    assert read_back(packed(tmp_path / "a", "webdataset", *flags, "animal"))[0] == ("ant", "cat")
    own = read_back(packed(tmp_path / "b", "webdataset", *flags, "label"))[1]
    assert own == [(1, photo(0)), (0, photo(1))]
    assert len(read_back(packed(tmp_path / "c", "webdataset", flags[0]))[0]) == 8  # 0 to 7
    make_tar(tmp_path / "train.tar", members | {"2.jpg": photo(2), "2.cls": b"7"})
    line = refused(capsys, "webdataset", *flags, "animal", "--out", tmp_path / "d")
    assert "2.jpg: has no label: no .json of its name follows" in line


def test_cifar10_binary_is_exact(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    labels = [9, 0, 3, 3, 0]
    rows = [preparing.cifar_record(*pair) for pair in zip(labels, pixels, strict=True)]
    batches = {"data_batch_1.bin": rows[0] + rows[1], "data_batch_2.bin": rows[2]}
    batches["test_batch.bin"] = rows[3] + rows[4]
    archive = preparing.make_cifar(tmp_path / "c.tar.gz", batches)
    out = packed(tmp_path / "out", "cifar10_binary", "--input", archive)
    (names, train), (_, test) = read_back(out), read_back(out, "test")
    assert names == tuple(preparing.NAMES) and [label for label, _ in train + test] == labels
    decoded = np.stack([files.decode(image, "") for _, image in train + test])
    np.testing.assert_array_equal(decoded, pixels)


@pytest.mark.parametrize("encode", [preparing.pickled, partial(pickle.dumps, protocol=4)])
@pytest.mark.parametrize("key", [b"labels", b"fine_labels"])
def test_cifar_for_python_is_exact(tmp_path, capsys, key, encode):
    """An archive and its folder, as Python 2 pickled them, and as Python 3 does."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    labels, names = [2, 0, 1, 1, 2, 0], ["ant", "bee", "crab"]
    held = preparing.cifar_python(pixels, labels, names, key)
    assert all(repr(pickle.loads(encode(v), encoding="bytes")) == repr(v) for v in held.values())
    folder = "cifar-10-batches-py" if key == b"labels" else "cifar-100-python"
    members = {f"{folder}/{name}": encode(content) for name, content in held.items()}
    members |= {f"{folder}/readme.html": b"<html>"}
    archive = make_tar(tmp_path / "cifar-100-python.tar.gz", members, "w:gz")
    for name, content in members.items():
        write(tmp_path / name, content)
    for place in (archive, tmp_path / folder):
        out = packed(tmp_path / f"{place.name} packed", "cifar_python", "--input", place)
        (classes, train), (_, test) = read_back(out), read_back(out, "test")
        assert classes == tuple(names) and [label for label, _ in train + test] == labels
        decoded = np.stack([files.decode(image, "") for _, image in train + test])
        np.testing.assert_array_equal(decoded, pixels)
        capsys.readouterr()
        assert run("check", place) == 0 and run("check", out) == 0
        assert f"{place}: 6 images; 0 problems" in capsys.readouterr().out


# --- Writing, and the command ---------------------------------------------------------------------


def test_overwriting_is_asked_for_and_atomic(tmp_path, capsys):
    make_npz(tmp_path / "a.npz", [0, 1])
    make_npz(tmp_path / "b.npz", [3])
    make_npz(tmp_path / "bad.npz", [0, 1], labels=np.array([0, 7]))
    out = tmp_path / "out"

    def options(name: str, place: Path = out) -> list[object]:
        return ["npz", "--split", f"train={tmp_path}/{name}", "--out", place]

    assert run(*options("a.npz")) == 0
    assert "pass --overwrite" in refused(capsys, *options("b.npz"))
    refused(capsys, *options("bad.npz"), "--overwrite")
    assert len(read_back(out)[1]) == 2  # a failed attempt leaves the old set intact
    assert not list(out.glob(".*"))
    assert run(*options("b.npz"), "--overwrite") == 0
    assert read_back(out)[1] == [(1, photo(3))] and len(list(out.iterdir())) == 2
    (tmp_path / "home").mkdir()
    thesis = write(tmp_path / "home" / "thesis.txt", "mine")
    message = refused(capsys, *options("a.npz", tmp_path / "home"), "--overwrite")
    assert "holds other files (thesis.txt" in message and thesis.read_text() == "mine"
    assert "written to a local --out" in refused(capsys, *options("a.npz", "gs://bucket/set"))
