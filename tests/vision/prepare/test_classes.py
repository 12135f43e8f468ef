"""Classes that only one split has are refused by every packer and source; fewer are named.

The cases are checked against the packers' and sources' own tables: a new entry needs a case here.
"""

import importlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import preparing
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets  # (see tests/data/test_shards.py)
from preparing import NAMES, make_tar, photo, refused, run, write
from small_runs import small_config
from text_sets import reviews_config, write_tokenizer

from widenet_jax.data import labelled, records, sources
from widenet_jax.data.sources import open_data
from widenet_jax.errors import BadInputError
from widenet_jax.specs import task_specs
from widenet_jax.vision.data.packed import ArrayRecord
from widenet_jax.vision.prepare.command import add_commands

Labels = Mapping[str, Sequence[int]]  # of each split
SAME = {"train": [0, 1], "test": [1, 0]}
FEWER = {"train": [0, 1], "test": [1]}
OTHER = {"train": [0, 1], "test": [1, 2]}
UNSEEN = r"split train has no example of 1 of 3 classes \(class2\); "


def make_folder(folder: Path, labels: Labels) -> Path:
    for split, numbers in labels.items():
        for i, label in enumerate(numbers):
            path = folder / split / NAMES[label] / f"{i}.jpg"
            write(path, photo(20 * i + 90 * (split == "test")))
    return folder


# --- Packers --------------------------------------------------------------------------------------


def image_folder(folder: Path, labels: Labels) -> list[object]:
    return ["--input", make_folder(folder, labels)]


def by_split(make: Callable[[Path, list], object], end: str) -> Callable:
    """Makes a file for each split."""

    def arguments(folder: Path, labels: Labels) -> list[object]:
        for split, numbers in labels.items():
            make(folder / f"{split}{end}", list(numbers))
        return [f"--split={split}={folder}/{split}{end}" for split in labels]

    return arguments


def named(label: int | str) -> str:
    return label if isinstance(label, str) else NAMES[label]


def tar(path: Path, labels: Sequence[int | str]) -> None:
    make_tar(path, {f"{named(label)}/{i}.jpg": photo(i) for i, label in enumerate(labels)})


def webdataset(path: Path, labels: Sequence[int | str]) -> None:
    make_tar(path, {
        name: content
        for i, label in enumerate(labels)
        for name, content in ((f"{i}.jpg", photo(i)), (f"{i}.txt", named(label).encode()))
    })  # fmt: skip


def parquet(path: Path, labels: Sequence[int | str]) -> None:
    images = [{"bytes": photo(k)} for k in range(len(labels))]
    preparing.make_parquet(path, [*map(named, labels)], images=images)


def npz(path: Path, labels: Sequence[int | str]) -> None:
    pixels = np.zeros((len(labels), 8, 8), np.uint8)
    np.savez(path, images=pixels, labels=[*map(named, labels)])


def cifar10_binary(folder: Path, labels: Labels) -> list[object]:
    files = {"train": "data_batch_1.bin", "test": "test_batch.bin"}
    content = {
        files[split]: b"".join(map(preparing.cifar_record, labels[split])) for split in labels
    }
    return ["--input", preparing.make_cifar(folder / "c.tar.gz", content)]


def cifar_python(folder: Path, labels: Labels) -> list[object]:
    every = [*labels["train"], *labels["test"]]
    held = preparing.cifar_python(np.zeros((len(every), 32, 32, 3), np.uint8), every, NAMES)
    for name, content in held.items():
        write(folder / "cifar-10-batches-py" / name, preparing.pickled(content))
    return ["--input", folder / "cifar-10-batches-py"]


def tfds(folder: Path, labels: Labels) -> list[object]:
    preparing.make_tfds(folder, {split: [labels[split]] for split in labels}, NAMES[:3])
    return ["tiny", "--data-dir", folder]


PACKERS = {
    "image_folder": image_folder, "cifar10_binary": cifar10_binary, "tfds": tfds,
    "cifar_python": cifar_python, "webdataset": by_split(webdataset, ".tar"),
    "tar": by_split(tar, ".tar"), "npz": by_split(npz, ".npz"),
    "parquet": by_split(parquet, ".parquet"),
}  # fmt: skip


def test_every_packer_has_a_case():
    commands = Mock()
    add_commands(commands)
    assert {call.args[0] for call in commands.add_parser.call_args_list} == PACKERS.keys()


