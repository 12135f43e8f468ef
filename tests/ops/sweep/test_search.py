"""Search by Optuna on programs that stand in for training, whose accuracy is the rate."""

import os
import signal
import threading
import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path

import pytest
from ops import other_task, trial_program

from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.runner import Runner
from widenet_jax.ops.sweep.search import Search, parse_space
from widenet_jax.ops.sweep.trials import Outcome

pytest.importorskip("optuna", reason="pip install -e '.[sweep]'")
DIGITS = "configs/digits.py"
RATE = "optimizer.learning_rate=log:1e-3:1"


def search(path: Path, *space: str, pause: float = 0.0, **changes) -> Search:
    options = {"config": DIGITS, "search": "random", "trials": 4, "prune": False}
    options |= {"fields": [f"--config.optimizer.weight_decay={pause}"]} | changes
    return Search(Namespace(**options), parse_space(space or (RATE,)), Directory(path))


def run(source: Search, workers: int = 2, command=trial_program.command) -> list[Outcome]:
    with closing(source):
        Runner(source, workers=workers, command=command).run()
        return source.outcomes()


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def rates(outcomes: list[Outcome]) -> list[float]:
    return [outcome.trial.settings["optimizer.learning_rate"] for outcome in outcomes]


def test_spaces():
    space = parse_space(
        ["config.a=log:1e-4:1", "model.mlp_dim=int:1:3", "seed=1,2", "model.dropout=float:0:0.5"]
    )
    ends = [(one.low, one.high, one.log) for name, one in space.items() if name != "seed"]
    assert list(space) == ["a", "model.mlp_dim", "seed", "model.dropout"]
    assert ends == [(1e-4, 1.0, True), (1, 3, False), (0.0, 0.5, False)]
    assert space["seed"].choices == ("1", "2")
    for texts, words in (
        (["seed=int:1"], "two numbers, as in int:1:8"),
        (["a=float:0:inf"], "below the second"),
        (["a=log:0:1"], "above 0; give two numbers, as in log:1:8"),
        (["a=1,2", "config.a=3,4"], "a already has a space"),
    ):
        with pytest.raises(BadInputError, match=words):
            parse_space(texts)


@pytest.mark.slow
def test_a_search_proposes_the_same_whether_or_not_it_was_interrupted(tmp_path: Path):
    """The first six trials of TPE are random, so that only the last one uses a model."""
    for sampler, number in (("random", 4), ("tpe", 8)):
        place = {"search": sampler, "trials": number}
        whole = run(search(tmp_path / f"{sampler}_whole", **place), workers=1)
        assert statuses(whole) == ["done"] * number
        run(search(tmp_path / sampler, search=sampler, trials=2), workers=1)
        assert rates(run(search(tmp_path / sampler, **place), workers=1)) == rates(whole)
        assert [o.result["test_accuracy"] for o in whole] == rates(whole)
        assert len(set(rates(whole))) == number


@pytest.mark.parametrize("lower", [False, True])
def test_tpe_finds_better_ones_than_its_random_start(tmp_path: Path, monkeypatch, lower: bool):
    """Upwards in accuracy; downwards where lower values of the task's metric are better."""
    config = other_task.config(tmp_path, monkeypatch) if lower else DIGITS
    # With several workers, proposals would depend on which trial ends first.
    source = search(tmp_path / "search", config=config, search="tpe", trials=14)
    found = rates(run(source, workers=1))
    assert source.study.best_value == (min(found) if lower else max(found))
    first, last = sum(found[:5]), sum(found[-5:])
    assert last < first / 2 if lower else last > 2 * first


def test_hopeless_trials_are_stopped_and_recorded(tmp_path: Path):
    """Some of eight trials end at one of their first evaluations, and never the best."""
    options = {"trials": 8, "prune": True, "pause": 0.25}
    source = search(tmp_path, **options)
    outcomes = run(source, workers=4)
    pruned = [outcome for outcome in outcomes if outcome.status == "pruned"]
    done = [outcome for outcome in outcomes if outcome.status == "done"]
    assert pruned and len(done) + len(pruned) == 8
    assert max(rates(outcomes)) in rates(done)
    # One may end just as it is stopped.
    lengths = [len(source.directory.evaluations(outcome.trial)) for outcome in pruned]
    assert min(lengths) < trial_program.STEPS
    again = search(tmp_path, **options)
    assert statuses(run(again)) == statuses(outcomes)
    states = [[one.state.name for one in of.study.get_trials()] for of in (source, again)]
    assert states[0] == states[1] and states[0].count("PRUNED") == len(pruned)


def test_a_stopped_search_resumes_the_trial_that_was_running(tmp_path: Path):
    def stop_once_it_runs() -> None:
        while not list(tmp_path.glob("*/metrics.jsonl")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_once_it_runs).start()
    stopped = run(search(tmp_path, prune=True, pause=0.1), workers=1)
    assert statuses(stopped) == ["stopped"]
    whole = run(search(tmp_path, prune=True, pause=0.1, trials=1))
    assert statuses(whole) == ["done"] and rates(whole) == rates(stopped)
    assert len((tmp_path / whole[0].trial.name / "starts").read_text()) == 2


def test_one_process_searches_at_a_time_and_one_space(tmp_path: Path):
    """Two would ask for the same unfinished trials, and tell each of them twice."""
    with closing(search(tmp_path)) as first:
        first.ask()
        with pytest.raises(BadInputError, match="another process searches"):
            search(tmp_path)
    with pytest.raises(BadInputError, match="holds a search with another space"):
        search(tmp_path, "optimizer.learning_rate=log:1e-3:2")
