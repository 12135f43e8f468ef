"""Python objects as labelled images."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
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


class Named(list):
    """Examples with the names of their classes, as torchvision's sets have them."""

    classes = ("cat", "dog")


def split(*examples: tuple, kind: type = list):
    """Returns the training split of some examples."""
    return splits_of(kind(examples), [], SOURCE, {})[0]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_threads_read_one_image_of_pillow(kind: str):
    """Pillow decodes at first use; two threads at once made an error, or of a TIFF other pixels."""
    pixels = np.kron(
        np.arange(192, dtype=np.uint8).reshape(8, 8, 3), np.ones((40, 40, 1), np.uint8)
    )
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            picture, start = Image.open(io.BytesIO(file.getvalue())), threading.Barrier(4)
            found = pool.map(lambda _: (start.wait(), read_pillow(picture, True)), range(4))  # noqa: B023
            assert all(np.array_equal(read, pixels) for _, read in found)


def test_images_of_every_kind(tmp_path):
    """Arrays with and without channels, a file, its bytes, and Pillow's, turned by its EXIF."""
    exif = Image.Exif()
    exif[0x0112] = TURNED
    file = io.BytesIO()
    Image.fromarray(np.stack([GREY] * 3, -1)).save(file, "PNG", exif=exif)
    (tmp_path / "a.png").write_bytes(file.getvalue())
    picture = Image.open(tmp_path / "a.png")
    grey = split((GREY, 0), (GREY[..., None], 1))
    for i in range(2):
        np.testing.assert_array_equal(grey[i]["image"], GREY[..., None])
    kinds = [np.stack([GREY] * 3, -1), tmp_path / "a.png", file.getvalue(), picture]
    found = split(*((image, k % 2) for k, image in enumerate(kinds)))
    array, path, data, pillow = (found[i]["image"] for i in range(4))
    np.testing.assert_array_equal(array[..., 0], GREY)
    assert path == data == file.getvalue()
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
        with pytest.raises(
            BadInputError, match=r"data\[2\] has the label 0, none of the 2 classes \(1"
        ):
            found[2]
    _, evaluation = splits_of([(GREY, "cat"), (GREY, "dog")], [(GREY, 0)], SOURCE, {})
    with pytest.raises(BadInputError, match=r"eval_data\[0\] has the label 0, none of the 2"):
        evaluation[0]


@pytest.mark.parametrize(
    ("examples", "answer"),
    [
        ([(GREY, 0, 1)], r"data\[0\] is no pair \(image, label\), and no dict with both$"),
        ([{"image": GREY, "labels": 0}], r"data\[0\] is no pair \(image, label\), and no dict"),
        ([(GREY, [0])], r"data\[0\]: its label is list \[\]; give a class's name or number"),
        ([(GREY, np.eye(2)[0])], r"data\[0\]: its label is ndarray \[2\]; give a class's"),
        ([(GREY, 0), (GREY, -1)], r"data\[1\] has the label -1; labels are all names"),
        ([(GREY, 0), (GREY, "cat")], r"data\[1\] has the label 'cat'; .* or all whole numbers"),
        ([], "data: has no example"),
        ([(GREY.astype(float), 0)], r"data\[0\]: an image is an array float64 \[8, 8, 1\]"),
        ([("nowhere.jpg", 0)], r"data\[0\]: nowhere.jpg: No such file"),
    ],
)
def test_mistakes_name_the_example(examples, answer):
    with pytest.raises(BadInputError, match=answer):
        split(*examples)[0]


def test_an_error_of_the_objects_code_has_its_index():
    class Failing(list):
        def __getitem__(self, index: int):
            return super().__getitem__(index) if index < 1 else {}["shard"]

    with pytest.raises(BadInputError, match=r"data\[1\] cannot be read: KeyError: 'shard'"):
        split((GREY, 0), (GREY, 1), kind=Failing)


def test_a_single_class_is_refused():
    with pytest.raises(BadInputError, match=r"one class only \(0\); a classifier needs two$"):
        open_data(SOURCE, splits=([(GREY, 0)], [(GREY, 0)]))