@pytest.fixture
def tensorflow(monkeypatch) -> None:
    """Stands in for TensorFlow, which an array_record set only asks for."""
    real = importlib.import_module
    absent = {"tensorflow": ModuleType("tensorflow")}
    monkeypatch.setattr(
        importlib, "import_module", lambda name, *of: absent.get(name) or real(name, *of)
    )


@pytest.mark.parametrize("packer", PACKERS)
def test_a_packer_refuses_classes_that_training_lacks(packer, tmp_path, capsys, tensorflow):
    for number, labels in enumerate((OTHER, FEWER, SAME)):
        (folder := tmp_path / str(number)).mkdir()
        out = ["--out", tmp_path / "out" / str(number)]
        arguments = [packer, *PACKERS[packer](folder, labels), *out]
        if labels is OTHER:
            assert re.search(UNSEEN, refused(capsys, *arguments))
            assert not (tmp_path / "out").exists()
            continue
        assert run(*arguments) == 0
        told = f"test has no image of {NAMES[0]}" in capsys.readouterr().out
        assert told == (labels is FEWER)


def test_splits_of_tfds_without_labels_are_left_out(tmp_path, capsys, tensorflow):
    arguments = tfds(tmp_path, SAME | {"unlabelled": [-1, -1]})
    assert run("tfds", *arguments, "--out", tmp_path / "out") == 0
    assert "unlabelled: left out, as its examples have no labels" in capsys.readouterr().out
    assert records.read_manifest(str(tmp_path / "out"))["splits"].keys() == SAME.keys()


def test_splits_beside_a_divided_one_are_packed(tmp_path, capsys):
    root = make_folder(tmp_path / "photos", {"train": [0, 1] * 6, "test": [0, 1]})
    write(root / "unlabelled" / "0.jpg", photo(0))  # is none
    flags = ["--input", root, "--eval_fraction=0.4", "--out", tmp_path / "set"]
    assert run("image_folder", *flags) == 0
    assert records.read_manifest(str(tmp_path / "set"))["splits"].keys() == {"train", "val", "test"}


@pytest.mark.parametrize("name", ["tiny:9.9.9", "tiny/large", "nope"])
def test_a_tfds_set_that_is_not_there(name, tmp_path, capsys, tensorflow):
    tfds(tmp_path, SAME)
    told = refused(capsys, "tfds", name, "--data-dir", tmp_path, "--out", tmp_path / "out")
    assert f"tfds {name}: cannot be opened (" in told


@pytest.mark.parametrize("kind", ["Text", "Scalar", "Sequence"])
def test_a_tfds_set_whose_labels_are_no_classes(kind, tmp_path, capsys, tensorflow):
    """Training and packing refuse it before they read an image."""
    features = tensorflow_datasets.features
    label = {
        "Text": features.Text(),
        "Scalar": features.Scalar(np.int64),
        "Sequence": features.Sequence(features.ClassLabel(num_classes=3)),
    }[kind]
    preparing.write_tfds(tmp_path, {"train": []}, {"image": features.Image(), "label": label})
    place = tmp_path / "tiny" / "1.0.0"
    told = "has no image, or no label of a class; choose a TFDS image classification set"
    assert told in refused(capsys, "tfds", "tiny", "--data-dir", tmp_path)
    with pytest.raises(BadInputError, match=f"^TFDS {place}: {told}"):
        sources.build_source({"source": "tfds", "name": "", "path": str(place)}, "train")


def test_labels_that_contradict_class_folders_are_named(tmp_path, capsys):
    """1.jpg of the list is the test split's; it is also a cat's in training."""
    members = {"cat/1.jpg": photo(1), "cat/2.jpg": photo(2), "dog/3.jpg": photo(3)}
    make_tar(tmp_path / "a.tar", members)
    make_tar(tmp_path / "b.tar", {"1.jpg": photo(4)})
    listed = write(tmp_path / "labels.txt", "1.jpg dog\n")
    splits = [f"--split=train={tmp_path}/a.tar", f"--split=test={tmp_path}/b.tar"]
    assert run("tar", *splits, f"--labels={listed}", "--out", tmp_path / "out") == 0
    said = "1 images lie in the folder of another class than --labels names"
    assert said in capsys.readouterr().out


# --- Sources --------------------------------------------------------------------------------------


def folder_config(folder: Path, labels: Labels) -> dict:
    return {"data.source": "image_folder", "data.path": str(make_folder(folder, labels))}


def array_record(folder: Path, labels: Labels) -> dict:
    """As earlier versions packed it, with all names of all splits."""
    splits = {split: [(label, photo(label)) for label in some] for split, some in labels.items()}
    records.write_set(folder / "set", splits, class_names=NAMES[:3], provenance={})
    return {"data.source": "array_record", "data.path": str(folder / "set")}


