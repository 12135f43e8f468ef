"""Pretraining on the embedded text: resumed, on eight devices and in parts it is the same run."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import assert_same_end, at_step, metrics_of, run_here

from widenet_jax.cli import evaluate

SHORT = {
    "duration": "3 steps",
    "optimizer.warmup": "1 steps",
    "evaluation.every": "3 steps",
    "checkpoint.every": "1 steps",
    "checkpoint.keep": 3,
    "model.loop.core": ((1, 1),),
    "model.moe.router.noise_std": 0.0,  # it differs from part to part
}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains the reference run on one device."""
    workdir = tmp_path_factory.mktemp("text") / "single"
    pretrain(workdir)
    return workdir


def pretrain(workdir: Path, devices: int = 1, **changes: object) -> dict:
    return run_here(workdir, run="text_tiny", devices=devices, batch_size=64, **SHORT | changes)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bytes(single: Path, tmp_path: Path, capsys):
    workdir = at_step(tmp_path / "run", single, 1)
    pretrain(workdir)
    assert "resuming after step 1:" in capsys.readouterr().err
    assert_same_end(workdir, single)


def test_the_workdir_holds_tokenizer_and_entropy(single: Path):
    entropy = json.loads((single / "unigram_entropy.json").read_text())
    result = json.loads((single / "result.json").read_text())
    assert 5 < entropy == result["baseline"]["value"] < np.log(2000)
    assert json.loads((single / "tokenizer.json").read_text())["model"]["vocab"]
    assert result["test_sequences"] > 100 and 0 < result["test_order_accuracy"] < 1


def test_evaluate_reports_what_the_run_did(single: Path, capsys: pytest.CaptureFixture):
    """Metrics, the unigram entropy, and the routing."""
    assert evaluate.main([f"--workdir={single}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    result = json.loads((single / "result.json").read_text())
    for name in ("mlm_loss", "mlm_accuracy", "order_accuracy", "sequences"):
        assert found[name] == pytest.approx(result[f"test_{name}"], rel=1e-5)
    assert found["baseline"] == result["baseline"]
    assert found["drop_rate"] == pytest.approx(result["drop_rate"])
    np.testing.assert_allclose(found["expert_load"], result["expert_load"], atol=2e-4)


@pytest.mark.slow
def test_devices_and_parts_change_no_loss(single: Path, tmp_path: Path):
    """Devices and parts hold different numbers of predictions: each counts once all the same."""
    pretrain(tmp_path, devices=4, **{"optimizer.accumulation_steps": 4, "sharding.fsdp": 2})
    for split in ("train", "eval"):
        ours, theirs = metrics_of(tmp_path, split), metrics_of(single, split)
        for mine, other in zip(ours, theirs, strict=True):
            for name in ("mlm_loss", "order_loss", "mlm_accuracy", "order_accuracy"):
                np.testing.assert_allclose(mine[name], other[name], rtol=2e-5, err_msg=name)
