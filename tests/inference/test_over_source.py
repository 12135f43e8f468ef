"""The labelled images that a model is measured on, with the model's labels."""

import numpy as np
import pytest
from image_sources import png
from refusals import refuses

from widenet_jax.data.labelled import Subset, relabelled, with_classes
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.inference.few_shot import features_of
from widenet_jax.inference.over_source import metrics_over_source, open_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.vision.data.digits import Digits
from widenet_jax.vision.data.folders import ImageFolder


def named(*class_names: str) -> Subset:
    return relabelled(Digits("test"), class_names, [0] * 10)


def test_classes_are_matched_by_name():
    """The source has fewer classes, in another order; one that the model lacks is named."""
    source = with_classes(named("ship", "cat"), ("bird", "cat", "dog", "ship"), place="runs/x")
    np.testing.assert_array_equal(source.labels, [3, 1])
    with pytest.raises(BadInputError) as caught:
        with_classes(named("cat", "zebra", "yak"), ("bird", "cat"), place="runs/x")
    assert str(caught.value) == (
        "class 'zebra' of the data (2 such of 3) is none of the 2 that runs/x knows (bird, cat); "
        "classes are matched by name, or by number if they are 0 to 1: rename them, or finetune on "
        "this data"
    )
    source = relabelled(Digits("test"), ["a"] * 10, range(9, -1, -1))
    assert len(source) == 360 and source.describe(3) == "digits test image 3"
    theirs = Digits("test")[4]
    assert source[4]["label"] == 9 - theirs["label"]
    np.testing.assert_array_equal(source[4]["image"], theirs["image"])


def test_classes_by_number(tmp_path):
    """ImageNet-V2's folders, in the order of text: 0, 1, 10, 11, 2, ...; only all of them count."""
    for number in range(12):
        (tmp_path / "val" / str(number)).mkdir(parents=True)
        (tmp_path / "val" / str(number) / "a.png").write_bytes(png(number))
    folder = ImageFolder(str(tmp_path), "val")
    assert folder.class_names[:4] == ("0", "1", "10", "11")
    names = tuple("abcdefghijkl")
    source = with_classes(folder, names, place="runs/x")
    for index in range(12):
        assert source[index]["label"] == int(source.describe(index).split("/")[-2])
    assert source.matched == "matched by number: 0 is a, 11 is l"
    # Names come first: the model may call its own classes by numbers, in the order of text.
    by_name = with_classes(folder, folder.class_names, place="runs/x")
    assert by_name.record_labels.tolist() == list(range(12)) and not by_name.matched
    # The other way round: the model's classes are the folders, in the order of text.
    for name, number in zip(names, range(12), strict=True):
        (tmp_path / "test" / name).mkdir(parents=True)
        (tmp_path / "test" / name / "a.png").write_bytes(png(number))
    named = with_classes(ImageFolder(str(tmp_path), "test"), folder.class_names, place="runs/x")
    labels = [named[index]["label"] for index in range(12)]
    assert [folder.class_names[label] for label in labels] == [*map(str, range(12))]
    for others in (names[:11], ("1", *names[1:]), (*names, "m")):
        refuses(
            "classes are matched by name, or by number", with_classes, folder, others, place="x"
        )


def test_images_of_other_channels(digits_run, tmp_path):
    """A folder of the digits as PNG files, which are RGB."""
    import cv2

    for name in "0123456789":
        (tmp_path / "test" / name).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / "test" / name / "1.png"), np.zeros((8, 8, 3), np.uint8))
    changes = [f"--config.data.path={tmp_path}", "--config.data.source=image_folder"]
    trained = open_trained(str(digits_run), changes)
    refuses(r"image of shape \[8, 8, 3\], and .* trained on \[8, 8, 1\]", open_source, trained)


class Damaged(Subset):
    """Examples of which the first `bad` cannot be read."""

    bad = 0

    def __getitem__(self, record: int) -> dict:
        if record < self.bad:
            raise BadExampleError(f"{record}.png: damaged")
        return super().__getitem__(record)


def test_a_set_with_too_many_bad_examples_is_not_measured(digits_run):
    """Of 60 images 3 (5%) may be bad, as in training."""
    trained = open_trained(str(digits_run), ["--config.data.on_bad_example=skip"])
    whole, transform = open_source(trained)
    source = Damaged(whole, np.arange(60), trained.class_names, range(10))
    assert "bad_examples" not in metrics_over_source(trained, (source, transform))[1]
    source.bad = 3
    metrics, others, *_ = metrics_over_source(trained, (source, transform))
    assert (metrics["images"], others["bad_examples"]) == (57, 3)
    source.bad = 4
    for measure in (
        lambda: metrics_over_source(trained, (source, transform)),
        lambda: features_of(trained, source, transform),
    ):
        refuses("^4 of 60 evaluation images could not be read; in each pass at most 3", measure)
