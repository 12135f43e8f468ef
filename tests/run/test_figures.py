"""Learning curves show the numbers in metrics.jsonl."""

import json
import re
import warnings
from functools import partial
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from small_runs import ROOT

from widenet_jax.config.files import load_config
from widenet_jax.run.figures import PALETTE, draw_learning_curves, raised_steps, save, subplots
from widenet_jax.text.classification import TextClassification

BLUE, ORANGE = (colour.lower() for colour in PALETTE[:2])

draw = partial(draw_learning_curves, metric="accuracy")


def write_records(directory: Path, records: list[dict]) -> Path:
    directory.mkdir()
    text = "".join(json.dumps(record) + "\n" for record in records)
    (directory / "metrics.jsonl").write_text(text)
    return directory


def write_run(directory: Path, accuracies: list[float]) -> Path:
    """Writes the metrics of a run with these accuracies in training and in evaluation."""
    both = {
        split: [
            {"step": step, "split": split, "cross_entropy": 2.0 - a, "accuracy": a}
            for step, a in enumerate(accuracies, start=1)
        ]
        for split in ("train", "eval")
    }
    return write_records(directory, both["train"] + both["eval"])


def curves(axes: Axes) -> list[tuple[str, list, list]]:
    """Returns colour, steps and values of each curve."""
    return [(to_hex(x.get_color()), [*x.get_xdata()], [*x.get_ydata()]) for x in axes.lines]


def test_loss_is_on_the_left_and_accuracy_on_the_right(tmp_path: Path, drawn):
    """Each run has a colour; each split a curve, if it is asked for."""
    runs = [write_run(tmp_path / name, [0.5, 0.75]) for name in ("one", "two")]
    draw(runs, tmp_path / "both.png", names=["one", "two"])
    draw(runs[:1], tmp_path / "one.png", splits=("eval",))
    left, right = drawn[0].axes
    assert curves(left) == [(c, [1, 2], [1.5, 1.25]) for c in (BLUE, BLUE, ORANGE, ORANGE)]
    assert curves(right) == [(c, [1, 2], [0.5, 0.75]) for c in (BLUE, BLUE, ORANGE, ORANGE)]
    marks = [line.get_marker() for line in right.lines]
    assert marks == ["o", "o", "s", "s"]
    assert curves(drawn[1].axes[1]) == [(BLUE, [1, 2], [0.5, 0.75])]
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="zip"):
        draw(runs[:1], tmp_path / "both.png", names=["one", "two"])


def test_a_run_that_is_still_writing_and_one_without_records(tmp_path: Path, drawn):
    run = write_run(tmp_path / "run", [0.25, 0.75])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "spl')
    (tmp_path / "empty").mkdir()
    draw([run, tmp_path / "empty"], tmp_path / "curve.png")
    assert [steps for _, steps, _ in curves(drawn[0].axes[1])] == [[1, 2], [1, 2], [], []]


def test_a_metric_that_only_evaluation_records(tmp_path: Path, drawn):
    """Perplexity, in a run without cross-entropy: the total loss is on the left."""
    records = [{"step": step, "split": "train", "loss": 3.0 - step} for step in (1, 2)]
    records.append({"step": 2, "split": "eval", "loss": 1.5, "perplexity": 80.0})
    run = write_records(tmp_path / "run", records)
    draw_learning_curves([run], tmp_path / "curve.png", metric="perplexity")
    left, right = drawn[0].axes
    assert curves(left) == [(BLUE, [1, 2], [2.0, 1.0]), (ORANGE, [2], [1.5])]
    assert curves(right) == [(BLUE, [], []), (ORANGE, [2], [80.0])]


def test_a_loss_that_no_drawn_split_records_is_left_out(tmp_path: Path, drawn):
    """A masked language model's evaluation has no total loss; no empty panel stands for it."""
    records = [{"step": s, "split": "train", "loss": 1.0, "mlm_loss": 1.0} for s in (1, 2)]
    records += [{"step": s, "split": "eval", "mlm_loss": 7.0 - s} for s in (1, 2)]
    run = write_records(tmp_path / "run", records)
    for splits in (("eval",), ("train", "eval")):
        draw_learning_curves([run], tmp_path / "a.png", metric="mlm_loss", splits=splits)
    assert [len(figure.axes) for figure in drawn] == [1, 2]


