"""The runner on programs that stand in for training; test_sweep.py has real runs."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ops import trial_program

from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep.axes import product, sweep
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.runner import Listed, Runner, score_of
from widenet_jax.ops.sweep.trials import Outcome, Trial, expand

DIGITS = "configs/digits.py"


def trials_of(seeds: Sequence[int], pause: float = 0.0) -> list[Trial]:
    return expand(DIGITS, sweep("seed", seeds), [f"--config.optimizer.weight_decay={pause}"])


def run(
    trials: list[Trial], path: Path, *, workers: int = 2, only: int | None = None
) -> tuple[list[Outcome], bool]:
    directory = Directory(path)
    directory.make()
    directory.remember(trials)
    source = Listed(trials, directory, only)
    stopped = Runner(source, workers=workers, command=trial_program.command).run()
    return source.outcomes(), stopped


def starts(path: Path, trial: Trial) -> int:
    file = path / trial.name / "starts"
    return len(file.read_text()) if file.exists() else 0


def test_a_failed_trial_is_reported_and_does_not_stop_the_rest(tmp_path: Path):
    trials = trials_of([0, 13, 2])
    outcomes, stopped = run(trials, tmp_path, workers=1)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert (outcomes[1].exit_code, outcomes[1].message) == (1, "failed: unlucky")
    assert outcomes[0].result["test_accuracy"] == 0.5
    assert not stopped


def test_finished_trials_are_not_started_again_and_failed_ones_are(tmp_path: Path):
    trials = trials_of([0, 13])
    run(trials, tmp_path)
    longer = trials_of([1, 13, 0])
    outcomes, _ = run(longer, tmp_path)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert [starts(tmp_path, trial) for trial in longer] == [1, 2, 1]


def test_as_many_trials_run_at_a_time_as_there_are_workers(tmp_path: Path):
    trials = trials_of(range(4), pause=0.1)
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.02):
            begun = sum(starts(tmp_path, trial) for trial in trials)
            done = sum((tmp_path / trial.name / "result.json").exists() for trial in trials)
            most = max(most, begun - done)

    watcher = threading.Thread(target=watch)
    watcher.start()
    run(trials, tmp_path, workers=2)
    ended.set()
    watcher.join()
    assert most == 2


def test_index_runs_one_and_finds_what_others_did(tmp_path: Path):
    trials = trials_of([0, 1, 2])
    run(trials, tmp_path, only=1)
    outcomes, _ = run(trials, tmp_path, only=0)
    assert [outcome.status for outcome in outcomes] == ["done", "done", "waiting"]


def test_sigterm_is_passed_on_and_the_next_call_resumes(tmp_path: Path):
    trials = trials_of([0, 1, 2], pause=0.1)
    metrics = tmp_path / trials[0].name / "metrics.jsonl"

    def stop_after_a_step() -> None:
        while not metrics.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_after_a_step).start()
    outcomes, stopped = run(trials, tmp_path)
    assert stopped
    assert [outcome.status for outcome in outcomes] == ["stopped", "stopped", "waiting"]
    saved = len(metrics.read_text().splitlines())
    outcomes, stopped = run(trials, tmp_path)
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    assert len(metrics.read_text().splitlines()) == trial_program.STEPS > saved
    assert [starts(tmp_path, trial) for trial in trials] == [2, 2, 1]


def test_a_trial_that_a_killed_sweep_left_running_is_waited_for(tmp_path: Path):
    """The lock lives as long as the trial's process, so that the trial is not started twice."""
    trials = trials_of([0], pause=0.3)
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = ['tests', 'tests/tools/sweep'];"
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


@pytest.mark.parametrize(
    ("workdirs", "words"),
    [("", "running trials save first"), ("elsewhere", "launched runs go on, and their TPUs cost")],
)
def test_a_stop_while_waiting_for_such_a_trial(tmp_path: Path, capsys, workdirs: str, words: str):
    trials = trials_of([0])
    directory = Directory(tmp_path, workdirs and str(tmp_path / workdirs))
    source = Listed(trials, directory)
    with directory.lock(trials[0]):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert Runner(source, workers=1, command=trial_program.command).run()
    assert source.outcomes()[0].status == "waiting"
    assert f"stopping: {words}" in capsys.readouterr().err


def test_a_trial_is_handed_to_a_scheduler_once(tmp_path: Path):
    trials = trials_of([0])
    directory = Directory(tmp_path)
    directory.make()
    handed = tmp_path / "handed"

    def hand_over(trial: Trial, workdir: str) -> list[str]:
        return ["bash", "-c", f"echo x >> {handed}"]

    for _ in range(2):
        source = Listed(trials, directory)
        Runner(source, workers=1, command=hand_over).run()
        assert source.outcomes()[0].status == "handed over"
    assert handed.read_text() == "x\n"
    workdir = tmp_path / trials[0].name
    workdir.mkdir()
    (workdir / "result.json").write_text(json.dumps({"test_accuracy": 0.7}))
    assert run(trials, tmp_path)[0][0].result == {"test_accuracy": 0.7}


def test_the_score_of_a_result_is_its_primary_metric_metric():
    named = {"primary_metric": {"name": "f1", "higher_is_better": True}, "test_f1": 0.51234}
    assert score_of(named | {"test_accuracy": 0.9, "split": "dev"}) == ": dev f1 0.5123"
    assert score_of({"test_accuracy": 0.9}) == ": test accuracy 0.9000"  # an earlier version's
    assert score_of({}) == ""


def test_another_sweep_in_the_same_directory(tmp_path: Path):
    settings = product([sweep("seed", [0])])
    directory = Directory(tmp_path)
    directory.make()
    trials = expand(DIGITS, settings, ["--config.model.depth=2"])
    run(trials, tmp_path)
    directory.remember(
        expand(DIGITS, settings, ["--config.model.depth=2", "--config.data.num_workers=1"])
    )
    with pytest.raises(BadInputError, match=r"holds these runs with other flags"):
        directory.remember(expand(DIGITS, settings, ["--config.model.depth=1"]))


def test_calls_at_the_same_time_write_down_all_their_trials(tmp_path: Path):
    """As the calls of a job array."""
    directory, trials = Directory(tmp_path), trials_of(range(8))
    directory.make()
    with ThreadPoolExecutor(8) as calls:
        list(calls.map(lambda trial: Directory(tmp_path).remember([trial]), trials))
    assert directory.known().keys() == {trial.name for trial in trials}


@pytest.mark.parametrize("place", ["logs/{}.lock", "{}/.lock"])
def test_flags_cannot_change_while_a_trial_starts(place: str, tmp_path: Path):
    """The locks of a sweep's process, and of a run, are held before config.json is there."""
    (before,), (after,) = trials_of([0]), trials_of([0], pause=1.0)
    directory = Directory(tmp_path)
    directory.make()
    directory.remember([before])
    lock = tmp_path / place.format(before.name)
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert directory.begun(before) and directory.any_begun()
        with pytest.raises(BadInputError, match=r"holds these runs with other flags"):
            directory.remember([after])
    assert not directory.begun(before) and not directory.any_begun()
    directory.remember([after])  # it ended before its run began


def test_where_a_sweep_can_be(tmp_path: Path):
    with pytest.raises(BadInputError, match="local directory"):
        Directory("gs://bucket/sweep")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="Not a directory"):
        Directory(tmp_path / "file").make()
