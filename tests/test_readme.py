"""The Python example of the README, run unchanged, and the accuracy of its quickstart."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import widenet_jax as wj
from configs import digits
from widenet_jax import train
from widenet_jax.errors import BadInputError

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs in a directory where the quickstart's workdir holds a finished run on the digits."""
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(digits_run)
    monkeypatch.chdir(tmp_path)

    found: dict = {}
    exec(compile(example, str(README), "exec"), found)

    # Both ways give the same probability.
    (top, second), *others = found["found"]
    assert top["class"] == str(found["logits"].argmax()) and len(others) == 2
    assert top["probability"] == pytest.approx(float(jax.nn.softmax(found["logits"]).max()), 1e-4)
    assert top["probability"] >= second["probability"]
    assert found["vectors"].shape == (3, 32)
    assert found["untrained"].embed_dim == 768
    # Every token selects two experts: 4x4 patches in each of the run's two blocks.
    assert found["aux"]["sums"]["load"].sum(axis=1).tolist() == [32, 32]


def test_a_checkpoint_by_its_step(digits_run: Path):
    """The run keeps those after 10 and 20 steps."""
    assert [wj.load(digits_run, checkpoint=step).step for step in (10, "last")] == [10, 20]
    with pytest.raises(BadInputError, match="15"):
        wj.load(digits_run, checkpoint=15)


@pytest.mark.slow
def test_digits_reach_97_percent(tmp_path: Path):
    """Compares the mean test accuracy of the last checkpoints of seeds 0, 1, 2."""
    accuracies = []
    for seed in range(3):
        config = digits.get_config()
        config.seed = seed
        result = train.run(config, str(tmp_path / str(seed)), devices=jax.devices()[:1])
        accuracies.append(result["test_accuracy"])
    assert np.mean(accuracies) >= 0.97
