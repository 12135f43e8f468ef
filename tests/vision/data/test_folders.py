"""Image folders: classes, files that are named, and splits by file name."""

import errno
import os
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from image_sources import AUGMENT, png, refused
from messy_photos import as_pillow_reads, left_out, readable, unreadable, write, write_folder
from ml_collections import ConfigDict

from widenet_jax.data import labelled, records
from widenet_jax.data.labelled import missing_classes
from widenet_jax.data.sources import build_source, open_data, overview
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.vision.data import files
from widenet_jax.vision.data.folders import Holdout
from widenet_jax.vision.data.packed import ArrayRecord


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for value, name in enumerate(("zebra", "ant")):
            files = {"b.JPEG": png(10 * value), "a.png": png(10 * value + 1)}
            files |= {"notes.txt": b"not an image", "._a.png": b"left by a file manager"}
            for file, content in files.items():
                write(tmp_path / split / name / file, content)
    return tmp_path


def test_image_folder_reads_sorted_classes(folder):
    source = build_source({"source": "image_folder", "path": str(folder)}, "val")
    assert source.class_names == ("ant", "zebra")
    assert [source[i]["label"] for i in range(len(source))] == [0, 0, 1, 1]
    values = [int(files.decode(source[i]["image"], "")[0, 0, 0]) for i in range(4)]
    assert values == [11, 10, 1, 0]
    assert source.describe(2) == f"{folder}/val/zebra/a.png"


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.symlink_to("gone.png"), "link to a file that is not"),
        (lambda path: path.symlink_to(path.name), "Too many levels"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (lambda path: (path.touch(), os.truncate(path, 1 << 36)), "68,719,476,736 bytes, more"),
    ],
)
def test_an_unreadable_file_is_a_bad_example(folder, damage, found):
    source = build_source({"source": "image_folder", "path": str(folder)}, "val")
    (folder / "val" / "ant" / "a.png").unlink()
    damage(folder / "val" / "ant" / "a.png")
    with pytest.raises(BadExampleError, match=rf"val/ant/a\.png: {found}") as error:
        source[0]
    assert "\n" not in str(error.value)


def test_only_what_lies_with_the_file_is_a_bad_example(folder, monkeypatch):
    source = build_source({"source": "image_folder", "path": str(folder)}, "val")
    for number, kind in ((errno.EIO, BadExampleError), (errno.EMFILE, BadInputError)):

        def refuse(path: str, flags: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number), path)

        with monkeypatch.context() as patch, pytest.raises(BadInputError) as error:
            patch.setattr(os, "open", refuse)
            source[0]
        assert type(error.value) is kind and os.strerror(number) in str(error.value)
    (folder / "val").rename(folder / "unmounted")
    with pytest.raises(BadInputError, match=r"val/ant: class folder is gone") as error:
        source[0]
    assert type(error.value) is BadInputError


# --- Both splits ----------------------------------------------------------------------------------


DATA = {"source": "image_folder", "eval_fraction": 0.0, "image_size": 8, "on_bad_example": "skip"}
DATA |= {"train_split": "train", "eval_split": "val"}


def config_of(path: Path, **data: object) -> ConfigDict:
    """Returns what `open_data` reads of a config."""
    sections = {"data": {**DATA, "path": str(path), **data}, "task": {"name": "classification"}}
    return ConfigDict({**sections, "augment": AUGMENT, "batch_size": 4})


def test_a_class_may_be_missing_in_evaluation_and_is_named(folder):
    for image in (folder / "val" / "ant").glob("*.*"):
        image.unlink()
    data = open_data(config_of(folder))
    assert data.eval.class_names == data.train.class_names == ("ant", "zebra")
    assert [data.eval[i]["label"] for i in range(2)] == [1, 1]
    splits = (("train", data.train), ("val", data.eval))
    assert data.data_info.largest_share == 1.0  # of evaluation
    assert overview(splits, "images") == (
        "train: 4 images, 2 classes; val: 2 images, none of ant; "
        "6 files left out (.txt 3, hidden 3)"
    )
    shutil.rmtree(folder / "val" / "ant")  # the same without the folder
    assert missing_classes(open_data(config_of(folder)).eval) == ("ant",)


