"""`prepare_data.py check`, packing with --skip_bad, and the preview of a messy folder."""

import json
import math
import shutil

import cv2
import numpy as np
import pytest
from messy_photos import picture, readable, saved, unreadable, write, write_folder
from preparing import ROOT, error_line, run

from widenet_jax.config.files import load_config
from widenet_jax.vision.data.folders import Holdout
from widenet_jax.vision.data.packed import ArrayRecord

IMAGES = len(readable()) + len(unreadable()) + 24


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photos"))


def test_check_names_every_file_that_is_not_read(messy, capsys):
    assert run("check", messy) == 2
    out, err = capsys.readouterr()
    *lines, last = out.splitlines()
    assert len(lines) == len({*lines}) == len(unreadable()) + 4 + 2
    for name in unreadable():
        assert sum(line.startswith(f"{messy}/messy/{name}: ") for line in lines) == 1
    assert f"{messy}/messy/IMG_1.HEIC: left out (.heic)" in lines
    assert f"{messy}/no photo yet: an empty folder" in lines
    assert f"{messy}: class folders: 3, with 12 (plain) to {IMAGES - 24} (messy) images" in lines
    assert last == (
        f"{messy}: {IMAGES} images, 4 files left out (.DS_Store 2, .heic 1, .txt 1); "
        f"{len(unreadable())} problems"
    )
    message = error_line(err)
    assert f"{len(unreadable())} problems; replace or remove them" in message
    assert "remove them, or skip so many with --config.data.max_bad_fraction=0.1" in message
    assert load_config("configs/finetune.py").data.on_bad_example == "skip"
    assert run("check", messy, "--json") == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == len(unreadable())


def test_check_counts_the_images_of_each_class(tmp_path, capsys):
    counts = {"train/ant": 7, "train/bee": 3, "val/ant": 5, "val/bee": 6}
    for name, count in counts.items():
        for i in range(count):
            seed = len([*tmp_path.rglob("*.png")])
            write(tmp_path / name / f"{i}.png", saved(picture(seed), "PNG"))
    write(tmp_path / "stray.png", saved(picture(3), "PNG"))
    write(tmp_path / ".thumbs" / "0.png", saved(picture(99), "PNG"))
    copies = f"{tmp_path}/stray.png = {tmp_path}/train/ant/3.png"
    assert run("check", f"{tmp_path}/") == 0
    assert capsys.readouterr().out.splitlines()[:-1] == [
        f"{tmp_path}/train: class folders: 2, with 3 (bee) to 7 (ant) images",
        f"{tmp_path}/val: class folders: 2, with 5 (ant) to 6 (bee) images",
        f"{tmp_path}/train/bee: images: only 3",
        f"{tmp_path}: images in no class folder: 1 (stray.png)",
        f"{tmp_path}/: images with copies, which evaluation may get: 1 ({copies})",
    ]
    assert run("check", f"{tmp_path}/stray.png") == 0  # one image has no classes
    assert capsys.readouterr().out.splitlines() == [f"{tmp_path}/stray.png: 1 images; 0 problems"]


def test_check_names_images_that_are_almost_black(tmp_path, capsys):
    """Values of 12 bits in 16 keep 4 bits of 8; a mask has the numbers of classes."""
    grey = np.linspace(0, 4095, 64).reshape(8, 8).astype(np.uint16)
    for name, pixels in (("scan", grey), ("mask", np.eye(8, dtype=np.uint8)), ("fine", grey << 4)):
        (tmp_path / "cat").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "cat" / f"{name}.png"), pixels)
    assert run("check", tmp_path) == 0
    told = f"{tmp_path}: images without a pixel of 16 or more, of 255: 2 ({tmp_path}/cat/mask.png"
    names = f", {tmp_path}/cat/scan.png): 12 bits or class numbers? rescale them"
    assert told + names in capsys.readouterr().out


def test_check_says_whether_few_bad_images_are_accepted(tmp_path, capsys):
    """The file names of a class put 000 to 017 into training and 018 into evaluation."""
    for name in ("ant", "zebra"):
        for i in range(40):
            write(tmp_path / name / f"{i:03}.png", saved(picture(i), "PNG"))
    write(tmp_path / "ant" / "000.png", b"")
    assert run("check", f"{tmp_path}/") == 2
    told = f"error: {tmp_path}/: 1 problems; replace or remove them, or leave them: "
    assert error_line(capsys.readouterr().err) == f"{told}configs/finetune.py skips so few"
    write(tmp_path / "val" / "ant" / "000.png", saved(picture(0), "PNG"))  # and no zebra
    write(tmp_path / "train" / "ant" / "000.png", b"")
    assert run("check", tmp_path) == 2
    assert error_line(capsys.readouterr().err).endswith("; replace or remove them")
    shutil.rmtree(tmp_path / "train")
    shutil.rmtree(tmp_path / "val")
    write(tmp_path / "ant" / "018.png", b"")
    assert run("check", tmp_path) == 2
    message = error_line(capsys.readouterr().err)
    size = sum(
        Holdout(0.1).holds(f"{name}/{i:03}.png") for name in ("ant", "zebra") for i in range(40)
    )
    assert message.endswith(
        f"with --config.data.max_bad_fraction={math.ceil(1000 / size) / 1000:g}"
    )


def test_check_of_good_photos_ends_with_0(messy, capsys):
    assert run("check", messy / "plain") == 0
    assert capsys.readouterr().out == f"{messy}/plain: 12 images; 0 problems\n"
    assert run("check", messy / "nowhere") == 2
    capsys.readouterr()
    assert run("check", messy / "no photo yet") == 2
    assert "an empty folder, so there is nothing to check" in error_line(capsys.readouterr().err)


def test_skip_bad_packs_the_rest(messy, tmp_path, capsys):
    packing = ["image_folder", "--input", messy, "--eval_fraction=0.3", "--out", tmp_path / "set"]
    assert run(*packing, "--skip_bad", "--json") == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert sum(report["images"].values()) == IMAGES - len(unreadable())
    assert len(report["damaged"]) == len(unreadable())
    assert report["left_out"] == {".DS_Store": 1, ".DS_Store in no class": 1, ".heic": 1, ".txt": 1}
    assert f"left out {len(unreadable())} images that cannot be read" in err
    for split, count in report["images"].items():
        source = ArrayRecord(str(tmp_path / "set"), split)
        assert len(source) == count
        assert source.class_names == ("messy", "plain", "日本 の猫")


def test_preview_skips_what_cannot_be_read(messy, tmp_path, capsys):
    fields = {"source": "image_folder", "path": messy, "eval_fraction": 0.3, "image_size": 16}
    flags = [f"--config.data.{name}={value}" for name, value in fields.items()]
    grid = [f"--config={ROOT}/configs/cifar10.py:widenet_s", "--num=30", "--draws=1", *flags]
    assert run("preview", *grid, f"--out={tmp_path}/a.png") == 2
    capsys.readouterr()
    skip = "--config.data.on_bad_example=skip"
    assert run("preview", *grid, f"--out={tmp_path}/b.png", skip) == 0
    err = capsys.readouterr().err
    assert "train: 76 images, 3 classes; " in err and "files left out" in err
    assert "/messy/truncated." in err and (tmp_path / "b.png").stat().st_size > 1000
