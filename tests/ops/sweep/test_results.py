"""Results of a sweep: rows, tables, means over seeds, exit codes, pictures."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from widenet_jax.config.imports import NAMED
from widenet_jax.ops.sweep.axes import product, sweep
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.results import Results, draw_against
from widenet_jax.ops.sweep.trials import Outcome, exit_code, expand


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(tmp_path / "sweep")
    directory.make()
    return directory


def outcomes_of(directory: Directory, scores=(0.5, 0.7, 0.9, None)) -> list[Outcome]:
    """Depths 1 and 2 with seeds 0 and 1: three trials are done, one was pruned at 0.1."""
    settings = product([sweep("model.mlp_dim", [1, 2]), sweep("seed", [0, 1])])
    found = []
    for trial, score in zip(expand("configs/digits.py", settings), scores, strict=True):
        workdir = Path(directory.workdir(trial))
        workdir.mkdir()
        record = {"step": 5, "split": "eval", "accuracy": score or 0.1, "cross_entropy": 1.0}
        (workdir / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        result = {"test_accuracy": score, "params_sha256": "ab", "expert_load": [0.5, 0.5]}
        ended = ("done", 0, "", result) if score else ("pruned", 143)
        found.append(Outcome(trial, *ended))
    return found


@pytest.fixture
def outcomes(directory: Directory) -> list[Outcome]:
    return outcomes_of(directory)


def rows_of_csv(directory: Directory) -> list[dict]:
    return list(csv.DictReader((directory.path / "results.csv").open()))


def test_the_csv_has_a_row_for_each_trial_the_best_first(outcomes, directory):
    Results(outcomes, directory).write()
    rows = rows_of_csv(directory)
    assert [row["test_accuracy"] for row in rows] == ["0.9", "0.7", "0.5", ""]
    assert [(row["model.mlp_dim"], row["seed"]) for row in rows] == [
        ("2", "0"), ("1", "1"), ("1", "0"), ("2", "1"),
    ]  # fmt: skip
    assert rows[0]["params_sha256"] == "ab"
    assert (rows[3]["status"], rows[3]["last_eval_accuracy"]) == ("pruned", "0.1")
    assert "expert_load" not in rows[0]
    one_panel = cv2.imread(str(directory.path / "sweep.png")).shape
    assert one_panel[1] == 5 * 120  # an inch, and four for the field; seeds have none
    assert cv2.imread(str(directory.path / "learning_curves.png")).shape[1] == 10 * 120


def test_means_over_seeds(outcomes, directory):
    """0.5 and 0.7: 12.706 standard errors of 0.1; a seed's 95% are over its 20 images."""
    one, two = Results(outcomes, directory).over_seeds()
    assert one == {"model.mlp_dim": 2, "seeds": 1, "mean": 0.9, "std": None, "interval": None}
    interval = pytest.approx((-0.6706, 1.8706), abs=1e-4)
    spread = {"std": pytest.approx(0.02**0.5), "interval": interval}
    assert two == {"model.mlp_dim": 1, "seeds": 2, "mean": 0.6} | spread
    for outcome in outcomes:
        outcome.result |= {"unit": "images", "test_images": 20, "split": "val[:50%]"}
    trials, over_seeds = Results(outcomes, directory).report().split("\n\n")[:2]
    assert trials.splitlines()[0].split()[4:6] == ["val_accuracy", "95%"]
    assert "0.9           0.699 to 0.9721" in trials  # by hand: (0.9960 -+ 0.1627) / 1.1921
    assert over_seeds.splitlines()[1].split()[-1] == "95%"
    assert over_seeds.splitlines()[3].endswith("-0.6706 to 1.871")


def test_differences_are_paired_by_seed(directory):
    """0.9 to 0.92 and 0.3 to 0.34: 0.03, 12.706 standard errors of 0.01; t = 3, p = 0.2048."""
    outcomes = outcomes_of(directory, (0.9, 0.3, 0.92, 0.34))
    results = Results(outcomes, directory)
    (row,) = results.differences()
    interval = pytest.approx((-0.09706, 0.15706), abs=1e-4)
    assert row == {"model.mlp_dim": 2, "seeds": 2, "difference": pytest.approx(0.03)} | {
        "interval": interval, "p": pytest.approx(0.2048, abs=1e-3),
    }  # fmt: skip
    table = results.report().split("\n\n")[2].splitlines()
    assert table[0].startswith("differences from model.mlp_dim=1, paired by seed (p: t-test")
    assert table[0].endswith("; higher is better")
    assert table[2].split() == ["2", "2", "0.03", "-0.09706", "to", "0.1571", "0.2048", "undecided"]
    assert [results.verdict(row | {"p": p}) for p in (0.04, None)] == ["better", ""]
    assert results.verdict({"difference": -0.03, "p": 0.04}) == "worse"
    assert Results(outcomes[:3], directory).differences() == []  # one seed in common
    outcomes[3].result["test_accuracy"] = 0.32  # as much better as the other seed, but for rounding
    results = Results(outcomes, directory)
    (row,) = results.differences()
    assert (row["p"], row["interval"]) == (None, None)
    table = results.report().split("\n\n")[2].splitlines()
    assert table[2].split() == ["2", "2", "0.02", "no", "spread"]


