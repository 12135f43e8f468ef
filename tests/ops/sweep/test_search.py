"""Search by Optuna on programs that stand in for training, whose accuracy is the rate."""

import os
import shlex
import signal
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from ops import other_task, trial_program

from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep.axes import Range, parse_space
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.results import Results
from widenet_jax.ops.sweep.runner import Runner
from widenet_jax.ops.sweep.trials import Outcome, Trial

optuna = pytest.importorskip("optuna", reason="pip install -e '.[sweep]'")
from widenet_jax.ops.sweep.search import Search  # noqa: E402

DIGITS = "configs/digits.py"
RATE = "optimizer.learning_rate=log:1e-3:1"


def search(path: Path, *space: str, pause: float = 0.0, **changes) -> Search:
    options = {"sampler": "random", "total": 4, "prune": False, "seed": 0} | changes
    config = options.pop("config", DIGITS)
    flags = [f"--config.optimizer.weight_decay={pause}"]
    return Search(config, parse_space(space or (RATE,)), flags, Directory(path), **options)


def run(source: Search, workers: int = 2) -> list[Outcome]:
    with closing(source):
        Runner(source, workers=workers, command=trial_program.command).run()
        return source.outcomes()


def rates(outcomes: list[Outcome]) -> list[float]:
    return [outcome.trial.settings["optimizer.learning_rate"] for outcome in outcomes]


def test_spaces():
    space = ["config.optimizer.learning_rate=log:1e-4:1", "model.depth=int:1:3", "seed=1,2"]
    assert parse_space([*space, "model.dropout=float:0:0.5"]) == {
        "optimizer.learning_rate": Range("log", 1e-4, 1.0),
        "model.depth": Range("int", 1, 3),
        "seed": ("1", "2"),
        "model.dropout": Range("float", 0.0, 0.5),
    }


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["seed"], "FIELD=log:LOW:HIGH"),
        (["seed=int:1"], "two numbers, as in int:1:8"),
        (["a=log:x:1"], "two numbers, as in log:0.1:1"),
        (["a=log:0:1"], "above 0"),
        (["a=float:1:1"], "below the second"),
        (["a=float:0:inf"], "below the second"),
        (["a=1,2", "config.a=3,4"], "a already has a space"),
    ],
)
def test_spaces_that_cannot_be(texts: list[str], words: str):
    with pytest.raises(BadInputError, match=words):
        parse_space(texts)


def test_random_search_proposes_the_same_whether_or_not_it_was_interrupted(tmp_path: Path):
    whole = run(search(tmp_path / "whole"))
    assert [outcome.status for outcome in whole] == ["done"] * 4
    run(search(tmp_path / "parts", total=2))
    parts = run(search(tmp_path / "parts"))
    assert rates(parts) == rates(whole)
    assert len(set(rates(whole))) == 4
    assert [o.result["test_accuracy"] for o in whole] == rates(whole)
    assert rates(run(search(tmp_path / "other", seed=1, total=1))) != rates(whole)[:1]


def test_tpe_finds_better_ones_than_its_random_start(tmp_path: Path):
    # With several workers, proposals would depend on which trial ends first.
    found = rates(run(search(tmp_path, sampler="tpe", total=14), workers=1))
    assert sum(found[-5:]) / 5 > 2 * sum(found[:5]) / 5


def test_a_lower_metric_is_searched_downwards(tmp_path: Path, monkeypatch):
    """The task's primary metric, the rate here, is better where it is lower."""
    config = other_task.config(tmp_path, monkeypatch)
    source = search(tmp_path / "search", config=config)
    found = rates(run(source))
    assert source.study.best_value == min(found) < max(found)
    tpe = search(tmp_path / "tpe", config=config, sampler="tpe", total=14)
    proposed = rates(run(tpe, workers=1))
    assert sum(proposed[-5:]) < sum(proposed[:5]) / 2


def test_hopeless_trials_are_stopped_and_recorded(tmp_path: Path):
    """Some of eight trials end at one of their first evaluations, and never the best."""
    source = search(tmp_path, sampler="random", total=8, prune=True, pause=0.25)
    outcomes = run(source, workers=4)
    pruned = [outcome for outcome in outcomes if outcome.status == "pruned"]
    done = [outcome for outcome in outcomes if outcome.status == "done"]
    assert pruned
    assert len(done) + len(pruned) == 8
    assert max(rates(outcomes)) in rates(done)
    for outcome in pruned:
        assert len(source.directory.evaluations(outcome.trial)) < trial_program.STEPS
    states = [trial.state.name for trial in source.study.get_trials()]
    assert states.count("PRUNED") == len(pruned)
    again = run(search(tmp_path, sampler="random", total=8, prune=True, pause=0.25))
    assert [outcome.status for outcome in again] == [outcome.status for outcome in outcomes]


