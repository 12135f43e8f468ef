"""Opening a trained model: changes to its config, and changes that do not fit."""

import dataclasses
import json
from pathlib import Path

import compiled
import jax
import numpy as np
import pytest
from etils import epath
from ml_collections import ConfigDict
from refusals import refuses
from untrained import export_untrained

from widenet_jax.config.files import from_json, load_config
from widenet_jax.inference.exported import write_exported
from widenet_jax.inference.pretrained import finetune_params, load_pretrained
from widenet_jax.inference.trained import build_for, open_trained, read_model, result_at


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--config.data.eval_spit=train", "did you mean --config.data.eval_split"),
        ("--workdri=x", "'--workdri=x' is no flag; fields are set as --config.FIELD=VALUE"),
        ("--config.model.moe.mlp_dim=32",
         r"encoder/moe/experts/wi/bias is \[4, 64\] there, and its config asks for \[4, 32\]"),
        ("--config.model.loop.tie.norms=loops", r"block_00_norm_attention/bias is \[32\] there, "
         "and its config asks for none"),
        ("--config.data.image_size=16", r"position_embedding is \[1, 16, 32\] there"),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit(digits_run, change: str, message: str):
    refuses(message, open_trained, str(digits_run), [change])


def test_the_result_of_a_step_has_its_own_evaluation(tmp_path):
    """What belongs to the last step alone, such as the hash of its parameters, is left out.

    A killed run leaves a line that was written in part: the lines before it count.
    """
    assert result_at(tmp_path, 20) == {}
    last = {"steps": 20, "unit": "images", "test_accuracy": 0.5, "params_sha256": "of step 20"}
    (tmp_path / "result.json").write_text(json.dumps(last))
    assert result_at(tmp_path, 20)["test_accuracy"] == 0.5
    assert result_at(tmp_path, 10) == {}
    lines = [(10, "train", 0.7), (10, "eval", 0.6), (20, "eval", 0.5)]
    records = [{"step": step, "split": name, "accuracy": value} for step, name, value in lines]
    written = "".join(json.dumps(r) + "\n" for r in records)
    (tmp_path / "metrics.jsonl").write_text(written + '{"step": 30, "split": "eval", "accu')
    assert result_at(tmp_path, 10) == {"steps": 10, "unit": "images", "test_accuracy": 0.6}
    assert result_at(tmp_path, 15) == {}
    (tmp_path / "result.json").write_text("[]")
    refuses(r"result.json: holds no JSON object; copy", result_at, tmp_path, 10)


def test_a_router_that_no_step_runs_is_left_out(tmp_path: Path):
    """Older versions stored one where the coda's first block follows the core's last."""
    config = load_config("configs/digits.py:widenet_tiny,loop=1x4+2,routing_groups=2")
    info = {"class_names": [*map(str, range(10))]}
    model = read_model(str(export_untrained(config, info, tmp_path / "now")))
    encoder, idle = dict(model.params["encoder"]), {"kernel": np.ones((32, 4), np.float32)}
    encoder["block_04_moe"] = encoder["block_04_moe"] | {"router": idle}
    older = dataclasses.replace(model, params=model.params | {"encoder": encoder})
    write_exported(epath.Path(tmp_path / "older"), older, file_format="npz")
    opened = open_trained(str(tmp_path / "older"))
    assert jax.tree.structure(opened.params) == jax.tree.structure(model.params)
    how = {"model": config.model, "source": "older"}
    finetune_params(model.params, older.params, **how)


@pytest.mark.parametrize("tie", ["weights", "none"])
def test_adapters_are_opened_as_kernels(digits_run: Path, tmp_path: Path, tie: str):
    """The same logits; a file keeps adapters of steps, whose sums blocks could not share."""
    stored, section = read_model(str(digits_run)), {"rank": 2, "tie": tie, "alpha": 3.0}
    config = stored.config | {"model": stored.config["model"] | {"adapter": section}}
    _, module, shapes = build_for(ConfigDict(from_json(config)), stored.info, stored.params)
    drawn = compiled.draw(shapes["encoder"]["adapter"])
    params = stored.params | {"encoder": stored.params["encoder"] | {"adapter": drawn}}
    host = jax.tree.map(np.asarray, params)
    model = dataclasses.replace(stored, params=host, config=config)
    write_exported(epath.Path(tmp_path / "whole"), model, file_format="npz")
    place = str(tmp_path / "again")
    read = read_model(str(tmp_path / "whole"))
    write_exported(epath.Path(place), read, file_format="npz")
    assert ("adapter" in read.params["encoder"]) == (tie == "none")
    inputs = {"image": np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 8, 8, 1)}
    opened = open_trained(place)
    assert "adapter" not in opened.params["encoder"] and not opened.config.model.adapter.rank
    wanted = compiled.apply(module, params, inputs, train=False)[0]
    found = compiled.apply(opened.model, opened.params, inputs, train=False)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    if tie == "weights":
        assert read.result["params"] == stored.result["params"]
        assert read.result["params_unrolled"] == stored.result["params_unrolled"]
        before = compiled.apply(opened.model, stored.params, inputs, train=False)[0]
        assert np.abs(found - before).max() > 0.1
    if tie == "none":
        told = "adapter.tie=weights; add --config.model.adapter."
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        refuses(told, load_pretrained, place, device, model=stored.config["model"], info={})
