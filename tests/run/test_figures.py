"""Learning curves show the numbers in metrics.jsonl."""

import json
import re
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from matplotlib.axes import Axes

from widenet_jax.run.figures import draw_learning_curves, save, subplots, write_decimals

BLUE, ORANGE = (31, 119, 180), (255, 127, 14)  # the first two colours of matplotlib

draw = partial(draw_learning_curves, metric="accuracy")


def write_run(directory: Path, accuracies: list[float]) -> Path:
    """Writes the metrics of a run with these accuracies in training and in evaluation."""
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
    """Returns rows and columns of the pixels near a colour, [N, 2]."""
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB).astype(int)
    return np.argwhere(np.abs(image - colour).sum(axis=-1) < 30)


def test_loss_falls_on_the_left_and_accuracy_rises_on_the_right(tmp_path: Path):
    """Each curve spans most of the height; rows count downwards."""
    run = write_run(tmp_path / "run", [0.1, 0.2, 0.5, 0.9])
    draw([run], tmp_path / "curve.png")
    found = pixels_of(tmp_path / "curve.png", BLUE)
    height, width = cv2.imread(str(tmp_path / "curve.png")).shape[:2]
    for half, high in ((found[:, 1] < width // 2, False), (found[:, 1] > width // 2, True)):
        curve = found[half]
        last = curve[curve[:, 1] == curve[:, 1].max(), 0].mean()
        assert (last < height / 2) == high
        assert np.ptp(curve[:, 0]) > 0.6 * height


def test_each_run_has_its_colour(tmp_path: Path):
    runs = [write_run(tmp_path / name, [0.1, 0.9]) for name in ("one", "two")]
    draw(runs, tmp_path / "both.png", names=["one", "two"])
    draw(runs[:1], tmp_path / "one.png")
    assert len(pixels_of(tmp_path / "both.png", ORANGE)) > 100
    assert len(pixels_of(tmp_path / "one.png", ORANGE)) == 0


def test_a_single_point_is_seen(tmp_path: Path):
    run = write_run(tmp_path / "run", [0.5])
    draw([run], tmp_path / "curve.png", names=["one"], splits=["train"])
    found = pixels_of(tmp_path / "curve.png", BLUE)
    width = cv2.imread(str(tmp_path / "curve.png")).shape[1]
    assert 5 < (found[:, 1] < width // 2).sum() < 100  # a dot; the legend is on the right


def test_a_run_that_is_still_writing_and_one_without_records(tmp_path: Path):
    run = write_run(tmp_path / "run", [0.1, 0.9])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "spl')
    (tmp_path / "empty").mkdir()
    draw([run, tmp_path / "empty"], tmp_path / "curve.png")
    assert len(pixels_of(tmp_path / "curve.png", BLUE)) > 100


def test_names_must_be_as_many_as_runs(tmp_path: Path):
    with pytest.raises(ValueError, match="zip"):
        draw([tmp_path], tmp_path / "curve.png", names=["one", "two"])


def test_only_the_splits_asked_for(tmp_path: Path):
    """A figure of both splits has more pixels than one of evaluation alone."""
    run = write_run(tmp_path / "run", [0.1, 0.9])
    draw([run], tmp_path / "both.png")
    draw([run], tmp_path / "eval.png", splits=("eval",))
    both, alone = (len(pixels_of(tmp_path / f"{name}.png", BLUE)) for name in ("both", "eval"))
    assert 100 < alone < both


def test_many_runs_take_more_colours_than_ten(tmp_path: Path):
    runs = [write_run(tmp_path / str(i), [0.1, 0.05 * i]) for i in range(12)]
    draw(runs, tmp_path / "many.png", names=[str(i) for i in range(12)])
    viridis = [(68, 1, 84), (33, 145, 140)]  # its first and its middle colour
    assert all(len(pixels_of(tmp_path / "many.png", colour)) > 30 for colour in viridis)


def test_the_primary_metric_metric_of_another_task(tmp_path: Path):
    """Perplexity, which only evaluation records, in a run without cross-entropy."""
    run = tmp_path / "run"
    run.mkdir()
    records = [{"step": step, "split": "train", "loss": 9.0 - step} for step in range(1, 9)]
    records += [
        {"step": step, "split": "eval", "loss": 9.0 - step, "perplexity": 100.0 - 10 * step}
        for step in range(1, 9)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    draw_learning_curves([run], tmp_path / "curve.png", metric="perplexity")
    found = pixels_of(tmp_path / "curve.png", BLUE)
    height, width = cv2.imread(str(tmp_path / "curve.png")).shape[:2]
    for half in (found[:, 1] < width // 2, found[:, 1] > width // 2):
        curve = found[half]
        assert np.ptp(curve[:, 0]) > 0.6 * height  # both axes fit their values
        last = curve[curve[:, 1] == curve[:, 1].max(), 0].mean()
        assert last > height / 2  # both metrics fall


def test_a_loss_that_no_drawn_split_records_is_left_out(tmp_path: Path):
    """A masked language model's evaluation has no total loss; no empty panel stands for it."""
    run = tmp_path / "run"
    run.mkdir()
    records = [{"step": s, "split": "train", "loss": 1.0, "mlm_loss": 1.0} for s in (1, 2)]
    records += [{"step": s, "split": "eval", "mlm_loss": 7.0 - s} for s in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    widths = []
    for splits in (("eval",), ("train", "eval")):
        picture = tmp_path / f"{len(splits)}.png"
        draw_learning_curves([run], picture, metric="mlm_loss", splits=splits)
        widths.append(cv2.imread(str(picture)).shape[1])
    assert widths[1] == 2 * widths[0]


def config_of(**sections: dict) -> str:
    """Returns a config.json with these fields."""
    data = {"train_split": "train[10%:]", "eval_split": "val"}
    return json.dumps({"data": data} | sections)


def test_the_title_says_which_splits_and_what_smoothing(tmp_path: Path, drawn):
    run = write_run(tmp_path / "run", [0.5, 0.6])
    smoothed = {"task": {"label_smoothing": 0.1}, "augment": {"mixup_alpha": 0.25}}
    (run / "config.json").write_text(config_of(**smoothed))
    draw([run], tmp_path / "a.png")
    training = "training: split train[10%:], each point one batch, "
    evaluation = "evaluation: split val"
    assert drawn[0].get_suptitle() == (
        f"{training}label smoothing 0.1, mixup 0.25\n{evaluation}"
    )  # fmt: skip
    (legend,) = (axis.get_legend() for axis in drawn[0].axes if axis.get_legend())
    assert [text.get_text() for text in legend.get_texts()] == ["train[10%:]", "val"]
    assert drawn[0].axes[0].get_ylabel() == "cross-entropy"

    other = write_run(tmp_path / "other", [0.5, 0.6])
    (other / "config.json").write_text(config_of(task={"label_smoothing": 0.0}))
    draw([run, other], tmp_path / "b.png", names=["a", "b"])
    assert "label smoothing 0.1, mixup 0.25 or targets not smoothed\n" in drawn[1].get_suptitle()
    draw([run, other], tmp_path / "c.png", names=["a", "b"], splits=("eval",))
    assert drawn[2].get_suptitle() == evaluation
    (other / "config.json").write_text(config_of(task={}))  # of a task without labels
    draw([other], tmp_path / "d.png")
    assert drawn[3].get_suptitle() == f"{training[:-2]}\n{evaluation}"


def test_the_axis_of_the_accuracy_follows_the_data(tmp_path: Path, drawn):
    draw([write_run(tmp_path / "high", [0.95, 0.97])], tmp_path / "a.png")
    draw([write_run(tmp_path / "low", [0.001, 0.004])], tmp_path / "b.png")
    (low, high), (lower, higher) = (figure.axes[1].get_ylim() for figure in drawn)
    assert 0.94 < low < 0.95 and 0.97 < high < 0.98
    assert lower < 0.001 and 0.004 < higher < 0.005


def labels(axis: Axes, side: str) -> set[str]:
    """Returns the labels of all ticks of "x" or "y"."""
    ticks = getattr(axis, f"{side}axis").get_ticklabels(which="both")
    return {tick.get_text() for tick in ticks} - {""}


def test_numbers_on_axes_are_plain(tmp_path: Path, drawn):
    """By itself matplotlib would write 1e6, +1e5 and 10^-3 here."""
    figure, (steps, rates) = subplots(1, 2, size=(8, 4))
    steps.plot([0, 3_000_000], [100_000.001, 100_000.003])
    rates.plot([2e-4, 2e-2], [1e-7, 3e-7])
    rates.set_xscale("log")
    save(figure, tmp_path / "plain.png")
    assert {"1000000", "3000000"} <= labels(steps, "x")
    assert len(labels(steps, "y")) > 2
    assert all(re.fullmatch(r"100000\.00\d+", label) for label in labels(steps, "y"))
    assert {"0.0002", "0.0005", "0.001", "0.02"} <= labels(rates, "x")
    assert all(re.fullmatch(r"0\.0000\d+", label) for label in labels(rates, "y"))
    for axis in (steps, rates):
        assert not axis.xaxis.get_offset_text().get_text()
        assert not axis.yaxis.get_offset_text().get_text()


def test_logarithmic_axes_have_decimals():
    """Within a decade every tick has a label, beyond only 1, 2 and 5."""
    labels = {}
    for high in (0.08, 50.0):
        figure, axis = subplots(size=(6, 4))
        axis.set_yscale("log")
        axis.set_ylim(0.01, high)
        write_decimals(axis.yaxis)
        figure.canvas.draw()
        ticks = axis.yaxis.get_ticklabels(which="both")
        labels[high] = {tick.get_text() for tick in ticks} - {""}
    assert {"0.01", "0.02", "0.03", "0.07"} <= labels[0.08]
    assert {"0.01", "0.02", "0.05", "0.1", "10", "20"} <= labels[50.0]
    assert not labels[50.0] & {"0.03", "30"}
