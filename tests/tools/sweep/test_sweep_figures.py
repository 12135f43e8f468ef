"""The picture of a sweep: the order and scale of its axes, and its dots."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from widenet_jax.tools.sweep.axes import parse_space
from widenet_jax.tools.sweep.figures import Axis, apart, axis_of, draw_against


def axis(field: str, values: list, *space: str) -> Axis:
    return axis_of(field, [{field: value} for value in values], parse_space(space))


def test_numbers_stand_by_size_and_seeds_at_equal_distances():
    assert axis("seed", [2, 0, 1000, 2]) == Axis("seed", (0, 2, 1000), "names")
    assert axis("model.depth", [12, 2, 6]) == Axis("model.depth", (2, 6, 12), "linear")
    assert axis("rate", [0.1, 0.001, 0.01]) == Axis("rate", (0.001, 0.01, 0.1), "log")


def test_names_stand_in_the_order_given():
    assert axis("variant", ["b", "c", "a", "b"]).values == ("b", "c", "a")
    assert axis("augment.flip", [True, False]) == Axis("augment.flip", (True, False), "names")
    # A search proposes in any order; the space says which one was given.
    assert axis("model.pool", ["mean", "token"], "model.pool=token,mean").values == (
        "token", "mean",
    )  # fmt: skip
    assert axis("augment.flip", [False, True], "augment.flip=true,false").values == (True, False)


@pytest.mark.parametrize(
    ("space", "scale"),
    [("a=log:1:2", "log"), ("a=float:0.1:9", "linear"), ("a=int:1:99", "linear")],
)
def test_the_scale_is_that_of_the_search_space(space: str, scale: str):
    wide = {"log": [1.9, 1.1], "linear": [99, 1]}[scale]
    assert axis("a", wide, space) == Axis("a", tuple(wide[::-1]), scale)


def pixels_of(picture: Path, colour: tuple[int, int, int]) -> np.ndarray:
    """[N, 2] rows and columns of the pixels near a colour."""
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB).astype(int)
    return np.argwhere(np.abs(image - colour).sum(axis=-1) < 30)


ORANGE = (255, 127, 14)  # the second colour of matplotlib


def dots(picture: Path, panel: int, panels: int) -> list[float]:
    """Heights (0 the bottom, 1 the top) of the blue dots of a panel, from left to right."""
    image = cv2.imread(str(picture)).astype(int)
    blue = image[..., 0] - image[..., 2] > 40  # also where the grid shines through a dot
    width = image.shape[1] // panels
    part = blue[:, panel * width : (panel + 1) * width].astype(np.uint8)
    _, _, _, centres = cv2.connectedComponentsWithStats(part)
    return [1 - y / image.shape[0] for _, y in sorted(centres[1:].tolist())]


def test_a_panel_for_each_field_and_a_dot_for_each_row(tmp_path: Path):
    """The metric rises with the rate; the name says nothing about it."""
    rows = [
        {"rate": rate, "name": name, "accuracy": accuracy}
        for rate, name, accuracy in ((1.0, "one", 0.9), (0.01, "one", 0.1), (0.1, "two", 0.5))
    ]
    out = tmp_path / "axes.png"
    draw_against(rows, [axis_of(field, rows, {}) for field in ("rate", "name")], "accuracy", out)
    rising = dots(out, 0, 2)
    assert len(rising) == 3
    assert rising == sorted(rising)
    assert rising[1] - rising[0] == pytest.approx(rising[2] - rising[1], abs=0.01)
    means = pixels_of(out, ORANGE)  # of "one" and "two", in the right panel only
    assert len(means) > 20
    assert means[:, 1].min() > cv2.imread(str(out)).shape[1] / 2


def test_a_row_without_the_field_is_left_out(tmp_path: Path):
    rows = [{"rate": 1, "accuracy": 0.5}, {"accuracy": 0.9}]
    draw_against(rows, [axis_of("rate", rows, {})], "accuracy", tmp_path / "axes.png")
    assert len(dots(tmp_path / "axes.png", 0, 1)) == 1
    assert len(pixels_of(tmp_path / "axes.png", ORANGE)) == 0  # nothing to average


def test_labels_only_where_there_is_room():
    assert apart([1, 2, 3])
    assert apart([5])
    assert not apart([1.0, 1.01, 3])