def test_the_legend_names_the_splits(tmp_path: Path, drawn):
    run = write_run(tmp_path / "run", [0.5, 0.6])
    data = {"train_split": "train[10%:]", "eval_split": "val"}
    (run / "config.json").write_text(json.dumps({"data": data, "task": {}, "model": {}}))
    draw([run], tmp_path / "a.png")
    draw([run, run], tmp_path / "b.png", names=["a", "b"], splits=("eval",))
    assert [to_hex(line.get_color()) for line in drawn[0].axes[0].lines] == [BLUE, ORANGE]
    legends = [legend for figure in drawn for legend in figure.legends]
    texts = [[text.get_text() for text in legend.get_texts()] for legend in legends]
    assert texts == [["train[10%:]", "val"], ["a val", "b val"]]
    for figure, legend in zip(drawn, legends, strict=True):  # it covers no point
        figure.draw_without_rendering()
        below = min(axis.get_window_extent().y0 for axis in figure.axes)
        assert legend.get_window_extent().y1 < below
    assert drawn[0].axes[0].get_ylabel() == "cross-entropy"


def test_the_legend_says_what_training_alone_does_to_labels(tmp_path: Path, drawn):
    """Each field of a task that does; long names get fewer columns."""
    run = write_run(tmp_path / "run", [0.5, 0.6])
    off = load_config(f"{ROOT}/configs/digits.py")
    with off.unlocked():
        off.imports = ["sha256:0 /moved/mine.py"]  # a legend needs no parts of a user's
    off.task.label_smoothing = off.augment.mixup_alpha = off.augment.cutmix_alpha = 0.0
    on = {"label_smoothing": 0.1, "class_weights": "balanced"}
    mixed = {"mixup_alpha": 0.2, "cutmix_alpha": 1.0}
    every = "train (smoothed labels, weighted classes, mixup, CutMix)"
    for task, augment, name in ((on, mixed, every), ({}, {}, "train")):
        config = off.copy_and_resolve_references()
        config.task.update(task)
        config.augment.update(augment)
        (run / "config.json").write_text(config.to_json())
        draw([run, run], tmp_path / "a.png", names=["WideNet-Tiny", "ViT-Tiny"])
        texts = [text.get_text() for text in drawn[-1].legends[0].get_texts()]
        assert texts == [
            f"{model} {of}" for model in ("WideNet-Tiny", "ViT-Tiny") for of in (name, "test")
        ]


def test_runs_of_one_name_are_one_curve(tmp_path: Path, drawn):
    """The mean of two seeds, in a band from the lower to the higher one; dotted: 1 of 4 classes."""
    runs = [write_run(tmp_path / str(k), [0.5, top]) for k, top in enumerate((0.6, 0.8))]
    (runs[0] / "class_names.json").write_text(json.dumps(list("abcd")))
    draw(runs, tmp_path / "a.png", names=["one", "one"], splits=("eval",))
    mean, chance = drawn[0].axes[1].lines
    assert mean.get_ydata().tolist() == pytest.approx([0.5, 0.7]) and mean.get_marker() == "o"
    assert [*chance.get_ydata()] == [0.25, 0.25]
    (band,) = drawn[0].axes[1].collections
    low, high = band.get_paths()[0].get_extents().intervaly
    assert (low, high) == pytest.approx((0.5, 0.8))


def test_guessing_far_below_the_curves_is_a_number(tmp_path: Path, drawn):
    """A line at 0.1 would leave the curve between 0.95 and 0.97 a fortieth of the axis."""
    run = write_run(tmp_path / "run", [0.95, 0.97])
    (run / "class_names.json").write_text(json.dumps(list("0123456789")))
    draw([run], tmp_path / "a.png")
    left, right = drawn[0].axes
    assert len(right.lines) == 2 and right.get_ylim()[0] > 0.9
    assert [text.get_text() for text in right.texts] == ["guessing: 0.1, below"]
    assert [text.get_text() for text in left.texts] == ["guessing: 2.303, above"]


