"""A non-finite loss: the message names step, batch and command, and replay reproduces it."""

import json
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from small_runs import metrics_of, run_here, small_config

from configs.variants import model_section
from widenet_jax.data import sources
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.main import main, report_replay
from widenet_jax.nn.build import build_model
from widenet_jax.run.replay import finite_examples, first_not_finite, forward_noting

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


def test_a_start_that_allows_fewer_than_were_skipped(tmp_path: Path):
    """It would train nothing: a step is skipped, too, once more were skipped than is allowed."""
    how = {"checkpoint.every": "3 steps"}
    with pytest.raises(RunFailedError, match="evaluation cross entropy is nan after step 6"):
        run(tmp_path / "run", on_nonfinite="skip", max_skipped_updates=9, **how)
    with pytest.raises(BadInputError, match=r"has skipped 2 updates.*max_skipped_updates=3, or"):
        run(tmp_path / "run", **how)


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
    assert found["first_module"] == "encoder/block_00_norm_attention"
    assert "head/kernel" in found["not_finite"]["gradients"]
    assert len(found["batch"]) == len(found["not_finite"]["examples"]) == 64
    for place, record in zip(
        found["batch"], message.split("images ")[1].split(", ...")[0].split(", "), strict=False
    ):
        assert place.endswith(f" {record}")
    assert sorted(p.name for p in workdir.iterdir()) == before
    lines = report_replay(found).splitlines()
    assert lines[0].startswith("step 2: loss nan, gradient norm ")
    assert lines[1] == f"first module whose output is not finite: {found['first_module']}"
    assert len(lines) == 5 + len(found["not_finite"]["gradients"]) + 64 + 64


def test_other_examples_are_no_replay(failed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch):
    """Their batch would name examples that the run has not seen."""
    monkeypatch.setattr(sources, "contents_sha256", lambda source: "0")
    with pytest.raises(BadInputError, match=r"data with another content .* this model$"):
        run(failed[0], mode="replay")


class Twice(nn.Module):
    """A layer that runs twice, one run after the other or in a loop, and a last one."""

    looped: bool
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> tuple[jax.Array, dict]:
        del train
        layer = nn.Dense(1, use_bias=False, name="shared")
        run = nn.scan(lambda layer, x, _: (layer(x), None), variable_broadcast="params", length=2)
        x = run(layer, x, None)[0] if self.looped else layer(layer(x))
        return nn.Dense(1, use_bias=False, name="last")(x), {}


@pytest.mark.parametrize(
    ("shared", "last", "looped", "first"),
    [
        (1.0, 1.0, False, "none"),
        (1e30, 1.0, False, "shared, call 2"),
        (np.nan, 1.0, False, "shared"),
        (1.0, np.inf, False, "last"),
        (np.nan, 1.0, True, "last"),  # what runs in a loop of Linen's is not seen
    ],
)
def test_the_first_module_by_the_order_of_calls(
    shared: float, last: float, looped: bool, first: str
):
    values = {"shared": shared, "last": last}
    params = {name: {"kernel": np.full((1, 1), x, np.float32)} for name, x in values.items()}
    noting = jax.jit(partial(forward_noting, Twice(looped)))
    _, finite = jax.device_get(noting(params, np.ones((2, 1), np.float32)))
    assert first_not_finite(finite) == first


def test_outputs_that_no_example_has_alone():
    """With exits the logits after each of two loops are [R, B, V]."""
    logits = np.zeros((3, 5))
    logits[1, 2] = np.nan
    outputs = {"logits": logits, "loop_logits": np.stack([logits, logits]), "count": np.nan}
    assert finite_examples(outputs, 3).tolist() == [True, False, True]


@pytest.mark.parametrize("tie", ["weights", "none"])
def test_modules_of_a_model_with_adapters(tie: str):
    """Its blocks run merged, as without adapters, and each module is noted."""
    section = model_section("widenet_tiny") | {"adapter": {"rank": 2, "tie": tie}}
    model, x = build_model(section, num_classes=3), {"image": np.ones((4, 8, 8, 1), np.float32)}
    params = jax.jit(partial(model.init, train=False))(jax.random.key(0), x)["params"]
    params["encoder"]["block_01_norm_ffn"]["scale"] *= np.nan
    _, finite = jax.device_get(jax.jit(partial(forward_noting, model))(params, x))
    assert first_not_finite(finite) == "encoder/block_01_norm_ffn"


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
