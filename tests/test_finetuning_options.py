"""Whole runs with the options of finetuning: each resumes to the same bytes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from refusals import answered
from small_runs import assert_same_end, at_step, final_state, run_here, train_here

from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.cli import evaluate
from widenet_jax.config.files import stored_config
from widenet_jax.inference.trained import open_trained

OPTIONS = {
    "linear probe": {"optimizer.freeze": "backbone"},
    "adapters": {"optimizer.freeze": "backbone", "model.adapter.rank": 2},
    "adapters of steps": {
        "optimizer.freeze": "backbone",
        "model.adapter.rank": 2,
        "model.adapter.tie": "none",
    },
    "all": {
        "optimizer.layer_decay": 0.7,
        "optimizer.ema_decay": 0.5,
        "augment.color_jitter": 0.4,
        "augment.random_erasing": 0.5,
        "augment.cutmix_alpha": 1.0,
        "task.class_weights": "balanced",
    },
}


def run(workdir: Path, pretrained: Path, **changes: object) -> None:
    short = {"duration": "4 steps", "evaluation.every": "2 steps", "checkpoint.every": "2 steps"}
    run_here(workdir, init_from=str(pretrained), **short, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_ends_with_the_same_bytes(
    digits_run: Path, tmp_path: Path, name: str, capsys
):
    whole = tmp_path / "whole"
    run(whole, digits_run, **OPTIONS[name])
    broken = at_step(tmp_path / "broken", whole, 2)
    shutil.rmtree(broken / "best" / "4", ignore_errors=True)
    run(broken, digits_run, **OPTIONS[name])
    assert_same_end(broken, whole)
    if name == "all":
        assert_the_average_is_evaluated_and_opened(whole)
    else:
        assert_only_the_head_learned(whole, digits_run)
    if name.startswith("adapters"):
        assert_adapters_learned_and_are_opened(whole, capsys)


def assert_only_the_head_learned(probe: Path, pretrained: Path) -> None:
    ours, theirs = final_state(probe), final_state(pretrained)
    params = [name for name in theirs if name.startswith("params")]
    changed = {name.split("'")[1] for name in params if ours[name] != theirs[name]}
    assert changed == {"head"}
    assert all(np.isfinite(np.frombuffer(ours[name], np.float32)).all() for name in params)


def assert_adapters_learned_and_are_opened(workdir: Path, capsys) -> None:
    up = {k: v for k, v in final_state(workdir).items() if k.startswith("params") and "'up'" in k}
    assert up and all(np.frombuffer(value, np.float32).any() for value in up.values())
    result = json.loads((workdir / "result.json").read_text())
    capsys.readouterr()
    found = answered(capsys, evaluate.main, f"--workdir={workdir}", "--json")
    assert found["top_1"] == pytest.approx(result["test_accuracy"], abs=1e-6)


def assert_the_average_is_evaluated_and_opened(workdir: Path) -> None:
    result = json.loads((workdir / "result.json").read_text())
    assert params_sha256(open_trained(str(workdir)).params) == result["params_sha256"]
    evaluated = train_here(stored_config(str(workdir)), workdir, mode="eval")
    assert evaluated["test_cross_entropy"] == result["test_cross_entropy"]
    state = final_state(workdir)
    name = "params['head']['kernel']"
    raw = next(value for key, value in state.items() if key.endswith("average']['head']['kernel']"))
    assert state[name] != raw
