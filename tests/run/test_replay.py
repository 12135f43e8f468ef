"""A non-finite loss: the message names step, batch and command, and replay reproduces it."""

import json
from pathlib import Path

import pytest
from small_runs import metrics_of, run_here, small_config

from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.main import main, report_replay

WILD = {
    "optimizer.learning_rate": 1e30,
    "optimizer.name": "sgd",
    "optimizer.warmup": "0 steps",
    "duration": "6 steps",
    "evaluation.every": "6 steps",
    "model.loop.core": ((1, 1),),
    "model.embed_dim": 16,
}


def run(workdir: Path, mode: str = "train", **changes: object) -> dict:
    return run_here(workdir, mode=mode, **WILD, **changes)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Returns the workdir of a failed run, and the message that it ended with."""
    workdir = tmp_path_factory.mktemp("runs") / "failed"
    with pytest.raises(RunFailedError) as caught:
        run(workdir)
    return workdir, str(caught.value)


def test_step_batch_and_command_are_named(failed: tuple[Path, str]):
    """The first update, at a learning rate of 1e30, makes the second step's loss non-finite."""
    workdir, message = failed
    assert message.startswith("the loss is nan at step 2, in the batch of training images ")
    assert f"python -m widenet_jax.main --mode=replay --workdir={workdir}." in message
    assert "\n" not in message
    assert not (workdir / "checkpoints").exists()  # the bad state is not saved as newest
    assert not (workdir / "result.json").exists()


def test_the_batch_again(failed: tuple[Path, str], capsys: pytest.CaptureFixture):
    """Replay finds the same non-finite numbers and images as the run's message."""
    workdir, message = failed
    before = sorted(p.name for p in workdir.iterdir())
    found = run(workdir, mode="replay")
    assert found["step"] == 2
    assert found["loss"] == "nan"
    json.loads(json.dumps(found, allow_nan=False))
    assert "head/kernel" in found["not_finite"]["gradients"]
    assert len(found["batch"]) == len(found["not_finite"]["examples"]) == 64
    for place, record in zip(
        found["batch"], message.split("images ")[1].split(", ...")[0].split(", "), strict=False
    ):
        assert place.endswith(f" {record}")
    assert sorted(p.name for p in workdir.iterdir()) == before
    lines = report_replay(found).splitlines()
    assert lines[0].startswith("step 2: loss nan, gradient norm ")
    assert len(lines) == 4 + len(found["not_finite"]["gradients"]) + 64 + 64


def test_nothing_to_replay(tmp_path: Path, capsys: pytest.CaptureFixture):
    config = small_config(**WILD)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(BadInputError, match="no step of this run was kept for a replay"):
        run(tmp_path / "run", mode="replay")
    assert main(["main", "--mode=replay", f"--workdir={tmp_path}/none"]) == 2
    assert "no run there" in capsys.readouterr().err


@pytest.mark.slow
def test_skipped_up_to_the_cap(tmp_path: Path, capsys: pytest.CaptureFixture):
    """All steps from the second on are non-finite: two are skipped, the third ends the run."""
    with pytest.raises(
        RunFailedError, match=r"at step 4, one more than config\.max_skipped_updates=2"
    ):
        run(tmp_path / "run", on_nonfinite="skip", max_skipped_updates=2)
    notes = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert notes == [
        "the loss is nan at step 2: update skipped, 1 of at most 2",
        "the loss is nan at step 3: update skipped, 2 of at most 2",
    ]
    assert [r["skipped_updates"] for r in metrics_of(tmp_path / "run")] == [0, 1, 2]


def test_numbers_that_are_not_finite_after_the_last_update(tmp_path: Path):
    """Only the evaluation sees them; no such state is saved."""
    wild = WILD | {"duration": "1 step"}
    with pytest.raises(RunFailedError, match=r"evaluation cross entropy is .* after step 1"):
        run_here(tmp_path, **wild)
    assert not list((tmp_path / "checkpoints").glob("*"))
    assert not (tmp_path / "result.json").exists()
