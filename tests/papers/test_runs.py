"""The order of runs and their measurements, on programs that stand in for training."""

import os
import signal
from pathlib import Path

from ops import trial_program

from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.trials import Trial
from widenet_jax.papers.experiments import EXPERIMENTS, TOP_1
from widenet_jax.papers.runs import Measured, carry_out, look_at
from widenet_jax.papers.scales import SCALES, runs_of, trial_of

SCALE = SCALES["smoke"]


def trials_of(experiment, directory: Directory, seeds: list[int]) -> dict:
    return {
        run: [trial_of(run, seed, directory, "") for seed in seeds]
        for run in runs_of(SCALE, [experiment])
    }


def statuses(of: Measured) -> list[str]:
    return [outcome.status for outcome in of.outcomes]


def starts(directory: Directory, trial: Trial) -> int:
    file = Path(directory.workdir(trial)) / "starts"
    return len(file.read_text()) if file.exists() else 0


def run(trials: dict, directory: Directory):
    return carry_out(trials, directory, workers=2, command=trial_program.command)


def test_finetuning_follows_its_backbone_and_finished_runs_stay(tmp_path: Path):
    directory = Directory(tmp_path)
    trials = trials_of(EXPERIMENTS["table5"].of_sizes(["b"]), directory, [0])
    begun = []

    def command(trial: Trial, workdir: str) -> list[str]:
        backbone = trial.settings.get("init_from")
        begun.append(backbone is None or (Path(backbone) / "result.json").exists())
        return trial_program.command(trial, workdir)

    for _ in range(2):
        measured, stopped = carry_out(trials, directory, workers=2, command=command)
        assert not stopped
        assert [of.values(TOP_1) for of in measured.values()] == [[50.0]] * 6
    assert begun == [True] * 6
    assert look_at(trials, directory) == measured


def test_runs_wait_where_their_backbone_failed(tmp_path: Path):
    directory = Directory(tmp_path)
    trials = trials_of(EXPERIMENTS["table5"].of_sizes(["b"]), directory, [13])
    measured, stopped = run(trials, directory)
    found = [statuses(of) for of in measured.values()]
    assert found == [["failed"]] * 3 + [["waiting"]] * 3
    assert not stopped


def test_divergence_is_a_result_and_is_not_repeated(tmp_path: Path):
    directory = Directory(tmp_path)
    trials = trials_of(EXPERIMENTS["table5"].of_sizes(["b"]), directory, [0, 14])
    for _ in range(2):
        measured, _ = run(trials, directory)
        for of in measured.values():  # the backbones, and the runs finetuned from them
            assert [str(value) for value in of.values(TOP_1)] == ["50.0", "nan"]
            assert statuses(of) == ["done", "diverged"]
    first = [trial for run_, of in trials.items() if not run_.backbone for trial in of]
    assert [starts(directory, trial) for trial in first] == [1] * 6


def test_nothing_starts_after_a_stop(tmp_path: Path):
    """Ctrl-C comes while the last backbone ends by itself: the runs finetuned from it wait."""
    directory = Directory(tmp_path)
    trials = trials_of(EXPERIMENTS["table5"].of_sizes(["b"]), directory, [0])

    def command(trial: Trial, workdir: str) -> list[str]:
        if "vit_moe" not in trial.config:
            os.kill(os.getpid(), signal.SIGINT)
        return trial_program.command(trial, workdir)

    measured, stopped = carry_out(trials, directory, workers=3, command=command)
    assert stopped
    assert [statuses(of) for of in measured.values()][3:] == [["waiting"]] * 3
