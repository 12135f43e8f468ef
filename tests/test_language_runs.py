"""Runs of a language model: resumed, moved and repeated with the memory that they had."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from compiled import apply
from extensions.life_of_a_run import StopAfter
from small_runs import assert_same_end, at_step, finish, metrics_of, run_here, start_two

from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.cli import export
from widenet_jax.errors import BadInputError, RunFailedError, StoppedError
from widenet_jax.inference.over_source import metrics_over_source
from widenet_jax.inference.pretrained import finetune_params, load_pretrained
from widenet_jax.inference.trained import open_trained
from widenet_jax.losses import label_cross_entropy

# 2,000 bytes are three steps an epoch of 16 rows, and three windows to evaluate.
ROWS, T, EPOCH = 16, 32, 3
TEXT = bytes(np.random.default_rng(0).integers(97, 123, 2000, np.uint8))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "letters.txt"
    path.write_bytes(TEXT)
    return path


def changes_of(text: Path, **changes: object) -> dict[str, object]:
    fields = {"data.source": "token_stream", "data.path": str(text), "duration": "5 steps"}
    fields |= {
        "model.loop.core": ((1, 1),),
        "evaluation.every": "5 steps",
        "evaluation.batch_size": 1,
    }
    return fields | changes


def run(workdir: Path, text: Path, *, kind: str = "sigma_moe", **changes) -> dict:
    return run_here(workdir, run=kind, **changes_of(text, **changes))


def carry_in(directory: Path) -> dict[str, np.ndarray]:
    with ocp.StandardCheckpointer() as reader:
        return {name: np.asarray(x) for name, x in reader.restore(directory / "carry").items()}


@pytest.fixture(scope="module")
def unbroken(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("runs") / "unbroken"
    run(workdir, text)
    return workdir


def result_in(workdir: Path) -> dict:
    return json.loads((workdir / "result.json").read_text())


def test_stopped_within_an_epoch_and_resumed(text: Path, unbroken: Path, tmp_path: Path):
    """Parameters and memory end with the same bytes; the run crosses the end of an epoch.

    In training some experts are hidden from each token.
    """
    with pytest.raises(StoppedError, match="saved after step 1"):
        run(tmp_path / "run", text, stop=StopAfter(1))
    carry = carry_in(tmp_path / "run" / "checkpoints" / "1")
    assert carry["memory"].shape == (ROWS, 1, T, 32) and (carry["memory_length"] == T).all()
    run(tmp_path / "run", text)
    assert_same_end(tmp_path / "run", unbroken)
    (best,) = (tmp_path / "run" / "best").glob("[0-9]*")
    assert (best / "params").exists() and not (best / "carry").exists()
    result = result_in(unbroken)
    bits = result["test_bits_per_byte"]
    assert result["test_cross_entropy"] == pytest.approx(np.log(2) * bits)
    assert result["test_sequences"] == 3 and 4 < bits < 9
    # Of the bytes that the three windows predict.
    share = np.bincount([*TEXT[1801 : 1801 + 3 * T]]) / (3 * T)
    entropy = -sum(p * np.log2(p) for p in share if p)
    assert result["baseline"]["metric"] == "bits_per_byte"
    assert result["baseline"]["value"] == pytest.approx(entropy)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["language", "s_base", "switch_head"])
def test_dense_and_balanced_runs_resume_with_the_same_bytes(text: Path, tmp_path: Path, kind: str):
    fields = {"checkpoint.every": "2 steps", "duration": "3 steps", "evaluation.every": "3 steps"}
    whole = tmp_path / "whole"
    run(whole, text, kind=kind, **fields)
    broken = at_step(tmp_path / "broken", whole, 2)
    run(broken, text, kind=kind, **fields)
    assert_same_end(broken, whole)


def test_another_text_is_refused(unbroken: Path, tmp_path: Path):
    """A finished run neither resumes nor evaluates on another text; the same text may move."""
    other = tmp_path / "letters.txt"
    other.write_bytes(TEXT)
    assert run(unbroken, other, mode="eval")["test_sequences"] == 3
    other.write_bytes(TEXT[::-1])
    for mode in ("train", "eval"):
        with pytest.raises(BadInputError, match="trained on data with another text than") as caught:
            run(unbroken, other, mode=mode)
        assert f"a new --workdir, in which --config.init_from={unbroken} starts" in str(
            caught.value
        )


@pytest.mark.slow
def test_evaluation_remembers_all_windows(unbroken: Path):
    """One row of three windows has the loss of a single pass over all of its tokens."""
    trained = open_trained(str(unbroken))
    # The few steps of the run have hardly taught the model to look at other tokens.
    trained = dataclasses.replace(trained, params=jax.tree.map(lambda x: 4 * x, trained.params))
    tokens = np.frombuffer(TEXT[1800 : 1800 + 3 * T + 1], np.uint8).astype(np.int32)[None]

    def loss(first: int, end: int) -> float:
        inputs = {"tokens": tokens[:, first:end], "memory": jax.numpy.zeros((1, 1, 0, 32))}
        inputs["memory_length"] = np.zeros(1, np.int32)
        outputs, _ = apply(trained.model, trained.params, inputs, train=False)
        return float(label_cross_entropy(outputs["logits"], tokens[:, first + 1 : end + 1]).mean())

    metrics, *_ = metrics_over_source(trained)
    assert metrics["cross_entropy"] == pytest.approx(loss(0, 3 * T), rel=1e-5)
    apart = np.mean([loss(n * T, n * T + T) for n in range(3)])
    assert metrics["cross_entropy"] != pytest.approx(apart, rel=1e-3)


def test_export_and_start_from_it(unbroken: Path, tmp_path: Path):
    """The export opens with the run's results; another run takes all of its parameters."""
    out, result = tmp_path / "export", result_in(unbroken)
    assert export.main([f"--workdir={unbroken}", f"--out={out}"]) == 0
    trained = open_trained(str(out))
    metrics, facts, *_ = metrics_over_source(trained)
    assert facts["baseline"] == result["baseline"]
    assert metrics["bits_per_byte"] == pytest.approx(result["test_bits_per_byte"], rel=1e-6)
    card = (out / "README.md").read_text()
    assert "# Language model, predicting the next token" in card
    assert ", relative attention, " in card
    assert f"bits per byte | {result['test_bits_per_byte']:.4f} of 3 sequences" in card
    flags = [f"--workdir={unbroken}", f"--out={tmp_path / 'hf'}", "--format=huggingface"]
    assert export.main(flags) == 2

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    model = trained.config.model
    stored, *_ = load_pretrained(str(out), device, model=model, info=trained.info)
    fresh = jax.tree.map(np.zeros_like, stored)
    params, told = finetune_params(fresh, stored, model=model, source="EXPORT")
    assert params_sha256(params) == result["params_sha256"]
    assert told == "taken from EXPORT: encoder, embedding, output; new: nothing"