def test_a_stopped_search_resumes_the_trial_that_was_running(tmp_path: Path):
    def stop_once_it_runs() -> None:
        while not list(tmp_path.glob("*/metrics.jsonl")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_once_it_runs).start()
    stopped = run(search(tmp_path, prune=True, pause=0.1), workers=1)
    assert [outcome.status for outcome in stopped] == ["stopped"]
    whole = run(search(tmp_path, prune=False, pause=0.1, total=1))
    assert [outcome.status for outcome in whole] == ["done"]
    assert rates(whole) == rates(stopped)
    assert len((tmp_path / whole[0].trial.name / "starts").read_text()) == 2


def test_a_failed_trial_runs_again_in_the_next_call(tmp_path: Path):
    """Once in each call, until the cause of its failure is gone."""
    first = run(search(tmp_path, "seed=13,13", total=1))
    assert [(o.status, o.exit_code, o.message) for o in first] == [("failed", 1, "failed: unlucky")]
    again = run(search(tmp_path, "seed=13,13", total=2))
    assert [outcome.status for outcome in again] == ["failed"] * 2
    starts = [(tmp_path / one.trial.name / "starts").read_text() for one in again]
    assert starts == ["xx", "x"]

    def with_luck(trial: Trial, workdir: str) -> list[str]:
        words = trial_program.command(trial, workdir)
        words.remove("--config.seed=13")
        return words

    with closing(search(tmp_path, "seed=13,13", total=2)) as source:
        Runner(source, workers=1, command=with_luck).run()
        told = [(o.status, o.exit_code, o.message) for o in source.outcomes()]
    assert told == [("done", None, "")] * 2


def test_a_trial_that_diverged_is_a_result(tmp_path: Path):
    outcomes = run(search(tmp_path, "seed=14,14", total=1))
    again = run(search(tmp_path, "seed=14,14", total=1))
    told = ("failed", 3, "failed: the loss is not finite")
    assert [(o.status, o.exit_code, o.message) for o in [*outcomes, *again]] == [told] * 2
    assert (tmp_path / again[0].trial.name / "starts").read_text() == "x"


def test_one_process_searches_at_a_time(tmp_path: Path):
    """Two would ask for the same unfinished trials, and tell each of them twice."""
    with closing(search(tmp_path)), pytest.raises(BadInputError, match="another process searches"):
        search(tmp_path)


def test_the_space_is_checked_before_anything_runs(tmp_path: Path):
    with pytest.raises(BadInputError, match="did you mean"):
        search(tmp_path, "model.dept=1,2")
    with pytest.raises(BadInputError, match="needs a whole number"):
        search(tmp_path, "model.depth=1,x")
    assert not (tmp_path / "optuna.db").exists()


def test_another_space_in_the_same_directory(tmp_path: Path):
    run(search(tmp_path, total=1))
    with pytest.raises(BadInputError, match="holds a search with another space"):
        search(tmp_path, "optimizer.learning_rate=log:1e-3:2")


def test_corrected_flags_are_accepted_where_no_trial_has_run(tmp_path: Path):
    """The failed trials are forgotten: as many run as were asked for."""
    source = search(tmp_path, total=2)
    with closing(source):
        Runner(source, workers=1, command=lambda *_: [sys.executable, "-c", "exit(2)"]).run()
        assert [outcome.status for outcome in source.outcomes()] == ["failed"] * 2
    corrected = run(search(tmp_path, "optimizer.learning_rate=log:1e-3:2", total=2))
    assert [outcome.status for outcome in corrected] == ["done"] * 2


def test_a_search_of_which_a_trial_is_starting_is_kept(tmp_path: Path):
    with closing(search(tmp_path)) as source:
        trial = source.ask()
    with source.directory.lock(trial):
        with closing(search(tmp_path)) as again:
            assert again.ask() == trial
        with pytest.raises(BadInputError, match="holds a search with another space"):
            search(tmp_path, "optimizer.learning_rate=log:1e-3:2")


def test_the_report_ends_with_the_command_of_the_best_trial(tmp_path: Path):
    source = search(tmp_path)
    outcomes = run(source)
    best = max(outcomes, key=lambda outcome: outcome.result["test_accuracy"]).trial
    name, command = Results(outcomes, source.directory, source.space).report().splitlines()[-2:]
    assert name.startswith(f"best  {best.name}, test_accuracy 0.")
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "widenet_jax.main"]
    assert words[3:] == best.arguments(f"{tmp_path}/{best.name}")
