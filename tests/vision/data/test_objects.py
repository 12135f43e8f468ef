"""Python objects as labelled images."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from messy_photos import saved
from PIL import Image
from small_runs import small_config

from widenet_jax.config.fields import override
from widenet_jax.data.sources import build_source, open_data, overview
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.vision.data.files import read_pillow
from widenet_jax.vision.data.objects import splits_of

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)
SOURCE = small_config(**{"data.source": "python", "augment.exif_orientation": True})
TURNED = 6  # EXIF: the first row is the right side


def named(*classes: object, **more: object) -> type[list]:
    """Returns a list of examples with the names of their classes, as torchvision's sets are."""
    return type("Named", (list,), {"classes": classes, **more})


Named, ABC = named("cat", "dog"), named(*"abc")


def split(*examples: tuple, kind: type = list):
    """Returns the training split of some examples."""
    return splits_of(kind(examples), [], SOURCE, {})[0]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_threads_read_one_image_of_pillow(kind: str):
    """Pillow decodes at first use; two threads at once made an error, or of a TIFF other pixels."""
    small, scale = np.arange(192, dtype=np.uint8).reshape(8, 8, 3), np.ones((40, 40, 1), np.uint8)
    pixels = np.kron(small, scale)
    file = saved(Image.fromarray(pixels), kind, **({"lossless": True} if kind == "WEBP" else {}))
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            picture, start = Image.open(io.BytesIO(file)), threading.Barrier(4)
            found = pool.map(lambda _: (start.wait(), read_pillow(picture, True)), range(4))  # noqa: B023
            assert all(np.array_equal(read, pixels) for _, read in found)


def test_images_of_every_kind(tmp_path):
    """Arrays with and without channels, a file, its bytes, and Pillow's, turned by its EXIF."""
    exif = Image.Exif()
    exif[0x0112] = TURNED
    file = saved(Image.fromarray(COLOURS), "PNG", exif=exif)
    (tmp_path / "a.png").write_bytes(file)
    picture = Image.open(tmp_path / "a.png")
    grey = split((GREY, 0), (GREY[..., None], 1))
    for i in range(2):
        np.testing.assert_array_equal(grey[i]["image"], GREY[..., None])
    kinds = [COLOURS, tmp_path / "a.png", file, picture]
    found = split(*((image, k % 2) for k, image in enumerate(kinds)))
    array, path, data, pillow = (found[i]["image"] for i in range(4))
    np.testing.assert_array_equal(array[..., 0], GREY)
    assert path == data == file
    np.testing.assert_array_equal(pillow[..., 0], np.rot90(GREY, -1))


def test_labels_are_names_or_numbers():
    numbers = split((GREY, np.int64(2)), (GREY, 0))
    assert numbers.class_names == ("0", "1", "2") and numbers[0]["label"] == 2
    names = split((GREY, "dog"), (GREY, "cat"))
    assert names.class_names == ("cat", "dog") and names[0]["label"] == 1
    dicts = split({"image": GREY, "label": 0, "id": 7}, {"image": GREY, "label": 1})
    assert dicts[1]["label"] == 1 and dicts[1]["image"].shape == (8, 8, 1)
    named = split((GREY, 1), (GREY, "cat"), kind=Named)
    assert [named[i]["label"] for i in range(2)] == [1, 0]
    assert named.describe(1) == "data[1]"


def test_numbers_that_are_names_are_no_places():
    """Classes 1 and 2 stay two; names without `classes` have no places."""
    for classes in ([1, 2], np.array([1, 2]), (1.0, 2.0)):
        kind = type("Numbered", (list,), {"classes": classes})
        found = split((GREY, 1), (GREY, 2), (GREY, 0), kind=kind)
        assert [found[i]["label"] for i in range(2)] == [0, 1]


ZERO, ONE, COLOURS = (GREY, 0), (GREY, 1), np.stack([GREY] * 3, -1)
ARRAYS = np.stack([GREY] * 3), np.zeros(3, int)


class Tensor:
    """Has the shape and the error of PyTorch's one-hot labels."""

    shape = (2,)

    def item(self):
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


class Failing(list):
    def __getitem__(self, index: int):
        return super().__getitem__(index) if index < 1 else {}["shard"]


