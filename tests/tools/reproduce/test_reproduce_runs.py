"""Runs in their order, on programs that stand in for training."""

import json
import math
import os
import signal
from pathlib import Path

import pytest
from tools import trial_program

from widenet_jax.tools.reproduce.experiments import FIGURE_2, FIGURE_4, TABLE_5
from widenet_jax.tools.reproduce.runs import Measured, carry_out, look_at
from widenet_jax.tools.reproduce.scales import SCALES, runs_of, trial_of
from widenet_jax.tools.sweep.directory import Directory
from widenet_jax.tools.sweep.runner import DONE, Outcome
from widenet_jax.tools.sweep.trials import Trial

SCALE = SCALES["smoke"]


def trials_of(experiment, directory: Directory, seeds: list[int]) -> dict:
    return {
        run: [trial_of(run, seed, directory, "") for seed in seeds]
        for run in runs_of(SCALE, [experiment])
    }


def starts(directory: Directory, trial: Trial) -> int:
    file = Path(directory.workdir(trial)) / "starts"
    return len(file.read_text()) if file.exists() else 0


def run(trials: dict, directory: Directory):
    return carry_out(trials, directory, workers=2, command=trial_program.command)


def test_finetuning_follows_its_backbone_and_finished_runs_stay(tmp_path: Path):
    directory = Directory(tmp_path)
    trials = trials_of(TABLE_5.of_sizes(["b"]), directory, [0])
    begun = []

    def command(trial: Trial, workdir: str) -> list[str]:
        backbone = trial.settings.get("init_from")
        begun.append(backbone is None or (Path(backbone) / "result.json").exists())
        return trial_program.command(trial, workdir)

    for _ in range(2):
        measured, stopped = carry_out(trials, directory, workers=2, command=command)
        assert not stopped
        assert [of.accuracies for of in measured.values()] == [[50.0]] * 6
    assert begun == [True] * 6
    assert look_at(trials, directory) == measured


def test_a_failure_keeps_back_what_is_finetuned_from_it(tmp_path: Path):
    directory = Directory(tmp_path)
    trials = trials_of(TABLE_5.of_sizes(["b"]), directory, [13])
    measured, stopped = run(trials, directory)
    statuses = [of.missing for of in measured.values()]
    assert statuses == [["failed"]] * 3 + [["waiting"]] * 3
    assert not stopped


def test_divergence_is_a_result_and_not_tried_again(tmp_path: Path):
    directory = Directory(tmp_path)
    trials = trials_of(TABLE_5.of_sizes(["b"]), directory, [0, 14])
    for _ in range(2):
        measured, _ = run(trials, directory)
        for of in measured.values():  # of the backbones, and of what would have come of them
            assert [str(accuracy) for accuracy in of.accuracies] == ["50.0", "nan"]
            assert (of.mean, of.std, of.missing) == (50.0, None, [])
    first = [trial for run_, of in trials.items() if not run_.backbone for trial in of]
    assert [starts(directory, trial) for trial in first] == [1] * 6
    carry_out(trials, directory, workers=2, command=trial_program.command, retry=True)
    assert [starts(directory, trial) for trial in first] == [1, 2] * 3


def test_what_was_handed_over_is_handed_over_again_when_asked(tmp_path: Path):
    """Of two seeds one has its result: only the other runs again."""
    directory = Directory(tmp_path)
    trials = dict(list(trials_of(FIGURE_4, directory, [0, 1]).items())[:1])
    (of,) = trials.values()
    run(dict.fromkeys(trials, of[:1]), directory)
    directory.handed_over(of[1]).touch()
    measured, _ = run(trials, directory)
    assert [found.statuses for found in measured.values()] == [["done", "handed over"]]
    measured, _ = carry_out(trials, directory, workers=2, command=trial_program.command, retry=True)
    assert [found.statuses for found in measured.values()] == [["done", "done"]]
    assert [starts(directory, trial) for trial in of] == [1, 1]


def test_nothing_starts_after_a_stop(tmp_path: Path):
    """Ctrl-C while the last backbone ends by itself: what is finetuned from it waits."""
    directory = Directory(tmp_path)
    trials = trials_of(TABLE_5.of_sizes(["b"]), directory, [0])

    def command(trial: Trial, workdir: str) -> list[str]:
        if "vit_moe" not in trial.config:
            os.kill(os.getpid(), signal.SIGINT)
        return trial_program.command(trial, workdir)

    measured, stopped = carry_out(trials, directory, workers=3, command=command)
    assert stopped
    assert [of.statuses for of in measured.values()][3:] == [["waiting"]] * 3


def test_means_over_seeds(tmp_path: Path):
    trial = Trial("t", "configs/digits.py", {})
    outcomes = [Outcome(trial, DONE, result={"test_accuracy": a, "params": 7}) for a in (0.1, 0.3)]
    found = Measured(tuple(outcomes), (), None)
    # Mean 20, deviations of 10: sqrt((100 + 100) / 1).
    assert (found.mean, found.std, found.params) == (20.0, pytest.approx(math.sqrt(200)), 7)
    none = Measured((), (), None)
    assert (none.mean, none.std, none.params) == (None, None, None)
    lost = Measured((Outcome(trial, "diverged"),), (), None)
    assert math.isnan(lost.mean) and lost.std is None


def test_speed_is_the_median_of_what_the_runs_logged(tmp_path: Path):
    directory = Directory(tmp_path)
    trials = trials_of(FIGURE_4, directory, [0, 1])
    run(trials, directory)
    for trial, rates in zip(next(iter(trials.values())), ([1.0, 30.0], [20.0]), strict=True):
        lines = [json.dumps({"step": 1, "images_per_second": rate}) for rate in rates]
        (Path(directory.workdir(trial)) / "timing.jsonl").write_text("\n".join(lines) + "\n")
    measured = list(look_at(trials, directory).values())
    assert [of.images_per_second for of in measured] == [20.0, None]


def test_training_accuracy_is_that_of_the_last_tenth_of_the_steps(tmp_path: Path):
    """Seeds of 30 % (the mean of steps 95 and 100) and of 50 %: 40 %. Evaluations do not count."""
    directory = Directory(tmp_path)
    trials = trials_of(FIGURE_2, directory, [0, 1])
    run(trials, directory)
    seeds = (
        [(50, "train", 0.9), (90, "train", 0.9), (95, "train", 0.2), (95, "eval", 1.0),
         (100, "train", 0.4)],
        [(100, "train", 0.5), (100, "eval", 1.0)],
    )  # fmt: skip
    for trial, seed in zip(next(iter(trials.values())), seeds, strict=True):
        lines = [json.dumps({"step": s, "split": of, "accuracy": a}) for s, of, a in seed]
        (Path(directory.workdir(trial)) / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    measured = list(look_at(trials, directory).values())
    assert [of.training_accuracy for of in measured] == [pytest.approx(40.0), None, None]
