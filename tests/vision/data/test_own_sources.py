"""A user's own source of labelled images: each mistake is one line that says where it is."""

import dataclasses

import numpy as np
import pytest
from small_runs import small_config

from widenet_jax.data.blocks import read_example
from widenet_jax.data.contract import OF_THE_RUN
from widenet_jax.data.labelled import LabelledImages, relabelled
from widenet_jax.data.sources import open_data
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.specs import TASKS, SourceSpec
from widenet_jax.vision.spec import CLASSIFICATION

IMAGE = np.arange(64, dtype=np.uint8).reshape(8, 8)
CIRCULAR: list = []
CIRCULAR.append(CIRCULAR)
NAMES = {"class_names": ["a", "b"]}
GOOD = {"image": IMAGE[..., None], "label": 1}


class Own:
    def __init__(self, example=GOOD, info=None, length=2):
        self.example, self.length = example, length
        self.info = NAMES if info is None else info

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.example

    def describe(self, index):
        return f"own {index}"


def opened(source, monkeypatch: pytest.MonkeyPatch, **fields):
    spec = SourceSpec(lambda data, split, info: source)
    monkeypatch.setitem(CLASSIFICATION.sources, "own", spec)
    return open_data(small_config(**{"data.source": "own", **fields}))


def test_a_good_source_is_opened(monkeypatch: pytest.MonkeyPatch):
    """With labels of any whole type, and grey images without the axis of channels."""
    for label in (1, np.int64(1), np.array(1), np.uint8(1)):
        data = opened(Own(GOOD | {"image": IMAGE, "label": label}), monkeypatch)
        row = data.eval_transform(read_example(data.eval, 0), np.random.default_rng(0))
        assert row["image"].shape == (8, 8, 1) and row["label"] == 1
        assert row["label"].dtype == np.int32 and data.data_info.example["label"].shape == ()


LABELS = [(2, "2"), (-1, "-1"), (0.7, "0.7"), ("1", "'1'"), (np.array([1]), r"array\(\[1\]\)")]


@pytest.mark.parametrize(
    ("example", "words"),
    [
        *((GOOD | {"label": x}, rf"label is {y}; give .* number from 0 to 1$") for x, y in LABELS),
        ({"image": IMAGE}, "its label is None"),
        ({"label": 0}, "has no 'image'"),
        (GOOD | {"image": IMAGE / 255}, r"an array float64 \[8, 8, 1\]; give the bytes of a file"),
        (GOOD | {"image": np.zeros((3, 8, 8), np.uint8)}, r"an array uint8 \[3, 8, 8\]"),
        (GOOD | {"image": IMAGE[0]}, r"an array uint8 \[8\]"),
        ((IMAGE, 0), "the example is tuple; give a dict"),
        (None, "the example is NoneType; give a dict"),
    ],
)
def test_an_example_that_is_none_is_named(example, words, monkeypatch: pytest.MonkeyPatch):
    """It may be skipped, as one that cannot be read."""
    with pytest.raises(BadExampleError, match=f"^own 0: .*{words}"):
        opened(Own(example), monkeypatch)

    class Second(Own):
        def __getitem__(self, index):
            return self.example if index else GOOD

    data = opened(Second(example), monkeypatch)
    with pytest.raises(BadExampleError, match=r"^own 1: "):
        data.train_transform(read_example(data.train, 1), np.random.default_rng(0))


def test_a_label_of_no_class_is_not_counted(monkeypatch: pytest.MonkeyPatch):
    class Several(Own):
        def __getitem__(self, index):
            return GOOD | {"label": (1, -1, "1", 0, 2)[index]}

    fields = {"task.class_weights": "balanced"}
    assert opened(Several(length=5), monkeypatch, **fields).data_info.class_counts == (1, 1)


def test_a_slice_of_own_images_keeps_wrong_labels_wrong():
    """Label -1 would become that of the last class."""

    class Images(Own, LabelledImages):
        info, class_names = None, ("a", "b")

        def __init__(self):
            self.example, self.length = GOOD | {"label": -1}, 2

    with pytest.raises(BadExampleError, match=r"^own 1: its label is -1"):
        relabelled(Images(), ("b", "a"), (1, 0))[1]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"info": {}}, "its info must be a dict with class_names$"),
        ({"info": ["class_names"]}, "its info must be a dict with class_names$"),
        ({"info": {"class_names": np.array(["a", "b"])}}, "not as JSON holds it: .*ndarray"),
        ({"info": {"class_names": "ab"}}, "must be a list of names"),
        ({"info": {"class_names": ["a", "a"]}}, r"class 1 \('a'\) has the name of class 0"),
        ({"length": 2.0}, "its __len__ must return a count: 'float' object"),
        ({"length": -1}, "its __len__ must return a count: .* should return >= 0"),
        ({"info": NAMES | {"more": CIRCULAR}}, "as JSON holds it: Circular"),
        *(
            ({"info": NAMES | {key: 1}}, rf"info\['{key}'\] is a name of the run's own; rename")
            for key in (*sorted(OF_THE_RUN), "result", "environment")
        ),
    ],
)
def test_what_a_source_says_of_itself(own, words, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(BadInputError, match=f"^split train: .*{words}"):
        opened(Own(**own), monkeypatch)


def test_a_task_that_needs_no_facts_needs_a_dict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TASKS, "classification", dataclasses.replace(CLASSIFICATION, info=()))
    with pytest.raises(BadInputError, match=r"its info must be a dict with what .* or \{\}$"):
        opened(Own(info=["a", "b"]), monkeypatch)


def test_an_object_that_is_no_source(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(BadInputError, match=r"^split train is list, without info, describe; the"):
        opened([GOOD], monkeypatch)