def test_seeds_without_spread_have_no_interval(directory):
    """Two seeds of 0.224, and a single one."""
    outcomes = outcomes_of(directory, (0.224, 0.224, 0.2, None))
    results = Results(outcomes, directory)
    found = [(row["std"], row["interval"]) for row in results.over_seeds()]
    assert found == [(0, None), (None, None)]
    table = results.report().split("\n\n")[1].splitlines()
    assert [line.split()[-2:] for line in table[2:]] == [["no", "spread"], ["one", "seed"]]


def test_the_best_setting_has_the_best_mean_over_seeds(directory, monkeypatch):
    """Depth 1 has the best trial, 0.9, and the mean 0.6; depth 2 has the mean 0.75."""
    outcomes = outcomes_of(directory, (0.9, 0.3, 0.7, 0.8))
    results = Results(outcomes, directory)
    monkeypatch.setitem(NAMED, "/mine.py", "mine.py")
    best = results.best()
    assert (best["setting"], best["seeds"], best["mean"]) == ({"model.mlp_dim": 2}, 2, 0.75)
    assert best["trial"] == outcomes[3].trial.name and best["test_accuracy"] == 0.8
    assert " --import=/mine.py --config=" in best["command"]
    assert "mean over seeds 0.75 (2), this one test_accuracy 0.8\n" in results.report()
    assert results.chosen_on_test() == ""
    for outcome in outcomes:
        outcome.result["split"] = "test[:90%]"
    warning = "best of 2 settings was chosen on the split test[:90%]"
    assert warning in Results(outcomes, directory).report()
    assert Results(outcomes[:2], directory).chosen_on_test() == ""  # two seeds of one setting


def test_settings_that_tie_are_named(directory):
    """By their means over seeds, and without seeds by their trials."""
    outcomes = outcomes_of(directory, (0.5, 0.75, 0.75, 0.5))
    results = Results(outcomes, directory)
    assert results.best()["ties"] == ["model.mlp_dim=2"]
    assert "\n\nexactly as good: model.mlp_dim=2" in results.report()
    for scores, ties in (((0.5, 0.9, 0.9), ["model.mlp_dim=2"]), ((0.9, 0.5, 0.7), [])):
        for outcome, score in zip(outcomes, scores, strict=False):
            outcome.result["test_accuracy"] = score
        alone = [outcomes[1], outcomes[2]]
        for outcome in alone:
            outcome.trial.settings.pop("seed", None)
        found = Results(alone, directory)
        assert found.best()["ties"] == ties and ("exactly" in found.report()) == bool(ties)


def test_the_report_names_the_failed_and_what_is_left(outcomes, directory):
    place = f"tables and pictures  {directory.path}"
    text = Results(outcomes, directory).report()
    assert f"{place}\n" in text and "not among" not in text  # a pruned trial is not left
    outcomes[0].status, outcomes[0].exit_code, outcomes[0].message = "failed", 2, "error: no"
    text = Results(outcomes, directory).report()
    assert f"{outcomes[0].trial.name}, exit code 2: error: no" in text
    assert str(directory.log(outcomes[0].trial)) in text
    lines = text.splitlines()
    assert lines[0].split() == [
        "trial", "model.mlp_dim", "seed", "status", "test_accuracy", "params", "last_eval_accuracy",
    ]  # fmt: skip
    assert lines[1].split()[-1] == "0.9" and "std" in text
    for outcome, status in zip(outcomes, ("stopped", "waiting", "waiting", "failed"), strict=True):
        outcome.status, outcome.result = status, {}
    results = Results(outcomes, directory)
    left = "not among the results yet: 1 stopped, 2 waiting; run the same command again to resume"
    assert results.report().splitlines()[-3:] == [left, "", place]
    results.write()
    assert [path.name for path in directory.path.iterdir() if path.suffix] == ["results.csv"]
    assert exit_code(outcomes, stopped=False) == 143
    assert exit_code(outcomes[1:], stopped=False) == exit_code(outcomes[3:], stopped=False) == 3
    assert exit_code(outcomes[1:3], stopped=False) == 0
    assert exit_code([], stopped=True) == 143