def test_all_images_have_as_many_channels():
    """Else the model that was built for the first one fails at another, in the middle of a run."""
    colours = np.stack([GREY] * 3, -1)
    words = r"\[1\]: an image with 3 channels, and data\[0\] has 1"
    with pytest.raises(BadInputError, match=f"data{words}"):
        split((GREY, 0), (colours, 1))[1]
    with pytest.raises(BadInputError, match=f"eval_data{words}"):
        splits_of([(GREY, 0)], [(GREY, 0), (colours, 0)], SOURCE, {})[1][1]
    with pytest.raises(BadInputError, match=r"data\[1\]: an image with 1 channels"):
        split(("a.jpg", 0), (GREY, 0))[1]


def test_two_arrays_are_no_pairs():
    arrays = np.stack([GREY, GREY, GREY]), np.zeros(3, int)
    with pytest.raises(BadInputError, match=r"for two arrays give data=list\(zip\(images, labels"):
        splits_of(arrays, arrays, SOURCE, {})


def test_another_class_than_those_of_the_training_split():
    _, evaluation = splits_of([(GREY, "cat")], [(GREY, "cow")], SOURCE, {})
    with pytest.raises(BadInputError, match=r"eval_data\[0\] has the label 'cow', none of the 1"):
        evaluation[0]
    _, absent = splits_of([(GREY, 0)], [("nowhere.jpg", 0)], SOURCE, {})
    with pytest.raises(BadExampleError):  # which a run may skip
        absent[0]


def test_a_class_without_a_training_example_is_refused():
    """As of a folder, where the labels are read."""
    words = r"no example of 1 of 3 classes \(0\); name the classes by an attribute data.classes, or"
    with pytest.raises(BadInputError, match=words):
        open_data(SOURCE, splits=([(GREY, 1), (GREY, 2)], [(GREY, 1)]))


def test_named_classes_without_an_example_are_told():
    """Of lists; other objects are not read for it."""
    named = type("Named", (list,), {"classes": ("cat", "cow", "dog")})
    data = open_data(SOURCE, splits=(named([(GREY, "dog"), (GREY, 0)]), [(GREY + 1, "dog")]))
    splits = (("train", data.train), ("test", data.eval))
    told = "train: 2 images, 3 classes, none of cow; test: 1 images, none of cat, cow"
    assert overview(splits, "images") == told
    read = lambda self, index: [(GREY, "dog"), (GREY, 0)][index]  # noqa: E731
    named = type("Read", (list,), {"classes": ("cat", "cow", "dog"), "__getitem__": read})
    data = open_data(SOURCE, splits=(named([7, 8]), [(GREY + 1, "dog")]))
    splits = (("train", data.train), ("test", data.eval))
    told = "train: 2 images, 3 classes; test: 1 images, none of cat, cow"
    assert overview(splits, "images") == told


def test_classes_of_the_evaluation_split_go_by_name():
    """In another order, and with one less; one more is refused."""

    def labels(*classes: str) -> list[int]:
        evaluation = type("Named", (list,), {"classes": classes})([(GREY, 0), (GREY, "dog")])
        source = open_data(SOURCE, splits=(Named([(GREY, 0), (GREY, 1)]), evaluation)).eval
        return [source[i]["label"] for i in range(2)]

    assert labels("cat", "dog") == [0, 1]
    assert labels("dog", "cat") == labels("dog") == [1, 1]
    with pytest.raises(BadInputError, match=r"no example of 1 of 3 classes \(cow\)"):
        labels("cow", "dog")


def test_classes_may_be_tuples_of_synonyms():
    """As of torchvision's ImageNet, where a bird and a machine are both ("crane",)."""
    classes = [("tench", "Tinca tinca"), ("crane",), ("hen",), ("crane",)]
    kind = type("ImageNet", (list,), {"classes": classes})
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
    with pytest.raises(
        BadInputError, match=r"objects of Python code, which calls widenet_jax.trai"
    ):
        build_source(config.data, "train")
