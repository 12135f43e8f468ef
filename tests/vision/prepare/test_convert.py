"""Each converter packs a tiny input; the packed set has the same images and labels."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from preparing import (
    NAMES,
    cifar_record,
    make_cifar,
    make_npz,
    make_parquet,
    make_tar,
    photo,
    refused,
    run,
)

from widenet_jax.data import records
from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadInputError
from widenet_jax.vision.data import files
from widenet_jax.vision.prepare import convert


def read_back(path: Path, split: str) -> tuple[tuple[str, ...], list[tuple[int, bytes]]]:
    source = build_source({"source": "array_record", "path": str(path)}, split)
    examples = [source[i] for i in range(len(source))]
    return source.class_names, [(e["label"], e["image"]) for e in examples]


# --- Image folders and .npz -----------------------------------------------------------------------


def test_image_folder(tmp_path):
    for split, values in {"train": (1, 2), "val": (3, 4)}.items():
        for value, name in zip(values, ("cat", "dog"), strict=True):
            (tmp_path / "in" / split / name).mkdir(parents=True)
            (tmp_path / "in" / split / name / "x.jpg").write_bytes(photo(value))
    assert run("image_folder", "--input", tmp_path / "in", "--out", tmp_path / "out") == 0
    assert read_back(tmp_path / "out", "train") == (("cat", "dog"), [(0, photo(1)), (1, photo(2))])
    assert read_back(tmp_path / "out", "val")[1] == [(0, photo(3)), (1, photo(4))]


def test_damaged_files_are_packed_and_named(tmp_path, capsys):
    """Seven of nine files are truncated; the message names five."""
    (tmp_path / "in/train/cat").mkdir(parents=True)
    for number in range(9):
        data = photo(number) if number < 2 else photo(number)[:-2]
        (tmp_path / f"in/train/cat/{number}.jpg").write_bytes(data)
    assert run("image_folder", "--input", tmp_path / "in", "--out", tmp_path / "out") == 0
    said = capsys.readouterr().err
    assert "cannot be read: image 2 of train: truncated JPEG (no end-of-image marker); " in said
    assert "image 6 of train" in said and "image 7" not in said and "and 2 more" in said
    assert read_back(tmp_path / "out", "train")[1][2] == (0, photo(2)[:-2])
    again = ["--input", tmp_path / "in", "--out", tmp_path / "out", "--overwrite", "--json"]
    assert run("image_folder", *again) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["images"] == {"train": 9} and said["classes"] == 1 and len(said["damaged"]) == 7


def test_image_folder_with_other_classes_in_one_split(tmp_path, capsys):
    """A class may be missing where images are evaluated, and not where they train."""
    for place in ("train/cat", "train/dog", "val/dog"):
        (tmp_path / "in" / place).mkdir(parents=True)
        (tmp_path / "in" / place / "x.jpg").write_bytes(photo(1))
    packing = ["image_folder", "--input", tmp_path / "in", "--out"]
    assert run(*packing, tmp_path / "out") == 0
    assert "val has no image of cat" in capsys.readouterr().out
    assert read_back(tmp_path / "out", "val") == (("cat", "dog"), [(1, photo(1))])
    (tmp_path / "in/val/eel").mkdir()
    (tmp_path / "in/val/eel/x.jpg").write_bytes(photo(1))
    message = refused(capsys, *packing, tmp_path / "other")
    assert "split train has no image of eel" in message
    assert not (tmp_path / "other").exists()


def test_npz_joins_files_of_a_split(tmp_path):
    make_npz(tmp_path / "a.npz", [0, 1])
    make_npz(tmp_path / "b.npz", [2])
    make_npz(tmp_path / "c.npz", [5])
    splits = [f"train={tmp_path}/a.npz,{tmp_path}/b.npz", f"test={tmp_path}/c*.npz"]
    options = ["--split", splits[0], "--split", splits[1], "--out", tmp_path / "out"]
    assert run("npz", *options) == 0
    names, examples = read_back(tmp_path / "out", "train")
    assert names == ("even", "odd")
    assert examples == [(0, photo(0)), (1, photo(1)), (0, photo(2))]
    assert read_back(tmp_path / "out", "test")[1] == [(1, photo(5))]
    provenance = json.loads((tmp_path / "out" / "dataset.json").read_text())["provenance"]
    assert provenance == {"converter": "npz", "input": splits}


# --- Tar archives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_of_class_folders(tmp_path, mode):
    members = {"set/zoo/1.jpg": photo(1), "set/ant/2.JPEG": photo(2), "set/readme.txt": b"x"}
    make_tar(tmp_path / "a.tar", members, mode)
    assert run("tar", "--split", f"train={tmp_path}/a.tar", "--out", tmp_path / "out") == 0
    expected = (("ant", "zoo"), [(1, photo(1)), (0, photo(2))])
    assert read_back(tmp_path / "out", "train") == expected


def test_tar_of_one_archive_a_class_and_a_flat_one_with_labels(tmp_path):
    inner = {
        "n02.tar": make_tar(tmp_path / "2", {"n02_1.JPEG": photo(21)}).read_bytes(),
        "n01.tar": make_tar(tmp_path / "1", {"n01_9.JPEG": photo(11)}).read_bytes(),
    }
    make_tar(tmp_path / "train.tar", inner)
    make_tar(tmp_path / "val.tar", {"V_1.JPEG": photo(31), "V_2.JPEG": photo(32)})
    (tmp_path / "labels.txt").write_text("V_1.JPEG n02\nV_2.JPEG n01\n")
    options = ["--split", f"train={tmp_path}/train.tar", "--split", f"val={tmp_path}/val.tar"]
    assert run("tar", *options, "--labels", tmp_path / "labels.txt", "--out", tmp_path / "o") == 0
    assert read_back(tmp_path / "o", "train") == (("n01", "n02"), [(1, photo(21)), (0, photo(11))])
    assert read_back(tmp_path / "o", "val")[1] == [(1, photo(31)), (0, photo(32))]


def test_tar_without_labels_is_refused(tmp_path, capsys):
    make_tar(tmp_path / "val.tar", {"V_1.JPEG": photo(1)})
    split = f"val={tmp_path}/val.tar"
    message = refused(capsys, "tar", "--split", split, "--out", tmp_path / "o")
    assert "V_1.JPEG: lies in no class folder and --labels does not list it" in message


# --- CIFAR-10 and parquet -------------------------------------------------------------------------


def test_cifar10_binary_is_exact(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    make_cifar(
        tmp_path / "c.tar.gz",
        {
            "data_batch_2.bin": cifar_record(3, pixels[2]),
            "data_batch_1.bin": cifar_record(9, pixels[0]) + cifar_record(0, pixels[1]),
            "test_batch.bin": cifar_record(1, pixels[3]) + cifar_record(2, pixels[4]),
        },
    )
    out = tmp_path / "out"
    assert run("cifar10_binary", "--input", tmp_path / "c.tar.gz", "--out", out) == 0
    found = {split: read_back(out, split) for split in ("train", "test")}
    assert found["train"][0] == tuple(NAMES)
    assert [label for label, _ in found["train"][1]] == [9, 0, 3]
    assert [label for label, _ in found["test"][1]] == [1, 2]
    decoded = [files.decode(e, "") for split in ("train", "test") for _, e in found[split][1]]
    np.testing.assert_array_equal(np.stack(decoded), pixels)


def test_cifar10_python_archive_is_refused(tmp_path, capsys):
    make_tar(tmp_path / "c.tar.gz", {"cifar-10-batches-py/data_batch_1": b"\x80\x02"}, "w:gz")
    message = refused(
        capsys, "cifar10_binary", "--input", tmp_path / "c.tar.gz", "--out", tmp_path / "out"
    )
    assert "not the Python version" in message


@pytest.mark.parametrize("names", [["cat", "dog", "elk"], None])
def test_parquet(tmp_path, names):
    make_parquet(tmp_path / "train-0.parquet", [2, 0], names)
    make_parquet(tmp_path / "train-1.parquet", [1], names)
    make_parquet(tmp_path / "test.parquet", [1], names)
    options = ["--split", f"train={tmp_path}/train-*.parquet"]
    options += ["--split", f"test={tmp_path}/test.parquet", "--out", tmp_path / "out"]
    assert run("parquet", *options) == 0
    found, examples = read_back(tmp_path / "out", "train")
    assert found == tuple(names or ["0", "1", "2"])
    assert examples == [(2, photo(20)), (0, photo(0)), (1, photo(10))]
    assert read_back(tmp_path / "out", "test")[1] == [(1, photo(10))]


def test_parquet_names_the_columns_there_are(tmp_path, capsys):
    make_parquet(tmp_path / "a.parquet", [0], None)
    split = f"train={tmp_path}/a.parquet"
    options = ["--split", split, "--image-column", "img", "--out", tmp_path / "out"]
    message = refused(capsys, "parquet", *options)
    assert "no column 'img'; there are image, label (choose with --image-column)" in message


# --- Writing, and the command ---------------------------------------------------------------------


def test_overwriting_is_asked_for_and_atomic(tmp_path, capsys):
    make_npz(tmp_path / "a.npz", [0, 1])
    make_npz(tmp_path / "b.npz", [3])
    make_npz(tmp_path / "bad.npz", [0, 1], labels=np.array([0, 7]))
    out = tmp_path / "out"

    def options(name: str) -> list[object]:
        return ["npz", "--split", f"train={tmp_path}/{name}", "--out", out]

    assert run(*options("a.npz")) == 0
    assert "pass --overwrite" in refused(capsys, *options("b.npz"))
    refused(capsys, *options("bad.npz"), "--overwrite")
    assert len(read_back(out, "train")[1]) == 2  # a failed attempt leaves the old set intact
    assert run(*options("b.npz"), "--overwrite") == 0
    assert read_back(out, "train")[1] == [(1, photo(3))]
    assert len(list(out.iterdir())) == 2


def test_a_directory_of_other_things_is_left_alone(tmp_path, capsys):
    make_npz(tmp_path / "a.npz", [0])
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("mine")
    options = ["--split", f"train={tmp_path}/a.npz", "--out", tmp_path / "home", "--overwrite"]
    assert "holds other files (thesis.txt" in refused(capsys, "npz", *options)
    assert (tmp_path / "home" / "thesis.txt").read_text() == "mine"


def test_an_empty_split_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="split train: no images found"):
        records.write_set(tmp_path / "out", {"train": []}, class_names=["a"], provenance={})


@pytest.mark.parametrize("split", ["train", "=a.npz", "train=nowhere.npz"])
def test_split_options_are_checked(tmp_path, capsys, split):
    assert f"--split {split}: " in refused(capsys, "npz", "--split", split, "--out", tmp_path)


def test_tfds_says_it_needs_tensorflow(tmp_path, capsys):
    if importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is installed")
    assert "needs the tensorflow package" in refused(capsys, "tfds", "cifar10", "--out", tmp_path)


def test_class_names_must_agree():
    assert convert.same_classes({"a": ("x", "y"), "b": ("x", "y")}) == ("x", "y")
    with pytest.raises(BadInputError, match="different classes"):
        convert.same_classes({"a": ("x", "y"), "b": ("y", "x")})