@pytest.mark.parametrize(
    ("train", "evaluation", "answer"),
    [
        ([(GREY, 0, 1)], [], "data[0] is no pair (image, label), and no dict with both"),
        ([{"image": GREY, "labels": 0}], [], "data[0] is no pair (image, label), and no dict with"),
        (ARRAYS, ARRAYS, "for two arrays give data=list(zip(images, labels"),
        ([(GREY, [0])], [], "data[0]: its label is list []; give a class's name or number"),
        ([(GREY, np.eye(2)[0])], [], "data[0]: its label is ndarray [2]; give a class's name or"),
        ([(GREY, Tensor())], [], "data[0]: its label is Tensor [2]; give a class's name or number"),
        ([ZERO, (GREY, -1)], [], "data[1] has the label -1; labels are all names"),
        ([ZERO, (GREY, "cat")], [], "has the label 'cat'; labels are all names of classes, or all"),
        ([], [], "data: has no example"),
        (named(1, 2)([ONE, ZERO]), [], "data[1] has the label 0, none of the 2 classes (1, 2)"),
        (Failing([ZERO, ONE]), [], "data[1] cannot be read: KeyError: 'shard'"),
        ([(GREY.astype(float), 0)], [], "data[0]: an image is an array float64 [8, 8, 1]"),
        ([("nowhere.jpg", 0)], [], "data[0]: nowhere.jpg: No such file"),
        # The model that is built for the first image would fail at another, in a run's middle.
        ([ZERO, (COLOURS, 1)], [], "data[1]: an image with 3 channels, and data[0] has 1"),
        ([(b"", 0), ONE], [], "data[1]: an image with 1 channels, and data[0] has 3"),
        ([ZERO, (b"", 1)], [], "data[1]: an image with 3 channels, and data[0] has 1"),
        ([ZERO, ONE], [(COLOURS, 0)], "eval_data[0]: an image with 3 channels, and data[0] has 1"),
        ([(GREY, "cat")], [(GREY, "cow")], "eval_data[0] has the label 'cow', none of the 1"),
        ([(GREY, "cat"), (GREY, "dog")], [ZERO], "eval_data[0] has the label 0, none of the 2"),
        ([ZERO], [ZERO], "one class only (0); a classifier needs two"),
        (
            [ONE, (GREY, 2)],
            [ONE],
            "no example of 1 of 3 classes (0); name the classes by an attrib",
        ),
        (Named([ZERO, ONE]), named("cow", "dog")([ZERO]), "no example of 1 of 3 classes (cow)"),
        (ABC([ZERO, ONE]), ABC([ONE, (GREY, 2)]), "no example of 1 of 3 classes (c)"),
        (ABC([ZERO, ONE]), named(*"cba")([ZERO, ONE]), "no example of 1 of 3 classes (c)"),
        ([ZERO, ONE], [ONE, (GREY, 2)], "eval_data[1] has the label 2, none of the 2 classes"),
    ],
)
def test_mistakes_name_the_example(train, evaluation, answer):
    with pytest.raises(BadInputError) as error:
        for source in splits_of(train, evaluation, SOURCE, {}):
            _ = [source[index] for index in range(len(source))]
        open_data(SOURCE, splits=(train, evaluation))
    assert answer in str(error.value)


def test_a_file_that_is_gone_is_an_example_that_a_run_may_skip():
    _, absent = splits_of([ZERO], [("nowhere.jpg", 0)], SOURCE, {})
    with pytest.raises(BadExampleError):
        absent[0]


def test_named_classes_without_an_example_are_told():
    """Of lists; other objects are not read for it."""
    examples = [(GREY, "dog"), (GREY, 0)]
    read = lambda self, index: examples[index]  # noqa: E731
    for more, lacking in (({}, ", none of cow"), ({"__getitem__": read}, "")):
        train = named("cat", "cow", "dog", **more)(examples)
        data = open_data(SOURCE, splits=(train, [(GREY + 1, "dog")]))
        told = f"train: 2 images, 3 classes{lacking}; test: 1 images, none of cat, cow"
        assert overview((("train", data.train), ("test", data.eval)), "images") == told


def test_classes_of_the_evaluation_split_go_by_name():
    """In another order, and with one less."""
    for classes in (("cat", "dog"), ("dog", "cat"), ("dog",)):
        evaluation = named(*classes)([(GREY, 0), (GREY, "dog")])
        source = open_data(SOURCE, splits=(Named([(GREY, 0), (GREY, 1)]), evaluation)).eval
        assert [source[i]["label"] for i in range(2)] == [int(classes[0] == "dog"), 1]


def test_classes_may_be_tuples_of_synonyms():
    """As of torchvision's ImageNet, where a bird and a machine are both ("crane",)."""
    classes = [("tench", "Tinca tinca"), ("crane",), ("hen",), ("crane",)]
    kind = named(*classes)
    train = kind([(GREY + k, k) for k in range(4)])
    data = open_data(SOURCE, splits=(train, kind([(GREY + 9, 3), (GREY + 8, 0)])))
    assert data.train.class_names == ("tench, Tinca tinca", "crane (1)", "hen", "crane (3)")
    assert [data.eval[k]["label"] for k in range(2)] == [3, 0]


def test_a_run_knows_its_examples_by_length_classes_and_content():
    def info(train: list, evaluation: list) -> dict:
        return dict(open_data(SOURCE, splits=(train, evaluation), hashed=True).data_info.info)

    one, two, other = [(GREY, 0), (GREY, 1)], [(GREY, 0)] * 2, [(GREY + 1, 0), (GREY, 1)]
    found = info(one, two)
    assert found["class_names"] == ["0", "1"] and info(list(one), list(two)) == found
    for changed in (info(other, two), info(one * 2, two), info(one, one)):
        assert changed["content_sha256"] != found["content_sha256"]
    many = [(GREY, 1)] * 2000 + one
    for k in range(0, 2000, 500):  # one other label; 64 examples are read
        assert info([*many[:k], (GREY, 0), *many[k + 1 :]], two) != info(many, two)


def test_examples_in_both_splits_are_counted():
    """The same object, the same examples anew, and a part of a list; texts have hashes."""

    class Anew:
        def __init__(self, count: int):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index: int):
            return GREY + index, index % 2

    def line(train, evaluation) -> str:
        data = open_data(SOURCE, splits=(train, evaluation))
        return overview((("train", data.train), ("test", data.eval)), "images")

    pairs = [(GREY + k, k % 2) for k in range(9)]
    for train, evaluation, count in (
        (pairs, pairs, 9),
        (pairs, pairs[2:5], 3),
        (pairs, [(image, 1 - label) for image, label in pairs[4:]], 5),
        (pairs, [(image.copy(), label) for image, label in pairs], 9),
        (Anew(80), Anew(80), 80),
    ):
        assert line(train, evaluation).endswith(f"images, {count} of them in train too")
    for evaluation in (Anew(79), [(image + 100, label) for image, label in pairs]):
        assert "too" not in line(Anew(9), evaluation)


def test_without_the_objects_other_data_must_be_named():
    config = override(SOURCE, ["--config.data.path="])  # a config that commands accept
    with pytest.raises(BadInputError, match=r"objects of Python code, which calls widenet_jax.tr"):
        build_source(config.data, "train")
