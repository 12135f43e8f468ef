"""The learning curve is a picture of the numbers in metrics.jsonl."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from widenet_jax.tools.analysis.figures import apart, draw_learning_curves, draw_metric_against

BLUE, ORANGE = (31, 119, 180), (255, 127, 14)  # the first two colours of matplotlib


def write_run(directory: Path, accuracies: list[float]) -> Path:
    directory.mkdir()
    records = [
        {"step": step, "split": split, "cross_entropy": 2.0 - a, "accuracy": a}
        for step, a in enumerate(accuracies, start=1)
        for split in ("train", "eval")
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (directory / "metrics.jsonl").write_text(text)
    return directory


def pixels_of(picture: Path, colour: tuple[int, int, int]) -> np.ndarray:
    """[N, 2] rows and columns of the pixels near a colour."""
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB).astype(int)
    return np.argwhere(np.abs(image - colour).sum(axis=-1) < 30)


def test_loss_falls_on_the_left_and_accuracy_rises_on_the_right(tmp_path: Path):
    """Where each curve ends, most of the height from where it began; rows count downwards."""
    run = write_run(tmp_path / "run", [0.1, 0.2, 0.5, 0.9])
    draw_learning_curves([run], tmp_path / "curve.png")
    found = pixels_of(tmp_path / "curve.png", BLUE)
    height, width = cv2.imread(str(tmp_path / "curve.png")).shape[:2]
    for half, high in ((found[:, 1] < width // 2, False), (found[:, 1] > width // 2, True)):
        curve = found[half]
        last = curve[curve[:, 1] == curve[:, 1].max(), 0].mean()
        assert (last < height / 2) == high
        assert np.ptp(curve[:, 0]) > 0.6 * height


def test_each_run_has_its_colour(tmp_path: Path):
    runs = [write_run(tmp_path / name, [0.1, 0.9]) for name in ("one", "two")]
    draw_learning_curves(runs, tmp_path / "both.png", names=["one", "two"])
    draw_learning_curves(runs[:1], tmp_path / "one.png")
    assert len(pixels_of(tmp_path / "both.png", ORANGE)) > 100
    assert len(pixels_of(tmp_path / "one.png", ORANGE)) == 0


def test_a_single_point_is_seen(tmp_path: Path):
    run = write_run(tmp_path / "run", [0.5])
    draw_learning_curves([run], tmp_path / "curve.png", names=["one"], splits=["train"])
    found = pixels_of(tmp_path / "curve.png", BLUE)
    width = cv2.imread(str(tmp_path / "curve.png")).shape[1]
    assert 5 < (found[:, 1] < width // 2).sum() < 100  # a dot; the legend stands on the right


def test_a_run_that_is_still_writing_and_one_without_records(tmp_path: Path):
    run = write_run(tmp_path / "run", [0.1, 0.9])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "spl')
    (tmp_path / "empty").mkdir()
    draw_learning_curves([run, tmp_path / "empty"], tmp_path / "curve.png")
    assert len(pixels_of(tmp_path / "curve.png", BLUE)) > 100


def test_names_must_be_as_many_as_runs(tmp_path: Path):
    with pytest.raises(ValueError, match="zip"):
        draw_learning_curves([tmp_path], tmp_path / "curve.png", names=["one", "two"])


def test_only_the_splits_asked_for(tmp_path: Path):
    """Without the dashes of the test curve there is no gap in the line."""
    run = write_run(tmp_path / "run", [0.1, 0.9])
    draw_learning_curves([run], tmp_path / "both.png")
    draw_learning_curves([run], tmp_path / "eval.png", splits=("eval",))
    both, alone = (len(pixels_of(tmp_path / f"{name}.png", BLUE)) for name in ("both", "eval"))
    assert 100 < alone < both


def test_many_runs_take_more_colours_than_ten(tmp_path: Path):
    runs = [write_run(tmp_path / str(i), [0.1, 0.05 * i]) for i in range(12)]
    draw_learning_curves(runs, tmp_path / "many.png", names=[str(i) for i in range(12)])
    viridis = [(68, 1, 84), (33, 145, 140)]  # its first and its middle colour
    assert all(len(pixels_of(tmp_path / "many.png", colour)) > 30 for colour in viridis)


def dots_by_column(picture: Path, panel: int, panels: int) -> list[float]:
    """Heights (0 the bottom, 1 the top) of the blue dots of a panel, from left to right."""
    image = cv2.imread(str(picture)).astype(int)
    blue = image[..., 0] - image[..., 2] > 40  # also where a dot lets the grid shine through
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
    draw_metric_against(rows, ["rate", "name"], "accuracy", out)
    rising = dots_by_column(out, 0, 2)
    assert len(rising) == 3
    assert rising == sorted(rising)
    assert rising[1] - rising[0] == pytest.approx(rising[2] - rising[1], abs=0.01)
    means = pixels_of(out, ORANGE)  # of "one" and "two", in the right panel only
    assert len(means) > 20
    assert means[:, 1].min() > cv2.imread(str(out)).shape[1] / 2


def test_a_row_without_the_field_is_left_out(tmp_path: Path):
    rows = [{"rate": 1, "accuracy": 0.5}, {"accuracy": 0.9}]
    draw_metric_against(rows, ["rate"], "accuracy", tmp_path / "axes.png")
    assert len(dots_by_column(tmp_path / "axes.png", 0, 1)) == 1
    assert len(pixels_of(tmp_path / "axes.png", ORANGE)) == 0  # nothing to average


def test_labels_only_where_there_is_room():
    assert apart([1, 2, 3])
    assert apart([5])
    assert not apart([1.0, 1.01, 3])
