"""Exports and workdirs from before config fields were renamed can still be read.

See `old_artefacts/README.md` for how the files were made.
"""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from small_runs import metrics_of

from configs import digits
from widenet_jax import train
from widenet_jax.checkpoint.hashes import params_sha256
from widenet_jax.config.files import stored_config
from widenet_jax.data.chunks import read_example
from widenet_jax.inference.classes import classifier
from widenet_jax.inference.over_source import open_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.vision.data.transforms import image_of

OLD = Path(__file__).parent / "old_artefacts"
# The old run's flags under their present names.
OVERRIDES = {
    "model.depth": 2,
    "model.embed_dim": 16,
    "model.mlp_dim": 16,
    "model.moe.mlp_dim": 16,
    "model.moe.examples_per_group": 16,
    "optimizer.learning_rate": 0.02,
    "optimizer.warmup": "5 steps",
    "duration": "30 steps",
    "log_every_steps": 1,
    "evaluation.every": "30 steps",
    "checkpoint.every": "10 steps",
    "checkpoint.keep": 1,
    "tracking.tensorboard": False,
}
STOPPED_AT = 20


def todays_config():
    config = digits.get_config()
    config.update_from_flattened_dict(OVERRIDES)
    return config


def test_an_old_export_has_its_parameters_and_predictions():
    trained = open_trained(str(OLD / "export"))
    record = json.loads((OLD / "export" / "export.json").read_text())
    assert params_sha256(trained.params) == record["params_sha256"]
    source, transform = open_source(trained)
    pictures = [transform.picture(image_of(read_example(source, i))) for i in range(8)]
    found = classifier(trained)([{"image": picture} for picture in pictures])
    expected = json.loads((OLD / "probabilities.json").read_text())
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_config_of_an_old_workdir_has_todays_names():
    assert stored_config(str(OLD / "workdir")).to_dict() == todays_config().to_dict()


def test_an_old_workdir_is_resumed_to_the_end_of_the_unbroken_run(tmp_path: Path):
    """The present command resumes it: 10 more steps, each with the old code's loss."""
    workdir = tmp_path / "run"
    shutil.copytree(OLD / "workdir", workdir)
    train.run(todays_config(), str(workdir), devices=jax.devices()[:1])
    unbroken = [json.loads(s) for s in (OLD / "unbroken_metrics.jsonl").read_text().splitlines()]
    for split, first in (("train", STOPPED_AT + 1), ("eval", 30)):
        expected = [r for r in unbroken if r["split"] == split and r["step"] >= first]
        found = [r for r in metrics_of(workdir, split) if r["step"] >= first]
        assert [r["step"] for r in found] == [r["step"] for r in expected]
        for key in ("cross_entropy", "accuracy"):
            assert [r[key] for r in found] == pytest.approx([r[key] for r in expected], rel=1e-5)
