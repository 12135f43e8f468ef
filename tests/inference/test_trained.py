"""Opening a trained model: changes to its config, and changes that do not fit."""

import json

import pytest
from refusals import refuses

from widenet_jax.inference.trained import open_trained, result_at


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
