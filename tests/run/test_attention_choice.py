"""`implementation: auto`: a run asks the device once. Here a CPU stands for a TPU.

It interprets the kernel, which is slow: only a run that begins with pallas goes on with it.
"""

import json
from pathlib import Path

import jax
import pytest
from etils import epath
from small_runs import small_config

from widenet_jax import train
from widenet_jax.nn.attention import pallas, relative_pallas
from widenet_jax.nn.attention.implementations import CANDIDATES, candidate_for
from widenet_jax.ops.plan.planner import data_info
from widenet_jax.run.attention import Problem, compare, faster, problem_of
from widenet_jax.run.session import attention_of


@pytest.fixture(autouse=True)
def a_device_with_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CANDIDATES, "cpu", "pallas")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def train_digits(workdir: Path, steps: int, capsys: pytest.CaptureFixture, **fields) -> list[str]:
    """Trains a model with two heads of 64; returns the lines on its attention."""
    config = small_config(duration=f"{steps} steps", **fields)
    config.model.attention.update(num_heads=2, head_dim=64)
    train.run(config, str(workdir))
    return [line for line in capsys.readouterr().err.splitlines() if "attention: " in line]


def used(workdir: Path) -> list[str]:
    """Returns the implementation of each start."""
    return [start["attention"] for start in json.loads((workdir / "environment.json").read_text())]


PROBLEM = Problem((2, 16, 2, 64), "float32", True, False)


def test_a_kernel_that_is_right_is_judged_by_its_time():
    name, line = compare(PROBLEM, "pallas")
    assert (name, line[:40]) in (
        ("xla", "attention: xla; pallas takes " + line[29:40]),
        ("pallas", "attention: pallas, " + line[19:40]),
    )
    assert line.endswith("[2, 16, 2, 64] float32")


def test_a_kernel_that_is_wrong_is_not_used(tmp_path, monkeypatch):
    """With one sign flipped, the output is off by more than its own size."""
    right = pallas.per_head
    monkeypatch.setattr(pallas, "per_head", lambda x, settings: [-y for y in right(x, settings)])
    config = small_config(batch_size=2)
    config.model.attention.update(num_heads=2, head_dim=64)
    info = data_info(config)
    used, line = attention_of(config, info, jax.devices()[:1], epath.Path(tmp_path))
    assert used == "xla" and line.startswith("attention: xla; pallas is wrong here, by ")


def test_a_kernel_that_does_not_run(monkeypatch):
    name, line = compare(PROBLEM._replace(shape=(2, 16, 3, 64)), "pallas")
    assert name == "xla" and "pallas does not run here on [2, 16, 3, 64] float32: " in line


def test_relative_attention_is_measured_with_its_memory():
    """Not where the kernel lacks the evaluation's memory; cuDNN has no relative attention."""
    problem = PROBLEM._replace(shape=(1, 128, 2, 64), memory=128, waves=8, eval_memory=4096)
    name, line = compare(problem, "pallas")
    assert (name, line[:56]) == ("xla", "attention: xla; pallas does not take a memory of 4096, [")
    assert candidate_for({"name": "relative"}, "gpu") is None
    assert candidate_for({"name": "full"}, "gpu") == "cudnn"


@pytest.mark.slow
def test_relative_attention_is_right_and_judged_by_its_time(monkeypatch):
    problem = PROBLEM._replace(shape=(2, 128, 2, 64), memory=128, waves=8, eval_memory=512)
    name, line = compare(problem, "pallas")
    assert name in ("xla", "pallas") and line.endswith("[2, 128, 2, 64] float32, memory 128")
    assert "wrong" not in line and "does not" not in line
    right = relative_pallas.centred  # of the gradient of the queries' terms alone
    monkeypatch.setattr(relative_pallas, "centred", lambda x, axis: -right(x, axis=axis))
    _, line = compare(problem, "pallas")
    assert "pallas is wrong here, by 200% in the gradient of the queries' terms" in line


@pytest.mark.slow
def test_a_language_model_without_memory_is_measured_as_it_runs(monkeypatch):
    """A kernel that shows later tokens is wrong there."""
    config = small_config(run="switch_head", batch_size=4)
    problem = problem_of(config, data_info(config), 2)
    assert problem == Problem((2, 32, 4, 24), "float32", False, False, causal=True)
    problem = problem._replace(shape=PROBLEM.shape)
    assert "wrong" not in compare(problem, "pallas")[1]
    monkeypatch.setattr(pallas, "later_hidden", lambda scores, block: scores)
    assert "pallas is wrong here" in compare(problem, "pallas")[1]


def test_the_answer_is_kept(tmp_path: Path, monkeypatch):
    """A damaged one is found again: here the kernel is gone by then."""
    [device, *_] = jax.devices()
    first = faster(PROBLEM, "pallas", device)
    monkeypatch.setattr(pallas, "kernel_attend", None)  # would fail
    assert faster(PROBLEM, "pallas", device) == first
    [file] = (tmp_path / "cache").rglob("*.json")
    for text in ("[1", '["pallas"]', '["rope", "a line"]', "3"):
        file.write_text(text)
        name, line = faster(PROBLEM, "pallas", device)
        assert line.startswith("attention: xla; pallas does not run here")
        assert json.loads(file.read_text()) == [name, line]


@pytest.mark.slow
def test_a_change_is_said(tmp_path, capsys):
    fields = {"model.attention.implementation": "pallas"}
    assert train_digits(tmp_path / "run", 2, capsys, **fields) == []
    assert train_digits(tmp_path / "run", 3, capsys) == []  # auto keeps it and does not ask
    [line] = train_digits(tmp_path / "run", 4, capsys, **{"model.attention.implementation": "xla"})
    assert line.endswith(
        "attention: xla; pallas until now: from here on "
        "numbers differ from an unbroken run's by rounding"
    )
    assert used(tmp_path / "run") == ["pallas", "pallas", "xla"]
