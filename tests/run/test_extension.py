"""A run that is made longer: to the bytes of a longer run, or with the rates that it says."""

import json
import math
from pathlib import Path

import jax
import pytest
from checkpoint.test_series import everything_in
from etils import epath
from small_runs import DIGITS, assert_same_end, metrics_of, run_here, small_config, train_here

from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_experiment
from widenet_jax.run.workdir import check_length, write_run

ONE = jax.devices()[:1]
COSINE = {"optimizer.schedule": "cosine"}


def run_of(place: Path, steps: int, total: int = 20, **changes: object) -> epath.Path:
    """Makes the workdir of a run of 20 steps of 64 images that has a checkpoint of `steps`."""
    workdir = epath.Path(place / "run")
    write_run(workdir, small_config(**changes), DIGITS.info, total_steps=total)
    (workdir / "checkpoints" / str(steps)).mkdir(parents=True)
    return workdir


def length(workdir: epath.Path, duration: str, *, extend: bool = False, **changes: object) -> str:
    experiment = build_experiment(small_config(duration=duration, **changes), DIGITS, ONE)
    return check_length(workdir, experiment, extend=extend)


@pytest.mark.parametrize(
    ("made", "duration", "changes"),
    [
        (20, "40 steps", {}),
        (20, "1280 examples", COSINE),  # as many steps
        (2, "40 steps", COSINE),  # all in the warm-up of 2 steps
        (20, "40 steps", {"optimizer.schedule": "linear", "optimizer.end_learning_rate": 3e-3}),
    ],
)
def test_the_same_rates_need_no_flag(tmp_path: Path, made: int, duration: str, changes: dict):
    workdir = run_of(tmp_path, made, **changes)
    for extend in (False, True):
        assert length(workdir, duration, extend=extend, **changes) == ""


def test_cosine_says_what_becomes_of_the_rate(tmp_path: Path):
    """0.003 after 2 steps of warm-up: cosine over 18 steps, and over 38 once it is extended."""
    cosine = lambda t: 0.003 * (1 + math.cos(math.pi * t)) / 2  # noqa: E731
    was, next_one, last = cosine(17 / 18), cosine(18 / 38), cosine(37 / 38)
    change = (
        f"the learning rate of step 20 was {was:.3g}, the next one's is {next_one:.3g}, and "
        f"the last one's, of step 40, is {last:.3g}."
    )
    workdir = run_of(tmp_path, 20, **COSINE)
    assert length(workdir, "40 steps", extend=True, **COSINE).startswith(
        f"extended from 20 to 40 steps: {change}"
    )
    with pytest.raises(BadInputError) as caught:
        length(workdir, "40 steps", **COSINE)
    text = str(caught.value)
    assert f"cosine schedule: {change}" in text and text.endswith("add --extend")
    with pytest.raises(BadInputError, match="another constant schedule: the learning rate of"):
        length(workdir, "40 steps", **{"optimizer.warmup": "10%"})  # 2 steps, then 4


def test_loops_that_grow_say_what_becomes_of_them(tmp_path: Path):
    """Of 2 loops the second begins after half the run: of 20 steps, or of 60."""
    grow = {"model.loop.counts.train": "grow", "model.loop.tie.norms": "loops"}
    told = "with other loops: the loops of step 20 were 2, the next one's are 1. A run of 60 steps"
    with pytest.raises(BadInputError, match=told):
        length(run_of(tmp_path / "20", 20, **grow), "60 steps", **grow)
    assert length(run_of(tmp_path / "10", 10, **grow), "60 steps", **grow) == ""


def test_epochs_of_other_examples_are_other_steps(tmp_path: Path):
    """An epoch was 20 or 30 steps; of 1,437 images it is 22. Without `extend` they are refused."""
    epoch = COSINE | {"duration": "1 epoch"}
    for total, told in ((20, "extended from 20 to 22 steps: "), (30, "shortened from 30 to 22 ")):
        workdir = run_of(tmp_path / str(total), 20, total, **epoch)
        assert length(workdir, extend=True, **epoch).startswith(told)
        assert length(workdir, **epoch) == ""
    (workdir / "checkpoints" / "30").mkdir()
    told = (
        "has trained 30 steps, and config.duration='1 epoch' of the 1,437 examples that there are"
    )
    with pytest.raises(BadInputError, match=f"{told} now is 22; give a longer --config.duration"):
        length(workdir, extend=True, **epoch)


def test_what_cannot_be_extended(tmp_path: Path):
    workdir = run_of(tmp_path, 20)
    with pytest.raises(BadInputError, match="'20 steps' there, '19 steps' here, which is shorter"):
        length(workdir, "19 steps", extend=True)
    with pytest.raises(BadInputError, match="holds no run yet; leave it out"):
        length(workdir / "new", "40 steps", extend=True)
    assert length(workdir / "new", "40 steps") == ""


@pytest.mark.slow
def test_a_longer_run_has_the_bytes_of_one_that_was_so_long(tmp_path: Path):
    """From 4 to 8 and to 12 steps."""
    often = {"evaluation.every": "4 steps", "checkpoint.every": "4 steps"}

    def run(name: str, steps: int) -> None:
        run_here(tmp_path / name, duration=f"{steps} steps", **often)

    run("whole", 12)
    run("extended", 4)
    run("extended", 8)
    run("extended", 12)
    assert_same_end(tmp_path / "extended", tmp_path / "whole")
    ours, theirs = (tmp_path / name / "config.json" for name in ("extended", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.slow
def test_a_cosine_run_is_extended(digits_run: Path, tmp_path: Path, capsys):
    """Without --extend nothing changes; with it the logged rates are those that were announced."""
    workdir = tmp_path / "run"
    run_here(workdir, duration="8 steps", **COSINE)
    before = everything_in(workdir)
    longer = small_config(duration="16 steps", **COSINE)
    with pytest.raises(BadInputError, match="add --extend"):
        train_here(longer, workdir)
    assert everything_in(workdir) == before
    capsys.readouterr()
    train_here(longer, workdir, extend=True)
    told = capsys.readouterr().err
    rates = {r["step"]: r["learning_rate"] for r in metrics_of(workdir)}
    assert f"step 8 was {rates[8]:.3g}, the next one's is {rates[9]:.3g}, " in told
    assert f"of step 16, is {rates[16]:.3g}." in told and sorted(rates) == list(range(1, 17))
    train_here(longer, workdir)  # it is a run of 16 steps now
    starts = json.loads((workdir / "environment.json").read_text())
    assert [start["total_steps"] for start in starts] == [8, 16, 16]
