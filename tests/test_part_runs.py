"""Whole runs with parts that keep or move parameters in their own way: 30 steps, resumed, moved."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import assert_same_end, at_step, final_state, metrics_of, run_here

LOOPED = {"model.loop.core": ((1, 2),), "data.path": "", "optimizer.schedule": "constant"}
LOOPED |= {"duration": "30 steps", "evaluation.every": "30 steps", "evaluation.batch_size": 16}
CASES = {
    "balance bias": {
        "model.activation": "swiglu",
        "model.moe.activation": "swiglu",
        "model.moe.shared_experts": 1,
        "model.moe.router.bias_balancing": True,
        "optimizer.accumulation_steps": 2,
        "optimizer.sign_rate": 0.01,
        "optimizer.ema_decay": 0.9,
    },
    "muon": {
        "optimizer.name": "muon",
        "optimizer.learning_rate": 0.02,
        "optimizer.momentum": 0.95,
        "optimizer.weight_decay": 0.1,
        "optimizer.tied_rate": "sqrt",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_learns_resumes_with_the_same_bytes_and_moves(tmp_path: Path, name: str):
    """Also on eight devices that share parameters and experts: nearly the same losses."""
    fields, one = LOOPED | CASES[name], tmp_path / "one"
    run_here(one, run="sigma_moe", **fields)
    broken = at_step(tmp_path / "broken", one, 20)
    run_here(broken, run="sigma_moe", **fields)
    assert_same_end(broken, one)
    eight = tmp_path / "eight"
    shards = {"sharding.fsdp": 2, "sharding.expert": 2}
    run_here(eight, run="sigma_moe", devices=8, **fields, **shards)
    losses = [[row["loss"] for row in metrics_of(run)] for run in (one, eight)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
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
