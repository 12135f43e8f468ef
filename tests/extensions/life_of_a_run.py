"""Checks for runs of any task: train, evaluate, checkpoint, resume, draw, sweep."""

import csv
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from small_runs import ROOT, assert_same_end, last_step, metrics_of, train_here

from widenet_jax.cli.sweep import main as sweep
from widenet_jax.errors import StoppedError
from widenet_jax.run.stopping import Stop


class StopAfter(Stop):
    """Stop request that arrives after some steps."""

    def __init__(self, steps: int):
        super().__init__()
        self.left = steps

    def check(self) -> None:
        self.left -= 1
        if not self.left:
            self.reason = "a request"
        super().check()


def check_life(get_config: Callable[[], ConfigDict], directory: Path) -> dict:
    """Trains a run twice on one device, unbroken and stopped and resumed; returns the result.

    Args:
      get_config: returns the run's config.
      directory: an empty directory.
    """
    unbroken, resumed = directory / "unbroken", directory / "resumed"
    result = train_here(get_config(), unbroken)
    with pytest.raises(StoppedError, match="saved after step 1"):
        train_here(get_config(), resumed, stop=StopAfter(1))
    assert last_step(resumed) == 1
    train_here(get_config(), resumed)
    assert_same_end(resumed, unbroken)

    name = result["primary_metric"]["name"]
    evaluations = [record[name] for record in metrics_of(unbroken, "eval")]
    assert result[f"test_{name}"] == pytest.approx(evaluations[-1])
    (best,) = (unbroken / "best").glob("[0-9]*")
    stored = json.loads((best / "meta" / "metadata").read_text())[name]
    choose = max if result["primary_metric"]["higher_is_better"] else min
    assert stored == pytest.approx(choose(evaluations))
    assert (unbroken / "learning_curve.png").stat().st_size > 10_000
    return result


def check_sweep(file: str, result: dict, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps over one run of the config file, on one device; the run ends as `result` says."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    monkeypatch.setenv("XLA_FLAGS", re.sub(r"(device_count)=\d+", r"\1=1", os.environ["XLA_FLAGS"]))
    assert sweep([f"--config={file}", f"--workdir={directory / 'sweep'}", "--sweep=seed=0"]) == 0
    with (directory / "sweep" / "results.csv").open() as table:
        (row,) = csv.DictReader(table)
    name = f"test_{result['primary_metric']['name']}"
    # XLA rounds by the number of virtual devices, which differs in the sweep's process.
    assert float(row[name]) == pytest.approx(result[name], abs=0.05)
    assert (directory / "sweep" / "learning_curves.png").exists()
