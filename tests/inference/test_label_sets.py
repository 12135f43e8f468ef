"""Sets of right classes: how they are matched with examples, what is refused, and the accuracy."""

import json
from pathlib import Path

import numpy as np
import pytest
from image_sources import png
from refusals import refuses

from widenet_jax.inference.label_sets import read_label_sets, set_accuracy
from widenet_jax.vision.data.digits import Digits
from widenet_jax.vision.data.folders import ImageFolder

NAMES = tuple("abcdefghij")
# Of class and file; the numbers are not in the order of the classes.
IMAGENET = ("cat/ILSVRC2012_val_00000002.JPEG", "cat/ILSVRC2012_val_00000004.JPEG")
IMAGENET += ("dog/ILSVRC2012_val_00000001.JPEG",)


def folder(root: Path, *files: str) -> ImageFolder:
    for name in files:
        (root / "val" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "val" / name).write_bytes(png(1))
    return ImageFolder(str(root), "val")


def written(root: Path, content: object) -> str:
    (root / "sets.json").write_text(json.dumps(content))
    return str(root / "sets.json")


def test_files_of_imagenet_are_found_in_a_list_by_their_numbers(tmp_path: Path):
    """As in ImageNet-ReaL, whose list is longer than this part of the validation images."""
    path = written(tmp_path, [[1], [2, 3], [4], [], [5]])
    found = read_label_sets(path, NAMES, folder(tmp_path, *IMAGENET))
    assert found == [[2, 3], [], [1]]


def test_files_are_found_in_an_object_by_their_names(tmp_path: Path):
    source = folder(tmp_path, "cat/1.png", "dog/1.png", "dog/2.png")
    path = written(tmp_path, {"2.png": ["b", 9], "dog/1.png": ["a"], "cat/1.png": []})
    assert read_label_sets(path, NAMES, source) == [[], [0], [1, 9]]


def test_examples_without_files_are_in_their_order(tmp_path: Path):
    sets = [[k % 10] for k in range(360)]
    assert read_label_sets(written(tmp_path, sets), NAMES, Digits("test")) == sets


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (3, "give a list of lists of classes, or an object"),
        ([[0]] * 359, "359 sets for 360 examples; give one for each"),
        ({"a.png": [0]}, "these examples are no files; give a list"),
        ([[0], 5], "entry 1: is no list"),
        ([[0], [10]], "entry 1 has 10, no class of the model; give numbers from 0 to 9, or names"),
        ([[-1]], "entry 0 has -1, no class"),
        ([["zebra"]], "entry 0 has 'zebra', no class"),
        ([[True]], "entry 0 has True, no class"),
        ([[[0]]], r"entry 0 has \[0\], no class"),
    ],
)
def test_other_files_are_refused(content: object, problem: str, tmp_path: Path):
    refuses(problem, read_label_sets, written(tmp_path, content), NAMES, Digits("test"))


@pytest.mark.parametrize(
    ("files", "content", "problem"),
    [
        (("cat/1.png", "dog/2.png"), [[0], [1]], "cat/1.png; an object finds files by name"),
        (IMAGENET, [[0], [1], [2]], "no set for .*cat/ILSVRC2012_val_00000004.JPEG"),
        (("cat/1.png", "dog/2.png"), {"1.png": [0]}, "no set for .*dog/2.png"),
        (("cat/1.png", "dog/1.png"), {"1.png": [0]}, "2 files of the set share its entry 1.png"),
    ],
)
def test_sets_that_cannot_be_matched_are_refused(files, content, problem, tmp_path: Path):
    path = written(tmp_path, content)
    refuses(problem, read_label_sets, path, NAMES, folder(tmp_path, *files))


def test_accuracy_by_hand():
    """Of 6 images the last is unreadable and one has an empty set; 3 of 4 others are right.

    The first one's own label is not in its set, and the prediction is.
    """
    sets = [[1, 2], [3], [], [4, 5], [6], [7]]
    rows = {
        "mask": np.array([1, 1, 1, 1, 1, 0]),
        "label": np.array([0, 3, 0, 4, 6, 7]),
        "predicted": np.array([2, 3, 0, 5, 7, 7]),
    }
    assert set_accuracy(sets, rows, "x") == {"in_label_set": 0.75, "judged": 4, "left_out": 1}
    refuses("every set is empty", set_accuracy, [[]] * 6, rows, "x")
    turned = [sets[-1], *sets[:-1]]
    refuses("only 0.0% of the sets hold the label", set_accuracy, turned, rows, "real.json")


def test_two_classes_in_another_order_are_refused():
    """Half of the sets hold the own label, as by chance: 2 (1/2 1/2) = 1/2."""
    labels = np.tile([0, 0, 1, 1], 500)
    rows = {"mask": np.ones(2000), "label": labels, "predicted": labels}
    sets = [[int(label)] for label in labels]
    assert set_accuracy(sets, rows, "x")["in_label_set"] == 1
    told = (
        r"only 50.0% of the sets hold the label that the example has, and (49|50|51).\d% would by"
    )
    refuses(told, set_accuracy, [*sets[1:], sets[0]], rows, "real.json")
