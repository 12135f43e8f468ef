"""Training, evaluation, prediction and finetuning need neither `ops/` nor `papers/`."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from small_runs import ROOT, run_of

MOST_MODULES = 81  # of the package that finetuning on the digits imports; empty files do not count
PROGRAM = """
import sys
from pathlib import Path

from widenet_jax.main import main

assert main(["main", *sys.argv[1:], "--workdir=finetuned"]) == 0
heavy = [name for name in ("tensorflow", "flax.nnx", "torch") if name in sys.modules]
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("widenet_jax")]
print(heavy, sum(bool(Path(file).read_text()) for file in files), file=sys.stderr)

from widenet_jax.cli import evaluate, predict

assert evaluate.main(["--workdir=finetuned"]) == 0
assert predict.main(["--workdir=finetuned", "digit.png"]) == 0
"""


@pytest.mark.slow
def test_in_a_copy_without_them(digits_run: Path, tmp_path: Path):
    """In a fresh interpreter, where finetuning also imports few modules and no TensorFlow or NNX.

    The classes are the same, so training starts where the run ended: without learning it stays.
    """
    left_out = shutil.ignore_patterns("__pycache__", "ops", "papers")
    shutil.copytree(ROOT / "widenet_jax", tmp_path / "widenet_jax", ignore=left_out)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    cv2.imwrite(str(tmp_path / "digit.png"), np.full((8, 8, 3), 200, np.uint8))
    config, fields = run_of("digits")
    fields = fields | {"duration": "2 steps", "evaluation.every": "2 steps"}
    fields |= {"optimizer.learning_rate": 0.0, "optimizer.weight_decay": 0.0}
    fields |= {"init_from": digits_run}
    flags = [f"--config={config}", *(f"--config.{name}={value}" for name, value in fields.items())]
    one = re.sub(r"(device_count)=\d+", r"\1=1", os.environ["XLA_FLAGS"])
    env = os.environ | {"PYTHONPATH": str(tmp_path), "XLA_FLAGS": one}
    program = [sys.executable, "-c", PROGRAM, *flags]
    run = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    heavy, modules = re.search(r"^(\[.*\]) (\d+)$", run.stderr, re.MULTILINE).groups()
    assert heavy == "[]" and int(modules) <= MOST_MODULES
    assert "the classes are the same: the head is kept" in run.stderr
    places = (digits_run, tmp_path / "finetuned")
    before, after = (json.loads((place / "result.json").read_text()) for place in places)
    assert before["params_sha256"] == after["params_sha256"]
    assert before["test_accuracy"] == pytest.approx(after["test_accuracy"], abs=0.003)