def test_few_values_stand_at_equal_distances(tmp_path: Path, drawn):
    """Of ten rates over two decades the scale is logarithmic; the mean at 0.1 is 1.5."""
    rates = [0.1, 0.01, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.1]
    seeds = [2, 0, 1000, 2, 0, 2, 0, 2, 0, 2]
    pairs = zip(rates, seeds, strict=True)
    rows = [{"rate": r, "seed": s, "score": i % 8 + 1} for i, (r, s) in enumerate(pairs)]
    rows = [*rows, {"rate": 0.009, "score": 0}]
    draw_against(rows, ["rate", "seed"], "score", tmp_path / "a", label="valid_score")
    rate, seed = drawn[0].axes
    assert rate.get_ylabel() == "valid score"
    assert rate.get_xscale() == "log"
    assert rate.lines[-1].get_xydata().tolist()[-1] == [0.1, 1.5]
    assert [text.get_text() for text in seed.get_xticklabels()] == ["0", "2", "1000"]


def intervals(panel) -> list[float]:
    """Returns the place, the lower and the upper end of each interval of a panel, end to end."""
    lines = [line for of in panel.collections for line in of.get_segments()]
    return [number for low, high in lines for number in (low[0], low[1], high[1])]


@pytest.mark.parametrize(
    ("scores", "found", "legend"),
    [
        (
            (0.5, 0.7, 0.9, None),
            [0, -0.6706, 1.8706],  # by hand above
            ["95% interval of the mean over seeds", "mean"],
        ),
        ((0.224, 0.224, 0.226, 0.226), [], ["mean"]),
        # Wilson's by hand: (0.9960 -+ 0.1627) / 1.1921, and 0.5 -+ 0.2007.
        ((0.9, 0.5), [0, 0.699, 0.9721, 1, 0.2993, 0.7007], ["95% interval over examples"]),
    ],
)
def test_the_picture_has_intervals(
    scores: list, found: list, legend: list, directory: Directory, drawn
):
    """Over seeds; of single accuracies over their 20 images; none without spread."""
    each = 4 // len(scores)  # 2: one seed a width, of which the sweep has no field
    scores = [score for score in scores for _ in range(each)]
    outcomes = outcomes_of(directory, scores)[::each]
    for outcome in outcomes:
        outcome.result |= {"unit": "images", "test_images": 20}
        if each == 2:
            outcome.trial.settings.pop("seed")
    of, out = Results(outcomes, directory), directory.path / "a"
    draw_against(of.done, ["model.mlp_dim"], of.metric, out, of.bars(), label="a")
    (panel,) = drawn[0].axes
    assert intervals(panel) == pytest.approx(found, abs=1e-4)
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == legend
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "2"]
    assert [text.get_text() for text in panel.texts] == ["no spread"] * (2 * (not found))
    assert panel.lines[-1].get_linestyle() == "None"  # two settings make no curve
    if not found:  # else 0.002 would fill the axis
        assert np.ptp(panel.get_ylim()) > 0.1 * 0.226


def test_settings_of_a_value_stand_side_by_side(tmp_path: Path, drawn):
    """At each depth both widths have a place, in the same order."""
    pairs = [(1, "b"), (1, "a"), (2, "a"), (2, "b")]
    rows = [{"depth": d, "width": w, "score": d, "interval": (d - 1, d + 1)} for d, w in pairs]
    draw_against(rows, ["depth", "width"], "score", tmp_path / "a", rows, label="score")
    depth, _ = drawn[0].axes
    assert intervals(depth)[::3] == pytest.approx([-0.15, 0.15, 1.15, 0.85])
    assert [*depth.lines[0].get_xdata()] == intervals(depth)[::3]


def test_a_setting_without_the_field_is_left_out_of_its_panel(tmp_path: Path, drawn):
    rows = [{"score": score, "interval": (0.1, 0.9)} for score in (0.5, 0.6)]
    bars = [rows[0] | {"depth": None}, rows[1] | {"depth": 2}]
    shown = [rows[0], rows[1] | {"depth": 2}]
    draw_against(shown, ["depth"], "score", tmp_path / "a", bars, label="score")
    (panel,) = drawn[0].axes
    assert len(panel.lines[0].get_xdata()) == 1
