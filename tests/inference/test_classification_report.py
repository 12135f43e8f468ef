"""Accuracy by hand, and of a run against its own result and a loop over images."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from widenet_jax.data.blocks import read_example
from widenet_jax.inference.classification import (
    Accuracy,
    accuracy_of,
    calibration_error,
    classify_source,
    confusion_csv,
    draw_confusion,
    example_rows,
    predictions_csv,
)
from widenet_jax.inference.over_source import open_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.vision.task import to_signed_range

BY_HAND = Accuracy(
    class_names=("cat", "dog", "yak"),
    confusion=np.array([[3, 1, 0], [2, 2, 0], [0, 0, 0]]),
    in_top=np.array([4, 3, 0]),
    losses=np.full(8, 0.5),
    calibration_error=0.25,
    choices=3,
)


def test_by_hand():
    """8 images: 3 + 2 are right; none is a yak. Of 5 classes the top-5 would always be 100%.

    Wilson's interval of 5 of 8 is 30.57 to 86.32%; equal losses have no spread.
    """
    found = BY_HAND.as_json("images")
    assert (found["images"], found["top_1"], found["largest_class"]) == (8, 5 / 8, 0.5)
    assert found["per_class"] == {"cat": 0.75, "dog": 0.5}
    assert found["balanced_accuracy"] == 0.625
    intervals = found["intervals"]
    assert intervals["top_1"] == pytest.approx((0.3057, 0.8632), abs=5e-5)
    assert intervals["cross_entropy"] is None and "top_5" not in intervals
    low, high = intervals["balanced_accuracy"]
    assert low < 0.5 and high > 0.75
    assert BY_HAND.confused(5) == [("dog", "cat", 2), ("cat", "dog", 1)]
    assert BY_HAND.confused(1) == [("dog", "cat", 2)]
    assert confusion_csv(BY_HAND) == (
        "class \\ predicted,cat,dog,yak\ncat,3,1,0\ndog,2,2,0\nyak,0,0,0\n"
    )
    for V in (5, 6):
        right = Accuracy(
            tuple("abcdef"[:V]), 8 * np.eye(V, dtype=int), np.full(V, 6), np.zeros(8 * V), 0.0, V
        )
        assert right.as_json("images").get("top_5") == (0.75 if V == 6 else None)


def test_calibration_error_by_hand():
    """Five examples in three of 15 bins; 0.4 = 6/15 is the upper end of its bin.

    (14/15, 1]: one of 2 is right, confidences 0.95 and 0.96: |1 - 1.91| = 0.91.
    (7/15, 8/15]: the only one is right, with 0.5: 0.5.
    (5/15, 6/15]: one of 2 is right, confidences 0.4 and 0.39: |1 - 0.79| = 0.21.
    """
    right = np.array([True, False, True, False, True])
    confidences = np.array([0.95, 0.96, 0.5, 0.4, 0.39])
    found = calibration_error(right, confidences)
    assert found == pytest.approx((0.91 + 0.5 + 0.21) / 5)
    sure = np.ones(4, np.float32)
    assert calibration_error(sure > 0, sure) == 0.0 and calibration_error(sure < 0, sure) == 1.0


def test_classes_that_may_be_predicted():
    """Of classes 0 and 2 alone, with logits 2 and 1, then 0 and 2."""
    logits = np.array([[2.0, 3, 1, 0], [0, 1, 2, 3]], np.float32)
    batch = {"label": np.array([0, 2]), "mask": np.ones(2, bool)}
    assert example_rows(logits, batch, range(4))["predicted"].tolist() == [1, 3]
    rows = example_rows(logits, batch, [2, 0])
    assert rows["predicted"].tolist() == [0, 2]
    expected = 1 / (1 + np.exp([-1.0, -2.0]))
    np.testing.assert_allclose(rows["probability"], expected, rtol=1e-6)
    np.testing.assert_allclose(rows["loss"], -np.log(expected), rtol=1e-5)
    names = tuple("abcdef")
    few = accuracy_of(names, {k: np.asarray(v) for k, v in rows.items()}, 2).as_json("images")
    assert "top_5" not in few and few["choices"] == 2


def test_the_picture_of_many_classes_has_their_most_frequent_confusions(tmp_path, drawn):
    names, right = tuple(f"class {label}" for label in range(31)), 8 * np.eye(31, dtype=int)
    wrong = right.copy()
    wrong[2, 5], wrong[4, 0] = 24, 2
    for confusion in (wrong, right):
        found = Accuracy(names, confusion, np.full(31, 8), np.zeros(9), 0.0, 31)
        draw_confusion(found, tmp_path / "c.png")
    axis = drawn[0].axes[0]
    assert not axis.images and [bar.get_width() for bar in axis.patches] == [24, 2]
    ticks = [tick.get_text() for tick in axis.get_yticklabels()]
    assert ticks == ["class 2 taken for class 5", "class 4 taken for class 0"]
    assert [text.get_text() for text in axis.texts] == ["24 (75.0%)", "2 (20.0%)"]
    assert axis.yaxis_inverted()  # the most frequent one is on top
    assert [text.get_text() for text in drawn[1].axes[0].texts] == ["no mistakes"]


def test_long_names_leave_room_for_the_matrix(tmp_path, drawn):
    names = ("great grey-spotted woodpecker (female)", "lesser grey-spotted woodpecker (male)")
    found = Accuracy(names, np.array([[3, 1], [0, 4]]), np.full(2, 4), np.zeros(8), 0.0, 2)
    draw_confusion(found, tmp_path / "c.png", title="a title")
    axis = drawn[0].axes[0]
    ticks = [tick.get_text() for tick in axis.get_yticklabels()]
    assert ticks == ["great grey-…ker (female)", "lesser grey…ecker (male)"]
    figure, cells = drawn[0].bbox, axis.get_window_extent()
    assert cells.width > 0.25 * figure.width and cells.height > 0.25 * figure.height


def test_predictions_as_csv():
    """The second of three examples could not be read."""
    source = SimpleNamespace(describe="photos/{}.jpg".format)
    rows = {"mask": [1, 0, 1], "label": [0, 0, 1], "predicted": [0, 0, 2]}
    rows = {name: np.array(row) for name, row in rows.items()}
    rows |= {"probability": np.array([0.9, 0.5, 0.625]), "in_top": np.array([1, 1, 0], bool)}
    assert predictions_csv(("cat", "dog", "yak"), source, rows) == (
        "file,index,truth,prediction,probability\n"
        "photos/0.jpg,0,cat,cat,0.900000\nphotos/2.jpg,2,dog,yak,0.625000\n"
    )
    accuracy = accuracy_of(("cat", "dog", "yak"), rows | {"loss": np.array([0.5, 9.0, 1.5])}, 3)
    assert accuracy.calibration_error == pytest.approx((1 - 0.9 + 0.625) / 2)  # one in each bin
    assert accuracy.confusion.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert accuracy.in_top.tolist() == [1, 0, 0] and accuracy.losses.tolist() == [0.5, 1.5]


def test_equals_the_result_of_the_run_and_a_loop_over_images(digits_run):
    """360 images are whole groups of 4, without padding; ranks are counted one by one."""
    trained = open_trained(str(digits_run))
    opened, transform = open_source(trained)
    rows = classify_source(trained, opened, transform, range(10))
    accuracy = accuracy_of(trained.class_names, rows, 10)
    result = json.loads((digits_run / "result.json").read_text())
    facts = accuracy.as_json("images")
    assert facts["top_1"] == result["test_accuracy"]
    assert facts["images"] == result["test_images"] == 360
    assert facts["cross_entropy"] == pytest.approx(result["test_cross_entropy"], rel=1e-5)
    source, transform = open_source(trained)
    examples = [read_example(source, i) for i in range(len(source))]
    images = np.stack([transform.picture(transform.image_of(example)) for example in examples])
    variables = {"params": trained.params}
    apply = jax.jit(lambda x: trained.model.apply(variables, {"image": x}, train=False)[0])
    logits = np.asarray(apply(to_signed_range(images)))
    confusion, in_top = np.zeros((10, 10), int), np.zeros(10, int)
    for row, example in zip(logits, examples, strict=True):
        label = example["label"]
        confusion[label, row.argmax()] += 1
        in_top[label] += (row > row[label]).sum() < 5
    np.testing.assert_array_equal(accuracy.confusion, confusion)
    np.testing.assert_array_equal(accuracy.in_top, in_top)
    last = predictions_csv(trained.class_names, opened, rows).splitlines()[-1].split(",")
    assert last[:4] == [opened.describe(359), "359", str(label), str(row.argmax())]
    assert float(last[4]) == pytest.approx(float(jax.nn.softmax(row).max()), abs=1e-4)
