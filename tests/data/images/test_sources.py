"""Every source returns the stored examples, and names missing files."""

import errno
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from image_sources import refused

from widenet_jax.data.images import files
from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadExampleError, BadInputError


def png(value: int) -> bytes:
    """Encodes a 4x5 image of a single grey level."""
    return cv2.imencode(".png", np.full((4, 5, 3), value, np.uint8))[1].tobytes()


def test_unknown_source_gets_a_suggestion():
    message = refused({"source": "image_folders"}, "train")
    assert "digits, image_folder, array_record, tfds" in message
    assert "--config.data.source=image_folder?" in message


@pytest.mark.parametrize("name", ["image_folder", "array_record"])
def test_a_path_is_needed(name):
    assert refused({"source": name, "path": ""}, "train").endswith("add --config.data.path=DIR")


# --- Digits ---------------------------------------------------------------------------------------


def test_digits_are_split_by_class_and_cover_the_set():
    """The splits are those that scikit-learn draws."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits().images, load_digits().target
    parts = train_test_split(np.arange(1797), test_size=0.2, random_state=0, stratify=labels)
    for name, records in zip(("train", "test"), map(sorted, parts), strict=True):
        source = build_source({"source": "digits"}, name)
        assert [source[i]["label"] for i in range(len(source))] == labels[records].tolist()
        pixels = np.stack([source[i]["image"] for i in range(len(source))])
        assert pixels.shape[1:] == (8, 8, 1) and pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels[..., 0], np.round(images[records] * 255 / 16))
    assert len(source) == 360
    counts = np.bincount([source[i]["label"] for i in range(360)])
    assert counts.min() >= 34 and counts.max() <= 37  # a fifth of the 174 to 183 per class


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
    source = build_source({"source": "image_folder", "path": str(folder)}, "val")
    assert source.class_names == ("ant", "zebra")
    assert [source[i]["label"] for i in range(len(source))] == [0, 0, 1, 1]
    values = [int(files.decode(source[i]["image"], "")[0, 0, 0]) for i in range(4)]
    assert values == [11, 10, 1, 0]
    assert source.describe(2) == f"{folder}/val/zebra/a.png (image 2)"


def test_image_folder_lists_the_splits_there_are(folder):
    data = {"source": "image_folder", "path": str(folder)}
    assert "no split 'test'; there are train, val" in refused(data, "test")


def test_image_folder_without_images(folder, tmp_path):
    data = {"source": "image_folder", "path": str(tmp_path / "nowhere")}
    assert "no such directory" in refused(data, "train")
    (tmp_path / "train3").mkdir()
    assert "no class folders" in refused(
        {"source": "image_folder", "path": str(tmp_path)}, "train3"
    )


def test_an_empty_class_folder_is_named(folder):
    for image in (folder / "train" / "ant").glob("*.*"):
        image.unlink()
    message = refused({"source": "image_folder", "path": str(folder)}, "train")
    assert message.startswith(f"{folder}/train/ant: no image in it")
    assert "one of 1 empty class folders among 2" in message


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: (path.unlink(), path.symlink_to("gone.png")), "link to a file that is not"),
        (lambda path: (path.unlink(), path.symlink_to(path.name)), "Too many levels"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
        (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "not a regular file"),
        (lambda path: os.truncate(path, 1 << 36), "68,719,476,736 bytes, more than"),
    ],
)
def test_an_unreadable_file_is_a_bad_example(folder, damage, found):
    source = build_source({"source": "image_folder", "path": str(folder)}, "val")
    damage(folder / "val" / "ant" / "a.png")
    with pytest.raises(BadExampleError, match=rf"val/ant/a\.png \(image 0\): {found}") as error:
        source[0]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EACCES, BadExampleError), (errno.EIO, BadExampleError), (errno.EMFILE, BadInputError)],
)
def test_only_what_lies_with_the_file_is_a_bad_example(folder, monkeypatch, number, kind):
    def refuse(path: str, flags: int) -> None:
        raise OSError(number, os.strerror(number), path)

    source = build_source({"source": "image_folder", "path": str(folder)}, "val")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BadInputError, match=os.strerror(number)) as error:
        source[0]
    assert type(error.value) is kind


def test_a_class_folder_that_went_away_is_no_bad_example(folder):
    source = build_source({"source": "image_folder", "path": str(folder)}, "val")
    (folder / "val").rename(folder / "unmounted")
    with pytest.raises(BadInputError, match=r"val/ant: class folder is gone") as error:
        source[0]
    assert type(error.value) is BadInputError


def test_a_folder_that_may_not_be_listed_is_named(folder, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    message = refused({"source": "image_folder", "path": str(folder)}, "val")
    assert message == f"{folder}: cannot be listed (Permission denied)"
