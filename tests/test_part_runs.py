"""Whole runs with parts that keep or move parameters in their own way: 30 steps, resumed, moved."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import RUNS, assert_same_end, at_step, final_state, metrics_of, run_here

LONG = {"duration": "30 steps", "evaluation.every": "30 steps", "optimizer.schedule": "constant"}
LOOPED = {"model.loop.core": ((1, 2),), "data.path": "", "evaluation.batch_size": 16}
FAST = {"optimizer.learning_rate": 0.005, "augment.mixup_alpha": 0.0}
SANDWICH = FAST | {
    "model.loop.prelude": 1,
    "model.loop.core": ((2, 2), (1, 3)),
    "model.loop.coda": 1,
    "model.loop.tie.norms": "loops",
}
KINDS = {"random loops": "digits", "growing loops": "digits"}  # of small runs
CASES = {
    "balance bias": LOOPED
    | {
        "model.activation": "swiglu",
        "model.moe.activation": "swiglu",
        "model.moe.shared_experts": 1,
        "model.moe.router.bias_balancing": True,
        "optimizer.accumulation_steps": 2,
        "optimizer.sign_rate": 0.01,
        "optimizer.ema_decay": 0.9,
    },
    "muon": LOOPED
    | {
        "optimizer.name": "muon",
        "optimizer.learning_rate": 0.02,
        "optimizer.momentum": 0.95,
        "optimizer.weight_decay": 0.1,
        "optimizer.tied_rate": "sqrt",
    },
    "random loops": SANDWICH
    | {
        "model.loop.inject": "linear",
        "model.loop.start": "noise",
        "model.loop.state_norm": True,
        "model.loop.counts.train": "poisson",
        "model.loop.counts.backprop_last": 2,
        "model.norm": "rms",
        "model.norm_position": "sandwich",
        "model.remat": "block",
        "model.drop_path": 0.1,
        "optimizer.accumulation_steps": 2,
    },
    "growing loops": SANDWICH
    | {
        "model.drop_path": 0.1,
        "model.loop.condition": "index_state",
        "model.loop.counts.train": "grow",
        "model.unroll": False,
    },
    "exits": {
        "model.attention.name": "full",
        "model.loop.prelude": 1,
        "model.loop.core": ((1, 3),),
        "model.loop.coda": 1,
        "model.loop.exit.loss": "expected",
        "model.loop.exit.rule": "gate",
        "model.drop_path": 0.1,
        "data.path": "",
        "evaluation.batch_size": 16,
    },
    "relative kernel": LOOPED  # interpreted
    | {
        "model.attention.implementation": "pallas",
        "model.attention.num_heads": 2,
        "model.attention.head_dim": 64,
        "model.remat": "block",
        "data.max_length": 128,
        "batch_size": 16,
        "optimizer.accumulation_steps": 2,
    },
    "expert_choice": {"model.moe.num_selected_experts": 1} | FAST,
    "soft_moe": FAST,
    "scores": {"optimizer.learning_rate": 0.005},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_learns_resumes_with_the_same_bytes_and_moves(tmp_path: Path, name: str):
    """Also on eight devices that share parameters and experts: nearly the same losses."""
    fields, one = LONG | CASES[name], tmp_path / "one"
    kind = KINDS.get(name, name if name in RUNS else "sigma_moe")
    run_here(one, run=kind, **fields)
    broken = at_step(tmp_path / "broken", one, 20)
    run_here(broken, run=kind, **fields)
    assert_same_end(broken, one)
    eight = tmp_path / "eight"
    shards = {"sharding.fsdp": 2, "sharding.expert": 2}
    if name == "expert_choice":
        rate = json.loads((one / "result.json").read_text())["no_expert_rate"]
        assert 0 < rate < 1
    run_here(eight, run=kind, devices=8, **fields, **shards)
    losses = [[row["loss"] for row in metrics_of(run)] for run in (one, eight)]
    np.testing.assert_allclose(*(run[:8] for run in losses), rtol=1e-4)
    # Later a token's two best experts may differ by less than rounding, and the runs part.
    np.testing.assert_allclose(*losses, rtol=0.05 if name in KINDS else 1e-4)
    assert np.mean(losses[0][-3:]) < 0.9 * losses[0][0]
    if name == "balance bias":
        check_biases(*map(final_state, (one, eight)))


def check_biases(one: dict[str, bytes], eight: dict[str, bytes]) -> None:
    """One bias of the tied router: whole steps, on eight devices the same ones."""
    found = [name for name in one if "balance_bias" in name]
    assert len(found) == 2, found  # the parameter and its average, which is equal
    bias, average = (np.frombuffer(one[name], np.float32) for name in found)
    np.testing.assert_array_equal(bias, average)
    assert 0.05 < np.abs(bias).max() <= 0.3001
    np.testing.assert_allclose(bias / 0.01, np.round(bias / 0.01), atol=1e-3)
    assert all(one[name] == eight[name] for name in found)
