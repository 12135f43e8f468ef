"""The runner on programs that stand in for training; test_sweep.py has real runs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from ops import trial_program

from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep.axes import sweep
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.runner import Listed, Runner
from widenet_jax.ops.sweep.trials import Outcome, Trial, expand

DIGITS = "configs/digits.py"


def trials_of(seeds: Sequence[int], pause: float = 0.0) -> list[Trial]:
    return expand(DIGITS, sweep("seed", seeds), [f"--config.optimizer.weight_decay={pause}"])


def run(
    trials: list[Trial], path: Path, *, workers: int = 2, **options
) -> tuple[list[Outcome], bool]:
    source = Listed(trials, Directory(path), **options)
    stopped = Runner(source, workers=workers, command=trial_program.command).run()
    return source.outcomes(), stopped


def starts(path: Path, trial: Trial) -> int:
    file = path / trial.name / "starts"
    return len(file.read_text()) if file.exists() else 0


def test_a_failed_trial_is_reported_and_run_again_and_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """News come at every poll, and leave out trials that have printed nothing."""
    monkeypatch.setattr("widenet_jax.ops.sweep.runner.NEWS_SECONDS", -1.0)
    outcomes, stopped = run(trials_of([0, 13, 2]), tmp_path, workers=1)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert (outcomes[1].exit_code, outcomes[1].message) == (1, "failed: unlucky")
    assert outcomes[0].result["test_accuracy"] == 0.5
    assert not stopped
    assert not [
        line for line in capsys.readouterr().err.splitlines() if line.rstrip().endswith(":")
    ]
    longer = trials_of([1, 13, 0])
    outcomes, _ = run(longer, tmp_path)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert [starts(tmp_path, trial) for trial in longer] == [1, 2, 1]


def test_a_diverged_trial_is_a_result(tmp_path: Path):
    (trial,) = trials_of([14])
    for _ in range(2):
        (outcome,), _ = run([trial], tmp_path)
        assert (outcome.status, outcome.exit_code) == ("diverged", 3)
        assert outcome.message == "failed: the loss is not finite"
        assert starts(tmp_path, trial) == 1


def test_as_many_trials_run_at_a_time_as_there_are_workers(tmp_path: Path):
    """Counted as each trial starts."""
    running = []

    def command(trial: Trial, workdir: str) -> list[str]:
        begun = sum(starts(tmp_path, one) for one in source.trials)
        done = sum((tmp_path / one.name / "result.json").exists() for one in source.trials)
        running.append(1 + begun - done)
        return trial_program.command(trial, workdir)

    source = Listed(trials_of(range(4), pause=0.1), Directory(tmp_path))
    Runner(source, workers=2, command=command).run()
    assert max(running) <= 2 and len(running) == 4


def test_index_runs_one_and_finds_what_others_did(tmp_path: Path):
    trials = trials_of([0, 1, 2])
    run(trials, tmp_path, only=1)
    outcomes, _ = run(trials, tmp_path, only=0)
    assert [outcome.status for outcome in outcomes] == ["done", "done", "waiting"]


def test_sigterm_is_passed_on_and_the_next_call_resumes(tmp_path: Path, capsys):
    trials = trials_of([0, 1, 2], pause=0.1)
    metrics = tmp_path / trials[0].name / "metrics.jsonl"

    def stop_after_a_step() -> None:
        while not metrics.exists() or not starts(tmp_path, trials[1]):
            time.sleep(0.02)
        time.sleep(0.2)  # the second program answers signals soon after its start
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_after_a_step).start()
    outcomes, stopped = run(trials, tmp_path)
    assert stopped
    assert [outcome.status for outcome in outcomes] == ["stopped", "stopped", "waiting"]
    assert "stopping: running trials save first" in capsys.readouterr().err
    saved = len(metrics.read_text().splitlines())
    outcomes, stopped = run(trials, tmp_path)
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    assert len(metrics.read_text().splitlines()) == trial_program.STEPS > saved
    assert [starts(tmp_path, trial) for trial in trials] == [2, 2, 1]


def test_a_trial_that_a_killed_sweep_left_running_is_waited_for(tmp_path: Path):
    """The lock lives as long as the trial's process, so that the trial is not started twice."""
    trials = trials_of([0], pause=0.3)
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = ['tests', 'tests/ops/sweep'];"
        "import test_runner as t; t.run(t.trials_of([0], pause=0.3), Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as first:
        while not starts(tmp_path, trials[0]):
            assert first.poll() is None
            time.sleep(0.02)
        first.kill()
    assert not (tmp_path / trials[0].name / "result.json").exists()
    outcomes, _ = run(trials, tmp_path)
    assert outcomes[0].status == "done"
    assert starts(tmp_path, trials[0]) == 1


def test_a_trial_is_handed_to_a_scheduler_once(tmp_path: Path):
    (trial,) = trials_of([0])
    log = tmp_path / "handed"

    def hand_over(trial: Trial, workdir: str) -> list[str]:
        return ["bash", "-c", f"echo x >> {log}"]

    for _ in range(2):
        source = Listed([trial], Directory(tmp_path))
        Runner(source, workers=1, command=hand_over).run()
        assert source.outcomes()[0].status == "handed over"
    assert log.read_text() == "x\n"
    (tmp_path / trial.name).mkdir()
    (tmp_path / trial.name / "result.json").write_text(json.dumps({"test_accuracy": 0.7}))
    assert run([trial], tmp_path)[0][0].result == {"test_accuracy": 0.7}


def test_where_a_sweep_can_be(tmp_path: Path):
    with pytest.raises(BadInputError, match="local directory"):
        Directory("gs://bucket/sweep")
    with pytest.raises(BadInputError, match="would be taken as a wildcard"):
        Directory(tmp_path, "gs://bucket/a*", dry=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="Not a directory"):
        Directory(tmp_path / "file").make()
