"""The picture of a sweep: the order and scale of its axes, and its dots."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from widenet_jax.ops.sweep.axes import parse_space
from widenet_jax.ops.sweep.figures import Axis, apart, axis_of, draw_against


def axis(field: str, values: list, *space: str) -> Axis:
    return axis_of(field, [{field: value} for value in values], parse_space(space))


def test_numbers_stand_by_size_and_seeds_at_equal_distances():
    assert axis("seed", [2, 0, 1000, 2]) == Axis("seed", (0, 2, 1000), "names")
    assert axis("model.depth", [12, 2, 6]) == Axis("model.depth", (2, 6, 12), "linear")
    assert axis("rate", [0.1, 0.001, 0.01]) == Axis("rate", (0.001, 0.01, 0.1), "log")


def test_durations_of_one_unit_stand_by_size():
    values = ("5 epochs", "20 epochs", "100 epochs")
    assert axis("duration", [values[1], values[2], values[0]]) == Axis("duration", values, "names")
    space = f"duration={','.join(values[::-1])}"
    assert axis("duration", list(values), space).values == values
    mixed = ["20 epochs", "5 steps"]
    assert axis("duration", mixed).values == tuple(mixed)  # as given


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


def test_labels_are_plain_decimals(tmp_path: Path, drawn):
    """Labels of a grid are its values; those of a search are round numbers between them."""
    grid = [{"rate": rate, "accuracy": 0.5} for rate in (1e-5, 1e-4, 0.003)]
    found = [{"rate": rate, "accuracy": 0.5} for rate in (0.00021, 0.000211, 0.019)]
    space = parse_space(["rate=log:1e-4:3e-2"])
    for rows, known in ((grid, {}), (found, space)):
        draw_against(rows, [axis_of("rate", rows, known)], "accuracy", tmp_path / "axes.png")
    panels = [figure.axes[0] for figure in drawn]
    assert [panel.get_xscale() for panel in panels] == ["log", "log"]
    texts = [[t.get_text() for t in p.xaxis.get_ticklabels(which="both")] for p in panels]
    assert texts[0] == ["0.00001", "0.0001", "0.003"]
    assert {"0.0005", "0.001", "0.01"} <= set(texts[1]) and "0.0211" not in texts[1]


def test_means_are_named_once_beside_the_panels(tmp_path: Path, drawn):
    rows = [{"a": 1, "b": b, "accuracy": 0.5} for b in ("x", "y")]
    axes = [axis_of(field, rows, {}) for field in ("a", "b")]
    draw_against(rows, axes, "accuracy", tmp_path / "axes.png")
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["mean"]
    assert all(panel.get_legend() is None for panel in drawn[0].axes)
    assert drawn[0].axes[1].get_xlim() == (-0.5, 1.5)  # room for the names


def test_a_row_without_the_field_is_left_out(tmp_path: Path):
    rows = [{"rate": 1, "accuracy": 0.5}, {"accuracy": 0.9}]
    draw_against(rows, [axis_of("rate", rows, {})], "accuracy", tmp_path / "axes.png")
    assert len(dots(tmp_path / "axes.png", 0, 1)) == 1
    assert len(pixels_of(tmp_path / "axes.png", ORANGE)) == 0  # nothing to average


def test_labels_only_where_there_is_room():
    assert apart([1, 2, 3])
    assert apart([5])
    assert not apart([1.0, 1.01, 3])