def tfds_config(folder: Path, labels: Labels) -> dict:
    preparing.make_tfds(folder, {split: [labels[split]] for split in labels}, NAMES[:3])
    return {"data.source": "tfds", "data.name": "tiny", "data.path": str(folder)}


def table(folder: Path, labels: Labels) -> dict:
    write_tokenizer(folder)
    for split, some in labels.items():
        rows = "".join(f"good\t{NAMES[label]}\n" for label in some)
        (folder / f"{split}.tsv").write_text("sentence\tlabel\n" + rows)
    return {}


SOURCES = {
    "image_folder": folder_config, "array_record": array_record, "tfds": tfds_config,
    "table": table, "digits": None,
}  # fmt: skip


def test_every_source_of_classes_has_a_case():
    specs = [spec for spec in task_specs() if "class_names" in spec.info]
    assert {name for spec in specs for name in spec.sources} == SOURCES.keys()


@pytest.mark.parametrize("source", [name for name in SOURCES if SOURCES[name]])
def test_a_source_refuses_classes_that_training_lacks(source, tmp_path):
    for number, labels in enumerate((OTHER, FEWER)):
        (folder := tmp_path / str(number)).mkdir()
        fields = SOURCES[source](folder, labels)
        config = reviews_config(folder) if source == "table" else small_config(**fields)
        config.data.eval_split = "test"
        if labels is OTHER:
            with pytest.raises(BadInputError, match="class2") as error:
                open_data(config)
            assert "\n" not in str(error.value)
        else:
            data = open_data(config)
            assert [data.eval[k]["label"] for k in range(len(data.eval))] == [1]


def test_of_a_large_packed_set_a_sample_tells(tmp_path, monkeypatch):
    """It passes where the splits of the sample have a class in common; `check` reads all.

    Otherwise all is read: of 41 images the sample has four, and not the only one of class 1.
    """
    monkeypatch.setattr(labelled, "LABELS_READ", 4)
    cases = {"apart": [2] * 6, "partly": [0, 2] * 3, "rare": [1] * 6}
    for name, evaluated in cases.items():
        (tmp_path / name).mkdir()
        train = [0] * 40 + [1] if name == "rare" else [0, 1] * 4
        labels = {"train": train, "test": evaluated}
        config = small_config(**array_record(tmp_path / name, labels))
        if name == "apart":
            with pytest.raises(BadInputError, match=r"no example of 1 of 3 classes \(class2\)"):
                open_data(config)
        else:
            assert len(open_data(config).eval) == 6
            assert run("check", tmp_path / name / "set") == (0 if name == "rare" else 2)


def test_names_of_composed_and_decomposed_letters_are_one_class(tmp_path):
    """Systems store é as one character or as two; so do tar archives, .npz and parquet files."""
    forms = {form: unicodedata.normalize(form, "bébé") for form in ("NFC", "NFD")}
    for packer in ("tar", "parquet", "npz", "webdataset"):
        (folder := tmp_path / packer).mkdir()
        labels = {s: [n, "ant"] for s, n in zip(("train", "test"), forms.values(), strict=True)}
        assert run(packer, *PACKERS[packer](folder, labels), "--out", folder / "out") == 0
        for split in labels:
            source = ArrayRecord(str(folder / "out"), split)
            assert source.class_names == ("ant", forms["NFC"])
            assert [source[k]["label"] for k in range(2)] == [1, 0]


# --- Checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["image_folder", "tar", "webdataset", "parquet", "npz", "set", "table"]
)
def test_check_says_the_same(kind, tmp_path, capsys):
    for number, labels in enumerate((OTHER, FEWER, SAME)):
        (folder := tmp_path / str(number)).mkdir()
        make = {"set": array_record, "table": table}.get(kind) or PACKERS[kind]
        make(folder, labels)
        code = run("check", folder / "set" if kind == "set" else folder)
        out = "".join(capsys.readouterr())
        assert code == (2 if labels is OTHER else 0), out
        said = "label 'class2' is none of the 2 classes" if kind == "table" else UNSEEN
        assert bool(re.search(said, out)) == (labels is OTHER)
        assert f"; {int(labels is OTHER)} problems\n" in out  # all else is read, too