def test_classes_are_counted_where_the_task_weights_them(folder):
    (folder / "train" / "ant" / "c.png").write_bytes(png(1))
    config = config_of(folder)
    assert open_data(config).data_info.class_counts == ()
    config.task.class_weights = "balanced"
    assert open_data(config).data_info.class_counts == (3, 2)
    examples = [(k, png(k)) for k in (1, 0, 1)]
    records.write_set(folder / "set", {"train": examples}, class_names="abc", provenance={})
    packed = ArrayRecord(str(folder / "set"), "train")
    assert labelled.class_counts(packed) == (1, 2, 0)
    assert labelled.largest_share(packed) is None  # only reading all of it would tell


def test_a_slice_of_a_folder_takes_its_share_of_every_class(folder):
    half = build_source({"source": "image_folder", "path": str(folder)}, "train[50%:]")
    names = [half.describe(i).split("/")[-1] for i in range(2)]
    assert names == ["b.JPEG", "b.JPEG"]
    assert [half[i]["label"] for i in range(2)] == [0, 1] and missing_classes(half) == ()


def test_a_run_reads_a_slice_and_a_sum_of_a_folder(folder):
    """Classes are matched by name: of val alone they are bee, zebra."""
    assert len(open_data(config_of(folder, train_split="train[:50%]")).train) == 2
    shutil.move(folder / "val" / "ant", folder / "val" / "bee")
    shutil.copytree(folder / "train", folder / "test")
    data = open_data(config_of(folder, train_split="train[:50%]+val", eval_split="train[50%:]"))
    assert data.train.class_names == ("ant", "bee", "zebra") == data.eval.class_names
    assert [data.train[i]["label"] for i in range(6)] == [0, 2, 1, 1, 2, 2]
    assert data.train.record_labels.tolist() == [0, 2, 1, 1, 2, 2]
    assert [data.train.describe(i)[len(f"{folder}/") :] for i in (1, 2, 5)] == [
        "train/zebra/a.png", "val/bee/a.png", "val/zebra/b.JPEG",
    ]  # fmt: skip
    assert [data.eval.describe(i)[-6:] for i in range(2)] == ["b.JPEG"] * 2
    line = overview((("train[:50%]+val", data.train), ("train[50%:]", data.eval)), "images")
    told = "train[:50%]+val: 6 images, 3 classes; train[50%:]: 2 images, none of bee; "
    assert line.startswith(told)
    twice = (("train+val", data.train), ("val", build_source(config_of(folder).data, "val")))
    assert "val: 4 images, 4 of them in train+val too" in overview(twice, "images")


def test_a_sum_and_a_part_that_is_held_out(folder, flat):
    """One split is divided; of several it would not be clear which."""
    whole = parts(flat)
    for train, size in (("train+val", 400), ("val+train", 400), ("train+train[:50%]", None)):
        data = config_of(flat, eval_fraction=0.1, train_split=train).data
        sources = [build_source(data, split) for split in (train, "val")]
        assert {sources[1].describe(i) for i in range(len(sources[1]))} == whole[1]
        assert len(sources[0]) == (size or len(sources[0]))
    data = config_of(folder, eval_fraction=0.1, train_split="train+val").data
    assert len(build_source(data, "train+val")) == 8  # val is there
    data.eval_split = "test"
    line = refused(data, "train+val")
    told = (
        "cannot be held out of several splits; add --config.data.eval_fraction=0, and take slices"
    )
    assert line == f"config.data.eval_split=test: {told}"


# --- A folder without splits ----------------------------------------------------------------------


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    for name in ("ant", "zebra"):
        for i in range(200):
            write(tmp_path / "flat" / name / f"{i:03}.png", b"")
    return tmp_path / "flat"


def parts(path: Path, fraction: float = 0.1) -> tuple[set[str], set[str]]:
    data = config_of(path, eval_fraction=fraction).data
    both = [build_source(data, split) for split in ("train", "val")]
    return tuple({s.describe(i) for i in range(len(s))} for s in both)


