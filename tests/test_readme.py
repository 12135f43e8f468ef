"""The Python example of the README, run unchanged."""

import re
from pathlib import Path

import jax
import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs in a directory where the quickstart's workdir holds a finished run on the digits."""
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(digits_run)
    monkeypatch.chdir(tmp_path)

    found: dict = {}
    exec(compile(example, str(README), "exec"), found)

    # The picture is the digit that the example writes to a PNG file.
    original = found["load_digits"]().images[42]
    assert (found["picture"][..., 0] == original * 15).all()
    # Both ways give the same probability.
    (top,) = found["best"](found["classify"](found["picture"]), found["trained"], 1)
    assert top["class"] == str(found["logits"].argmax())
    assert top["probability"] == pytest.approx(float(jax.nn.softmax(found["logits"]).max()), 1e-4)
    # Every token selects two experts: 4x4 patches in each of the run's two blocks.
    assert found["aux"]["sums"]["load"].sum(axis=1).tolist() == [32, 32]