@pytest.mark.slow
def test_a_failed_step_is_repeated_with_its_memory(text: Path, tmp_path: Path):
    """The first update is far too large; the memory that the second step met is kept for it."""
    wild = {"optimizer.learning_rate": 1e30, "optimizer.name": "sgd"}
    wild |= {"optimizer.warmup": "0 steps", "optimizer.grad_clip_norm": 0.0}
    with pytest.raises(RunFailedError, match="the loss is nan at step 2"):
        run(tmp_path, text, **wild)
    kept = carry_in(tmp_path / "failed" / "1")
    assert (kept["memory_length"] == T).all() and np.isfinite(kept["memory"]).all()
    found = run(tmp_path, text, mode="replay", **wild)
    assert (found["step"], found["loss"]) == (2, "nan")
    # Row b of the second step holds window 3 b + 1.
    starts = [
        int(place.split("tokens ")[1].split(" to")[0].replace(",", "")) for place in found["batch"]
    ]
    assert starts == [(EPOCH * row + 1) * T for row in range(ROWS)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["language", "sigma_moe", "s_base", "switch_head"])
def test_other_devices_and_hosts(text: Path, tmp_path: Path, kind: str):
    """8 -> 1 -> 4 devices, and two processes: the losses of one device, within 1e-5."""
    fields = {"duration": "12 steps", "evaluation.every": "12 steps"}
    fields |= {"evaluation.batch_size": ROWS, "checkpoint.every": "4 steps"}
    run(tmp_path / "one", text, kind=kind, **fields)
    fields, place = changes_of(text, **fields), tmp_path / "moved"
    for devices in (8, 1):
        with pytest.raises(StoppedError):
            run_here(place, run=kind, devices=devices, stop=StopAfter(4), **fields)
    run_here(place, run=kind, devices=4, **fields)
    for process in start_two(tmp_path / "two", run=kind, **fields):
        finish(process)
    losses = {p.name: [r["loss"] for r in metrics_of(p)] for p in tmp_path.iterdir()}
    for name in ("moved", "two"):
        np.testing.assert_allclose(losses[name], losses["one"], rtol=1e-5)