def test_an_extension_is_marked_where_the_rate_rises_again(tmp_path: Path, drawn):
    """Not at the warm-up, and only once."""
    rates = [0.1, 0.2, 0.1, 0.0, 0.0, 0.15, 0.1]
    records = [
        {"step": k, "split": "train", "loss": 1.0, "accuracy": 0.5, "learning_rate": rate}
        for k, rate in enumerate(rates, 1)
    ]
    assert raised_steps(records) == [6]
    draw([write_records(tmp_path / "run", records)], tmp_path / "a.png")
    assert [*drawn[0].axes[0].lines[-1].get_xdata()] == [6, 6]


def test_long_titles_take_more_lines(tmp_path: Path, drawn):
    figure, axis = subplots(size=(4, 3))
    figure.suptitle("a title of many words " * 5)
    axis.set_title("a title of many words " * 5)
    save(figure, tmp_path / "a.png")
    for title in (*figure.texts, axis.title):
        box = title.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def labels(axis: Axes, side: str) -> set[str]:
    """Returns the labels of all ticks of "x" or "y"."""
    ticks = getattr(axis, f"{side}axis").get_ticklabels(which="both")
    return {tick.get_text() for tick in ticks} - {""}


def test_numbers_on_axes_are_plain(tmp_path: Path, drawn):
    """By itself matplotlib would write 1e6, +1e5 and 10^-3 here."""
    figure, (steps, rates, times) = subplots(1, 3, size=(12, 4))
    times.plot([0, 1], [0.84, 1.82])
    times.set_yscale("log")
    steps.plot([0, 3_000_000], [100_000.001, 100_000.003])
    rates.plot([2e-4, 2e-2], [1e-7, 3e-7])
    rates.set_xscale("log")
    save(figure, tmp_path / "plain.png")
    assert {"1000000", "3000000"} <= labels(steps, "x")
    assert len(labels(steps, "y")) > 2
    assert all(re.fullmatch(r"100000\.00\d+", label) for label in labels(steps, "y"))
    assert {"0.001", "0.01"} <= labels(rates, "x")
    assert {"1", "1.2", "1.4", "1.6", "1.8"} <= labels(times, "y")  # not 0.9 and 1 alone
    assert all(re.fullmatch(r"0\.0000\d+", label) for label in labels(rates, "y"))
    for axis in (steps, rates):
        assert not axis.xaxis.get_offset_text().get_text()
        assert not axis.yaxis.get_offset_text().get_text()


def test_a_loss_of_0_has_no_logarithm(tmp_path: Path, drawn):
    records = [{"step": s, "split": "train", "cross_entropy": 0.0, "accuracy": 1.0} for s in (1, 2)]
    with warnings.catch_warnings(action="error"):
        draw([write_records(tmp_path / "run", records)], tmp_path / "a.png")
    assert curves(drawn[0].axes[0])[0] == (BLUE, [1, 2], [0.0, 0.0])


def test_the_largest_class_in_place_of_guessing(tmp_path: Path, drawn):
    """Its share is what a classifier of two unequal classes reaches by one answer."""
    run = write_run(tmp_path / "run", [0.55, 0.95])
    (run / "class_names.json").write_text(json.dumps(["ant", "bee"]))
    task = TextClassification(100, 2, {}, largest_share=0.7)
    (run / "result.json").write_text(json.dumps({"baseline": task.baseline._asdict()}))
    draw([run], tmp_path / "a.png")
    texts = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert texts[-2:] == ["guessing", "share of the largest class"]  # of the left, of the right
    line = drawn[0].axes[1].lines[-1]
    assert (line.get_label(), line.get_ydata()[0]) == ("share of the largest class", 0.7)
