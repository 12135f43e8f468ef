"""Whole runs on the embedded digits: meshes, hosts, resuming, finetuning, evaluating."""

import json
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from small_runs import (
    DIGITS,
    finish,
    last_step,
    lines_in,
    metrics_of,
    run_here,
    small_config,
    start_two,
    wait_until,
)

from widenet_jax import train
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_experiment
from widenet_jax.run.summary import describe

STEPS = 8  # to compare


def assert_same_training(workdir: Path, reference: Path) -> None:
    """Checks the first loss to 1e-5, others to 1e-4, and that the same tokens (above 0) drop."""
    ours, theirs = metrics_of(workdir)[:STEPS], metrics_of(reference)[:STEPS]
    assert len(ours) == len(theirs) == STEPS
    np.testing.assert_allclose(ours[0]["loss"], theirs[0]["loss"], rtol=1e-5)
    assert ours[0]["drop_rate"] == theirs[0]["drop_rate"]
    assert min(theirs[0]["drop_rate"]) > 0
    assert ours[0]["load"] == theirs[0]["load"]
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine["loss"], other["loss"], rtol=1e-4)


@pytest.mark.parametrize(
    ("fsdp", "expert"),
    [
        (2, 2),
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(-1, 2, marks=pytest.mark.slow),
    ],
)
def test_eight_devices_train_as_one(digits_run: Path, tmp_path: Path, fsdp: int, expert: int):
    """Meshes 2x2x2, 8x1x1 and 1x4x2 (data, fsdp, expert)."""
    shards = {"sharding.fsdp": fsdp, "sharding.expert": expert, "duration": f"{STEPS} steps"}
    run_here(tmp_path / "run", devices=8, **shards)
    assert_same_training(tmp_path / "run", digits_run)


def test_two_processes_train_as_one(digits_run: Path, tmp_path: Path):
    """SIGTERM to the second stops both at the same step; people follow the first."""
    changes = {"duration": "400 steps", "evaluation.every": "400 steps"}
    runs = start_two(tmp_path / "run", **changes, **{"checkpoint.every": "400 steps"})
    wait_until(lambda: len(lines_in(tmp_path / "run")) >= STEPS, runs[0])
    runs[1].send_signal(signal.SIGTERM)
    told = [finish(run, 143) for run in runs]
    step = last_step(tmp_path / "run")
    assert STEPS <= step < 400 and not any("Traceback" in text for text in told)
    assert all(f"saved after step {step}." in text.splitlines()[-1] for text in told)
    assert ["starting: 400 steps" in text for text in told] == [True, False]
    assert_same_training(tmp_path / "run", digits_run)


@pytest.mark.slow
def test_two_processes_finetune_as_one(digits_run: Path, tmp_path: Path):
    """Parameters sharded over processes, and a pretrained backbone: the same losses."""
    changes = {"init_from": str(digits_run), "duration": "2 steps", "sharding.fsdp": 2}
    for process in start_two(tmp_path / "two", **changes):
        finish(process)
    del changes["sharding.fsdp"]
    run_here(tmp_path / "one", **changes)
    ours, theirs = (metrics_of(tmp_path / run) for run in ("two", "one"))
    np.testing.assert_allclose([r["loss"] for r in ours], [r["loss"] for r in theirs], rtol=1e-5)


def test_finetuning_starts_from_the_backbone(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """At twice the resolution: positions resized, a new head; evaluation agrees with training.

    The paths are relative, as the README writes them, for --workdir and for the pretrained run. A
    wrong one of the latter leaves the workdir usable.
    """
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(digits_run)
    monkeypatch.chdir(tmp_path)
    changes, workdir = {"data.image_size": 16, "duration": "2 steps"}, Path("runs/second")
    with pytest.raises(BadInputError, match=r"config\.init_from=/nowhere"):
        run_here(workdir, **changes, init_from="/nowhere")
    changes["init_from"] = "runs/first"
    result = run_here(workdir, **changes)
    evaluated = run_here(workdir, mode="eval", **changes)
    assert (tmp_path / "runs" / "second" / "checkpoints" / "2").is_dir()
    assert evaluated["test_accuracy"] == result["test_accuracy"]
    assert result["test_images"] == 360  # of 384 positions: padding is ignored
    assert result["steps"] == 2
    assert len(result["params_sha256"]) == 64


def test_a_finished_run_only_reports(digits_run: Path, tmp_path: Path):
    workdir = Path(shutil.copytree(digits_run, tmp_path / "run"))
    before = (workdir / "metrics.jsonl").read_bytes()
    result = run_here(workdir)
    assert result == json.loads((workdir / "result.json").read_text())
    assert (workdir / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 62}, "or a batch of 64, would do"),
        ({"batch_size": 72}, "config.batch_size=72 must be a multiple of 32, such as 96"),
        (
            {"evaluation.batch_size": 60},
            "=60 must be a multiple of 32, such as 64: whole groups of images (routing 4) on each",
        ),
        ({"augment.mixup_group_size": 1}, "config.augment.mixup_group_size=1 must be at least 2"),
        ({"augment.mixup_group_size": 8}, "add --config.augment.mixup_group_size=4"),
        ({"sharding.expert": 3}, "must divide the number of devices, 8"),
        ({"model.attention.num_heads": 5}, "config.model.attention.num_heads=5 must divide"),
        ({"model.routing_groups": 3}, "must divide the depth 2"),
        ({"model.ffn_blocks": "every"}, "known: all, last, every_N and last_N"),
        ({"model.norm_position": "mid"}, "choose one of pre, post"),
        ({"model.patch_size": 3}, "must divide the image size"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, changes: dict, message: str):
    with pytest.raises(BadInputError) as caught:
        train.run(small_config(**changes), str(tmp_path / "run"))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()  # the corrected command must be able to use it


def test_the_opening_lines_say_where_a_run_starts():
    """They also say that 1,437 images are less than a batch of 2,048: 8 epochs are 6 steps."""
    changes = {"init_from": "runs/first", "batch_size": 2048, "duration": "8 epochs"}
    told = []
    small = {"model.loop.core": ((1, 1),), "model.embed_dim": 16}
    for config in (small_config(**small, **changes), small_config(**small)):
        experiment = build_experiment(config, DIGITS, jax.devices()[:1])
        shapes = experiment.state.params
        told += [describe(experiment, shapes, step) for step in (0, 5)]
    assert "starting from runs/first: 6 steps of 2048 images" in told[0]
    assert "resuming after step 5: 6 steps" in told[1]
    assert "starting: 20 steps of 64 images" in told[2]
    less = "all 1,437 training images are fewer than one batch"
    assert [less in text for text in told] == [True, True, False, False]