def test_a_flat_folder_is_divided_by_the_names_alone(flat):
    train, held_out = parts(flat)
    assert len(train | held_out) == 400 and not train & held_out
    for name in ("ant", "zebra"):  # about a tenth of each class
        assert 10 <= sum(f"/{name}/" in path for path in held_out) <= 30
    # The rule, fixed for ever: runs that resume and other machines depend on it.
    names = sorted(path.split("flat/")[1] for path in held_out)
    assert names[:4] == ["ant/018.png", "ant/031.png", "ant/033.png", "ant/036.png"]
    moved = flat.rename(flat.with_name("moved to another flat"))
    write(moved / "ant" / "new.png", b"")
    write(moved / "bee" / "000.png", b"")
    train_now, held_out_now = ({p.split("flat/")[1] for p in part} for part in parts(moved))
    added = {"ant/new.png", "bee/000.png"}
    assert held_out_now - added == {path.split("flat/")[1] for path in held_out}
    assert train_now | held_out_now == {p.split("flat/")[1] for p in train | held_out} | added


def test_where_a_small_class_has_no_image_in_a_part_advice_is_given(tmp_path):
    for name, count in (("bee", 4), ("cat", 40)):
        for i in range(count):
            write(tmp_path / name / f"{i}.png", png(i))
    config = config_of(tmp_path, eval_fraction=0.1)
    data = open_data(config)
    line = overview((("train", data.train), ("val", data.eval)), "images")
    advice = f"or divide the images yourself, into {tmp_path}/train/CLASS and {tmp_path}/val/CLASS"
    assert "none of bee; set another --config.data.eval_fraction" in line and line.endswith(advice)
    part_of = "of 44: --config.data.eval_fraction=0.1 divides them, 1 takes all"
    of_model = labelled.with_classes(data.eval, ("ant", "bee", "cat"), place="a model")
    assert data.eval.part_of == of_model.part_of == part_of
    config.data.eval_fraction = 1.0
    with pytest.raises(BadInputError, match="split train has no image; set another"):
        open_data(config)


def test_a_slice_of_a_divided_folder_is_a_part_of_that_split(flat):
    """Of the first half of each class, whose other images are in neither part."""
    whole = parts(flat)
    sliced = {"train_split": "train[:50%]", "eval_split": "val"}
    data = config_of(flat, eval_fraction=0.1, **sliced).data
    train, held_out = (build_source(data, split) for split in sliced.values())
    found = {train.describe(i) for i in range(len(train))}
    assert found < whole[0] and abs(2 * len(found) - len(whole[0])) <= 2
    assert missing_classes(train) == ()
    assert {held_out.describe(i) for i in range(len(held_out))} == whole[1]
    twice = {"train_split": "train[:90%]", "eval_split": "train[90%:]"}
    data = config_of(flat, eval_fraction=0.1, **twice).data
    problem = "in two, and the splits for training and evaluation are both 'train'; name two"
    assert problem in refused(data, "train[:90%]")
    flat.rename(flat.with_name("train"))
    data.path = str(flat.parent)
    assert [len(build_source(data, split)) for split in twice.values()] == [360, 40]


def test_the_form_of_accents_does_not_move_a_file():
    names = [f"がぎ/写真{i}é.jpg" for i in range(50)]
    forms = [[unicodedata.normalize(form, name) for name in names] for form in ("NFC", "NFD")]
    held = [[Holdout(0.5).holds(name) for name in form] for form in forms]
    assert forms[0] != forms[1] and held[0] == held[1] and 15 < sum(held[0]) < 35


def test_what_lies_in_a_class_beside_its_images_is_counted(flat):
    (flat / "ant" / "a.HEIC").write_bytes(b"")
    (flat / "ant" / "bee").mkdir()
    source = build_source(config_of(flat, eval_fraction=1.0).data, "val")
    assert source.left_out == {".heic": 1, "folder in a class": 1}


def test_a_workdir_among_the_classes_is_none(flat):
    write(flat / "run" / "environment.json", b"[]")
    write(flat / "run" / "learning_curve.png", png(1))
    assert "run" not in build_source(config_of(flat, eval_fraction=0.1).data, "train").class_names


# --- What is refused ------------------------------------------------------------------------------


