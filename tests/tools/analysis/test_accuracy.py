"""Accuracies by hand, and those of a run against its own result and a loop over images."""

import json

import jax
import numpy as np
import pytest

from widenet_jax.data.pipeline import read_image
from widenet_jax.tasks.classification import to_unit_range
from widenet_jax.tools.analysis.accuracy import Accuracy, as_json, confusion_csv, measure_accuracy
from widenet_jax.tools.analysis.over_source import open_source
from widenet_jax.weights.trained import open_trained

BY_HAND = Accuracy(
    class_names=("cat", "dog", "yak"),
    confusion=np.array([[3, 1, 0], [2, 2, 0], [0, 0, 0]]),
    in_top=np.array([4, 3, 0]),
    cross_entropy=0.5,
)


def test_by_hand():
    """8 images, 3 + 2 of them right, 4 + 3 within the most probable; no yak was there."""
    assert (BY_HAND.images, BY_HAND.top_1, BY_HAND.top_5) == (8, 5 / 8, 7 / 8)
    assert BY_HAND.per_class == {"cat": 0.75, "dog": 0.5}
    assert BY_HAND.confused(5) == [("dog", "cat", 2), ("cat", "dog", 1)]
    assert BY_HAND.confused(1) == [("dog", "cat", 2)]


def test_a_table_for_spreadsheets():
    assert confusion_csv(BY_HAND) == (
        "class \\ predicted,cat,dog,yak\ncat,3,1,0\ndog,2,2,0\nyak,0,0,0\n"
    )


@pytest.fixture(scope="module")
def trained(digits_run):
    return open_trained(str(digits_run))


@pytest.fixture(scope="module")
def accuracy(trained) -> Accuracy:
    return measure_accuracy(trained)


def test_the_runs_own_result_comes_out_again(accuracy, digits_run):
    result = json.loads((digits_run / "result.json").read_text())
    assert accuracy.top_1 == result["test_accuracy"]
    assert accuracy.images == result["test_images"] == 360
    assert accuracy.cross_entropy == pytest.approx(result["test_cross_entropy"], rel=1e-5)
    assert as_json(accuracy)["top_1"] == result["test_accuracy"]


def test_against_a_loop_over_images(accuracy, trained):
    """360 images in groups of 4, so that no padding takes part; ranks counted one by one."""
    source, transform = open_source(trained)
    examples = [read_image(source, i) for i in range(len(source))]
    images = np.stack([transform(image) for image, _ in examples])
    apply = jax.jit(lambda x: trained.model.apply({"params": trained.params}, x, train=False)[0])
    logits = np.asarray(apply(to_unit_range(images)))
    confusion, in_top = np.zeros((10, 10), int), np.zeros(10, int)
    for row, (_, label) in zip(logits, examples, strict=True):
        confusion[label, row.argmax()] += 1
        in_top[label] += (row > row[label]).sum() < 5
    np.testing.assert_array_equal(accuracy.confusion, confusion)
    np.testing.assert_array_equal(accuracy.in_top, in_top)
