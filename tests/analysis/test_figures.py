"""The learning curve is a picture of the numbers in metrics.jsonl."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from widenet_jax.analysis.figures import draw_learning_curves

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