def loose(root: Path) -> None:
    """As ImageNet's validation images: training images would be evaluated in their place."""
    for image in (root / "val").glob("*/*.*"):
        image.rename(root / "val" / f"{image.parent.name} {image.name}")
    no("val/ant", "val/zebra")(root)


def too_deep(root: Path) -> None:
    """As in Tiny ImageNet: CLASS/images/IMAGE."""
    for folder in root.glob("*/*"):
        (folder / "images").mkdir()
        for image in folder.glob("[ab].*"):
            image.rename(folder / "images" / image.name)


def alike(root: Path) -> None:
    """Composed and decomposed letters look alike; the images of one would be left out."""
    for form in ("NFC", "NFD"):
        (root / "train" / unicodedata.normalize(form, "é")).mkdir()


def packed(root: Path) -> None:
    records.write_set(root / "set", {"train": [(0, b"")]}, class_names="a", provenance={})


def no(*names: str) -> Callable[[Path], None]:
    return lambda root: [shutil.rmtree(root / name) for name in names]


def new(name: str) -> Callable[[Path], None]:
    return lambda root: write(root / name, b"")


def foreign(root: Path) -> None:
    """A dataset.json of another program beside the splits, and one without a class."""
    new(records.MANIFEST)(root)
    no("train/ant", "train/zebra")(root)


def nothing(root: Path) -> None: ...


# What is done to the folder, the path in it, config.data.eval_fraction, and a part of the line.
REFUSED = [
    (nothing, "/train", 0.0, "no split 'train'; its folders hold no class folders, so if they are"),
    (nothing, "/train", 0.0, "the classes, add --config.data.eval_fraction=0.1 to hold a tenth of"),
    (nothing, "/nowhere", 0.0, "config.data.path={root}/nowhere: no such directory"),
    (nothing, "/val/ant/notes.txt", 0.0, "/notes.txt: a file; give a folder of class folders"),
    (packed, "/set", 0.1, "config.data.path={root}/set: a packed set, not a folder of class fold"),
    (packed, "/set", 0.1, "with --config.data.source=array_record --config.data.eval_fraction=0"),
    (no("val"), "", 0.0, "{root}: no split 'val'; there are train"),
    (foreign, "", 0.0, "{root}/train: has no class folders; images belong"),
    (no("train/ant"), "", 0.0, "train has no example of 1 of 2 classes (ant)"),
    # As where the path is one level too high, and its only folder holds the class folders.
    (no("train/ant", "val/ant"), "", 0.0, "{root}: split train has one class only (zebra)"),
    (loose, "", 0.0, "{root}/val: 6 images lie in it itself, which is right for the folder of a"),
    (loose, "", 0.2, "; it must hold a folder for each class (or is config.data.path one too deep"),
    (too_deep, "", 0.0, "{root}/train/ant: no image in it (.jpg, .jpeg, .png, .webp, .bmp, .gif, "),
    (
        too_deep,
        "",
        0.5,
        ", and images in {root}/train/ant/images; move, convert or remove them, or",
    ),
    (alike, "", 0.0, "/train: two folders have the name"),
    # The images of a class; an inner folder would be the only class.
    (nothing, "/train/ant", 0.1, "{root}/train/ant: 2 images lie in it itself"),
    (new("train/ant/best/a.txt"), "/train/ant", 0.1, "{root}/train/ant: 2 images lie in it itself"),
    (new("train/bee/a.HEIC"), "/train", 0.1, "{root}/train/bee: no image in it (.jpg, "),
    (new("train/bee/a.HEIC"), "/train", 0.1, "but other files (.heic 1); move, convert or remove"),
    (new("train/bee/in/a.jpg"), "/train", 0.1, "or name the folder that holds the class folders"),
]


@pytest.mark.parametrize(("change", "place", "fraction", "line"), REFUSED)
def test_what_is_no_folder_of_classes_is_refused(folder, change, place, fraction, line):
    change(folder)
    with pytest.raises(BadInputError) as error:
        open_data(config_of(f"{folder}{place}", eval_fraction=fraction))
    assert line.format(root=folder) in str(error.value) and "\n" not in str(error.value)


