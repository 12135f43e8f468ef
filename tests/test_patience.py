"""A run that its patience ends: where, what it leaves, and that resuming changes nothing."""

import json
import os
import shutil
import signal
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import assert_same_end, last_step, metrics_of, run_here, small_config

from widenet_jax.config.durations import Interval
from widenet_jax.errors import StoppedError
from widenet_jax.run.runtime import Runtime
from widenet_jax.run.stopping import Stop
from widenet_jax.step import TrainState

# Nothing is learned, so no evaluation is better than the first, of step 4.
STILL = {
    "optimizer.learning_rate": 0.0,
    "optimizer.weight_decay": 0.0,
    "evaluation.every": "4 steps",
    "checkpoint.every": "3 steps",
    "checkpoint.keep": 9,
}


def run(workdir: Path, patience: int) -> dict:
    return run_here(workdir, **STILL, **{"evaluation.patience": patience})


def test_where_a_run_is_over():
    """It has 20 steps and evaluates after every fourth."""
    for patience, best, step, over in [
        (0, 4, 16, False),
        (2, 4, 8, False),  # one evaluation after the best
        (2, 4, 12, True),
        (2, 4, 11, False),
        (2, 8, 12, False),
        (2, 12, 9, False),  # the run resumes from a checkpoint before its best
        (2, None, 12, False),  # best/ is gone: the next evaluation is the best
        (2, 4, 20, True),
        (9, 4, 20, True),  # the last step
    ]:
        config = small_config(**{"evaluation.patience": patience})
        kept = SimpleNamespace(best_value=best and 0.5, best=SimpleNamespace(step=best))
        every = Interval(Fraction(4))
        experiment = SimpleNamespace(config=config, eval_every=every, total_steps=20)
        runtime = SimpleNamespace(experiment=experiment, checkpoints=kept, step=step)
        assert Runtime.is_over(runtime) == over, (patience, best, step)


@pytest.mark.slow
def test_ctrl_c_in_the_evaluation_that_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """A stop is announced, and so the run stops: it has a checkpoint and no result.

    The accuracies are replaced by equal ones, so that other tests share the program.
    """
    record, stop = Runtime.record_evaluation, Stop()
    changes = {"evaluation.patience": 1, "evaluation.every": "1 steps"}

    def interrupted(runtime: Runtime, state: TrainState, metrics: dict) -> None:
        record(runtime, state, metrics | {"accuracy": 0.5})
        assert runtime.is_over() == (runtime.step == 2)
        if runtime.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # the thread that receives it speaks

    monkeypatch.setattr(Runtime, "record_evaluation", interrupted)
    stop.listen()
    try:
        with pytest.raises(StoppedError, match="Ctrl-C; saved after step 2"):
            run_here(tmp_path, stop=stop, **changes)
    finally:
        stop.close()
    assert "Ctrl-C: saving after this step, then stopping" in capsys.readouterr().err
    assert last_step(tmp_path) == 2 and not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_a_run_ends_resumes_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture):
    """It ends two evaluations after step 4; resumed from step 6, with the same bytes."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    result = run(whole, 2)
    told = "ended early, after step 12 of 20: no better accuracy than"
    assert told in capsys.readouterr().err
    assert (result["steps"], result["best_checkpoint_step"], last_step(whole)) == (12, 4, 12)
    assert [r["step"] for r in metrics_of(whole, "eval")] == [4, 8, 12]

    shutil.copytree(whole, broken)
    for step in ("9", "12"):
        shutil.rmtree(broken / "checkpoints" / step)
    (broken / "result.json").unlink()
    run(broken, 2)
    assert_same_end(broken, whole)

    capsys.readouterr()
    before = (whole / "metrics.jsonl").read_bytes()
    assert run(whole, 2) == result == json.loads((whole / "result.json").read_text())
    told = capsys.readouterr().err
    assert "finished before, after step 12" in told and "compiling the training" not in told
    assert (whole / "metrics.jsonl").read_bytes() == before
    assert run(whole, 3)["steps"] == 16