def test_files_of_many_images_are_checked_as_such(tmp_path, capsys):
    """Each with an image that cannot be read; a CIFAR-10 archive, too, and its pickles."""
    make_tar(tmp_path / "a.tar.gz", {"ant/1.jpg": photo(1), "bee/2.jpg": b"x"}, "w:gz")
    preparing.make_npz(
        tmp_path / "a.npz", jpeg=np.frombuffer(photo(0)[:-9] + b"x" * 9 + photo(1), np.uint8)
    )
    images = [{"bytes": photo(1)}, {"bytes": b"x"}]
    preparing.make_parquet(tmp_path / "a.parquet", ["ant", "bee"], images=images)
    for name, place in (
        ("a.tar.gz", "a.tar.gz:bee/2.jpg"),
        ("a.npz", "image 0 of a"),
        ("a.parquet", "a.parquet record 1"),
    ):
        assert run("check", tmp_path / name) == 2
        out = capsys.readouterr().out
        assert f"{place}: " in out and f"{tmp_path}/{name}: 2 images; 1 problems" in out, out
    whole = preparing.make_cifar(tmp_path / "cifar-10-binary.tar.gz")
    assert run("check", whole) == 2
    assert "train has no example of 1 of 2 classes (class4)" in "".join(capsys.readouterr())
    pickles = {"cifar-10-batches-py/data_batch_1": b"\x80\x02"}
    write(tmp_path / "cifar-10-batches-py" / "data_batch_1", b"\x80\x02")
    archive = make_tar(tmp_path / "cifar-10-python.tar.gz", pickles, "w:gz")
    for place in (archive, tmp_path / "cifar-10-batches-py"):
        assert "data_batch_1: no pickle of arrays and labels" in refused(capsys, "check", place)


def test_classes_that_differ_only_in_capitals_are_named(tmp_path, capsys):
    """As of two people who named folders: the run, the packer and check say so."""
    for split in ("train", "val"):
        for k, name in enumerate(("Ant", "ant", "bee")):
            path = tmp_path / "photos" / split / name / f"{split}.jpg"
            write(path, photo(20 * k + 90 * (split == "val")))
    said = "'Ant' and 'ant' differ only in spelling: if they mean the same, write them alike"
    data = {"source": "image_folder", "path": str(tmp_path / "photos"), "eval_split": "val"}
    assert sources.build_source(data, "train").note == said
    commands = (["image_folder", "--input"], ["check"])
    for command, out in zip(commands, (["--out", tmp_path / "out"], []), strict=True):
        run(*command, tmp_path / "photos", *out)
        assert said in capsys.readouterr().out


def test_images_that_are_left_out_give_training_no_class(tmp_path, capsys):
    """Unreadable ones, and an inner archive without images."""
    inner = {"ant.tar": {"1.jpg": photo(1)}, "bee.tar": {"1.txt": photo(1)}}
    inner = {k: make_tar(tmp_path / k, members).read_bytes() for k, members in inner.items()}
    evaluated = make_tar(tmp_path / "val", {"ant/2.jpg": photo(2), "bee/2.jpg": photo(3)})
    for members in ({"ant/1.jpg": photo(1), "bee/1.jpg": b"x"}, inner):
        train = make_tar(tmp_path / "train", members)
        splits = [f"--split=train={train}", f"--split=val={evaluated}"]
        error = refused(capsys, "tar", *splits, "--out", tmp_path / "out", "--skip_bad")
        assert "split train has no example of 1 of 2 classes (bee)" in error
        assert not (tmp_path / "out").exists()


def test_check_of_a_set_without_its_shards_names_them(tmp_path, capsys):
    """And says nothing on the classes of the other split."""
    for left, count in ((None, 2), ("test", 1)):
        (tmp_path / str(left)).mkdir()
        folder = Path(array_record(tmp_path / str(left), SAME)["data.path"])
        for shard in folder.glob("*.array_record"):
            if not shard.name.startswith(str(left)):
                shard.unlink()
        assert run("check", folder) == 2
        out = capsys.readouterr().out
        assert out.count("shard is missing") == count and f"; {count} problems" in out


def test_check_passes_what_is_not_for_training(tmp_path, capsys):
    """A folder of test images without labels; a corpus in parquet with a column of bytes."""
    folder = make_folder(tmp_path / "photos", {"train": [0, 1] * 2, "val": [0, 1]})
    write(folder / "test" / "1.jpg", photo(200))
    assert run("check", folder) == 0
    assert f"{folder}/test: no class folders: not for training" in capsys.readouterr().out
    table = pa.table({"text": ["A sentence."], "embedding": [b"123"]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert run("check", tmp_path / "a.parquet") == 0
    assert "1 files, 1 documents" in capsys.readouterr().out
