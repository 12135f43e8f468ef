"""Rows, tables, means over seeds, exit codes, pictures."""

import csv
import json
from pathlib import Path

import cv2
import pytest

from widenet_jax.tools.sweep import results
from widenet_jax.tools.sweep.axes import product, sweep
from widenet_jax.tools.sweep.directory import Directory
from widenet_jax.tools.sweep.runner import Outcome
from widenet_jax.tools.sweep.trials import expand


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    made = Directory(tmp_path)
    made.make()
    return made


@pytest.fixture
def outcomes(directory: Directory) -> list[Outcome]:
    """depth 1 and 2 with seeds 0 and 1: three done, one pruned."""
    settings = product([sweep("model.depth", [1, 2]), sweep("seed", [0, 1])])
    found = []
    for trial, accuracy in zip(
        expand("configs/digits.py", settings), (0.5, 0.7, 0.9, None), strict=True
    ):
        workdir = Path(directory.workdir(trial))
        workdir.mkdir()
        record = {"step": 5, "split": "eval", "accuracy": accuracy or 0.1, "cross_entropy": 1.0}
        (workdir / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        result = {"test_accuracy": accuracy, "params_sha256": "ab", "expert_load": [0.5, 0.5]}
        found.append(
            Outcome(trial, "done", 0, result=result) if accuracy else Outcome(trial, "pruned", 143)
        )
    return found


def test_the_csv_has_a_row_a_trial_the_best_first(outcomes, directory):
    results.write(outcomes, directory)
    rows = list(csv.DictReader((directory.path / "results.csv").open()))
    assert [row["test_accuracy"] for row in rows] == ["0.9", "0.7", "0.5", ""]
    assert [(row["model.depth"], row["seed"]) for row in rows] == [
        ("2", "0"), ("1", "1"), ("1", "0"), ("2", "1"),
    ]  # fmt: skip
    assert rows[0]["params_sha256"] == "ab"
    assert (rows[3]["status"], rows[3]["last_eval_accuracy"]) == ("pruned", "0.1")
    assert "expert_load" not in rows[0]


def test_means_over_seeds(outcomes, directory):
    rows = results.rows_of(outcomes, directory)
    one, two = results.over_seeds(rows, ["model.depth", "seed"])
    assert one == {"model.depth": 2, "seeds": 1, "mean": 0.9, "std": None}
    assert two == {"model.depth": 1, "seeds": 2, "mean": 0.6, "std": pytest.approx(0.02**0.5)}
    assert results.over_seeds(rows, ["model.depth"]) == []


def test_the_report_names_the_failed_and_their_logs(outcomes, directory):
    outcomes[0].status, outcomes[0].exit_code, outcomes[0].message = "failed", 2, "error: no"
    text = results.report(outcomes, directory)
    assert f"{outcomes[0].trial.name}, exit code 2: error: no" in text
    assert str(directory.log(outcomes[0].trial)) in text
    lines = text.splitlines()
    assert lines[0].split() == [
        "trial", "model.depth", "seed", "status", "test_accuracy", "params", "last_eval_accuracy",
    ]  # fmt: skip
    assert "90.00%" in lines[1]
    assert "std" in text


def test_exit_codes(outcomes):
    assert results.exit_code(outcomes, stopped=False) == 0
    assert results.exit_code(outcomes, stopped=True) == 143
    outcomes[0].status = "failed"
    assert results.exit_code(outcomes, stopped=False) == 3
    outcomes[1].status = "stopped"
    assert results.exit_code(outcomes, stopped=False) == 143


def test_a_picture_of_each_axis_and_the_curves(outcomes, directory):
    results.write(outcomes, directory)
    two_panels = cv2.imread(str(directory.path / "sweep.png")).shape
    assert two_panels[1] == 9 * 120  # an inch and four for each axis
    assert cv2.imread(str(directory.path / "learning_curves.png")).shape[1] == 14 * 120


def test_no_picture_before_a_trial_is_done(outcomes, directory):
    results.write(outcomes[3:], directory)
    assert not (directory.path / "sweep.png").exists()
    assert (directory.path / "results.csv").exists()
