"""Experts and active units of language models, over a stream with its memory."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from untrained import export_untrained

from configs import language_model
from widenet_jax.cli import analyze
from widenet_jax.inference.over_source import metrics_over_source, open_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.usage import measure_active


def export(variant: str, directory: Path) -> Path:
    config = language_model.get_config(f"tiny,{variant},depth=1")
    config.model.embed_dim = 16
    config.evaluation.batch_size = 64
    return export_untrained(config, {"vocab_size": 256}, directory)


@pytest.mark.slow
def test_the_command_on_experts(tmp_path: Path, capsys):
    """Its load is what the model's own statistics are; every byte has two experts and a kind."""
    place = str(export("preset=sigma_moe", tmp_path / "model"))
    assert analyze.main([f"--workdir={place}", f"--out={tmp_path / 'out'}"]) == 0
    out, err = capsys.readouterr()
    assert "router entropy" in out
    assert "experts: passes over the evaluation split: 1\n" in err
    facts = json.loads((tmp_path / "out" / "analysis.json").read_text())["expert_usage"]
    trained = open_trained(place)
    _, of_model, _, source = metrics_over_source(trained)
    np.testing.assert_allclose(facts["load"][0], of_model["expert_load"], atol=1e-4)
    assert np.sum(facts["tokens"]) == 2 * 64 * len(source)
    assert np.sum(facts["kind_frequency"]) == pytest.approx(1, abs=1e-5)
    for name in ("shares", "co_occurrence", "kinds", "usage"):
        assert np.ptp(cv2.imread(str(tmp_path / "out" / f"expert_{name}.png"))) > 100


def test_active_units_of_every_byte(tmp_path: Path):
    """The first 100 hidden units are always active, the others never."""
    trained = open_trained(str(export("preset=dense", tmp_path / "model")))
    layer = trained.params["encoder"]["mlp"]["wi"]
    layer["kernel"][:] = 0
    layer["bias"][:] = np.where(np.arange(layer["bias"].size) < 100, 1, -1)
    active = measure_active(trained)
    source, _ = open_source(trained)
    assert active.tokens[0, 100] == active.tokens.sum() == 64 * len(source)
    assert active.mean == [100] and active.width == layer["bias"].size
