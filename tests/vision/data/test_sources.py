"""Every source returns the stored examples, and names missing files."""

import sys
import time

import numpy as np
import pytest
from image_sources import refused

from widenet_jax.corpus.novel import FOLDER
from widenet_jax.data.labelled import class_problems, missing_classes, with_classes
from widenet_jax.data.sources import build_source
from widenet_jax.vision.data.objects import Objects


def test_unknown_source_gets_a_suggestion():
    message = refused({"source": "image_folders"}, "train")
    assert "digits, image_folder, array_record, tfds" in message
    assert "--config.data.source=image_folder?" in message
    for name in ("image_folder", "array_record"):
        message = refused({"source": name, "path": ""}, "train")
        assert message.endswith("add --config.data.path=DIR")


@pytest.mark.parametrize("source", ["token_stream", "text", "array_record", "table", "tfds"])
def test_a_bucket_needs_gcsfs(source: str, monkeypatch: pytest.MonkeyPatch):
    """Where TensorFlow is installed etils reads through that."""
    for package in ("gcsfs", "tensorflow"):
        monkeypatch.setitem(sys.modules, package, None)
    data = {"source": source, "path": "gs://bucket/set", "max_length": 8, "tokenizer": str(FOLDER)}
    none = ("name", "text_column", "pair_column", "label_column", "label_names")
    data |= dict.fromkeys(none, "") | {"train_split": "train"}
    text = "gs://bucket/set needs the gcsfs package: pip install -e '.[gcs]'"
    assert refused(data, "train") == text


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        ("digits", "the digits of scikit-learn", "image_folder"),
        ("tiny_text", "the embedded novel", "text"),
        ("tiny_pieces", "the embedded novel", "token_stream"),
    ],
)
def test_embedded_data_has_no_path(name: str, text: str, source: str):
    message = refused({"source": name, "path": "mine", "max_length": 64}, "train")
    reads = f"config.data.path=mine: config.data.source={name} reads {text}, not files; give "
    assert message.startswith(
        f"{reads}--config.data.path= (nothing), or --config.data.source={source}"
    )


def test_many_classes_are_compared_at_once():
    """30,000 took seconds, and 100,000 a minute."""
    names = tuple(map(str, range(30_000)))
    how = {"by_place": True, "channels": 1, "upright": False}
    train, evaluation = (Objects("data", [0], n, **how) for n in (names, names[::-1]))
    start = time.process_time()
    data = {"train_split": "train", "eval_split": "test"}
    assert not [*class_problems(train, evaluation, data)]
    found = with_classes(evaluation, names, place="training")
    assert found.class_names == names and found.labels[0] == 29_999
    assert time.process_time() - start < 1


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


def test_a_slice_has_these_digits_of_the_split():
    whole, tenth = (build_source({"source": "digits"}, s) for s in ("train", "train[90%:]"))
    first = round(len(whole) * 0.9)
    assert len(tenth) == len(whole) - first
    np.testing.assert_array_equal(tenth[0]["image"], whole[first]["image"])
    assert tenth.describe(0) == f"digits train image {first}"
    assert tenth.info == whole.info and missing_classes(tenth) == ()
    three = build_source({"source": "digits"}, "train[:3]")
    assert len(missing_classes(three)) >= 7
    assert "no image in this slice" in refused({"source": "digits"}, "train[9000:]")
    message = refused({"source": "digits", "eval_fraction": 0.1}, "train")
    assert message.startswith("add --config.data.eval_fraction=0, all that source=digits takes: ")
    slices = "--config.data.eval_fraction=0 --config.data.train_split='train[:90%]'"
    assert f"take slices, as in {slices}" in message