def test_a_trained_model_is_measured_on_its_training_images(flat):
    """Not on those that were held out from them."""
    info = {"class_names": ["ant", "zebra"]}

    def measured(**splits: str) -> set[str]:
        data = config_of(flat, eval_fraction=0.1, **splits).data
        source = build_source(data, data.eval_split, info)
        assert not source.part_of
        return {source.describe(i) for i in range(len(source))}

    assert measured(eval_split="train") == parts(flat)[0]
    (flat / "train").mkdir()
    for name in info["class_names"]:
        shutil.move(flat / name, flat / "train" / name)
    second = {"train_split": "train[:50%]", "eval_split": "train[50%:]"}
    assert len(measured(**second)) == 200  # of a run that nothing was held out from
    shutil.copytree(flat / "train", flat / "val")
    assert len(measured(eval_split="train")) == 400


def test_folders_are_read_from_local_disks():
    assert "from local disks only" in refused(config_of("gs://bucket/photos").data, "train")


def test_an_empty_folder_is_no_split(folder):
    no("val/ant", "val/zebra")(folder)
    data = open_data(config_of(folder, eval_fraction=0.2))
    assert len(data.train) + len(data.eval) == 4


def test_splits_beside_training_that_are_not_used_are_named(folder):
    shutil.move(folder / "val", folder / "valid")
    shutil.copytree(folder / "valid", folder / "test")
    for split in ("train", "train[:90%]", "train[:40%]+train[50%:]"):
        data = open_data(config_of(folder, eval_fraction=0.2, train_split=split))
        assert data.train.note == (
            f"{folder}: val is a part of train; not used: test, valid "
            "(--config.data.eval_split=valid evaluates valid)"
        )
    for split in ("test", "valid"):
        data = open_data(config_of(folder, eval_fraction=0.2, eval_split=split))
        assert len(data.eval) == 4 and not data.train.note


# --- A folder as people keep them -----------------------------------------------------------------


def test_of_a_messy_folder_every_image_is_read_or_named(tmp_path):
    root = write_folder(tmp_path / "messy photos")
    config = config_of(root, eval_fraction=0.3)
    config.augment.exif_orientation = True
    data = open_data(config)
    assert data.data_info.info["class_names"] == ["messy", "plain", "日本 の猫"]
    pictures, named = {}, []
    for source in (data.train, data.eval):
        for i in range(len(source)):
            path = source.describe(i)
            try:
                content = source[i]["image"]
                pictures[path] = files.decode(content, path, exif_orientation=True)
            except BadExampleError as error:
                named.append(str(error).split(": ")[0])
    assert sorted(named) == sorted(f"{root}/messy/{name}" for name in unreadable())
    for name, content in readable().items():
        theirs = as_pillow_reads(content, upright=True)
        np.testing.assert_array_equal(pictures[f"{root}/messy/{name}"], theirs)
    assert len(pictures) == len(readable()) + 24
    counts = Counter(data.train.left_out) + Counter(data.eval.left_out)
    assert counts == {".DS_Store": 1, ".heic": 1, ".txt": 1, ".DS_Store in no class": 1}
    assert len(left_out()) == 3
    line = overview((("train", data.train), ("val", data.eval)), "images")
    kinds = ".DS_Store 1, .DS_Store in no class 1, .heic 1, .txt 1"
    assert line.endswith(f"; 4 files left out ({kinds})")


def test_the_hash_of_a_folder_is_of_its_images_and_not_of_its_place(folder, tmp_path):
    """So that a run does not resume on other photos, and does on the same ones elsewhere."""

    def content(path: Path) -> str:
        return open_data(config_of(path), hashed=True).data_info.info["content_sha256"]

    first = content(folder)
    shutil.copytree(folder, tmp_path / "copy")
    assert content(tmp_path / "copy") == first and len(first) == 128
    (tmp_path / "copy" / "val" / "ant" / "c.png").write_bytes(png(50))
    assert content(tmp_path / "copy")[:64] == first[:64] != content(tmp_path / "copy")[64:]
    (folder / "train" / "ant" / "a.png").write_bytes(png(50))  # as many, of equal names
    assert content(folder)[64:] == first[64:] and content(folder)[:64] != first[:64]
    assert "content_sha256" not in open_data(config_of(folder)).data_info.info
