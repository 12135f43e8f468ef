"""A text task with its own head, in one file: `similarity.py`."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from extensions.life_of_a_run import check_life, check_sweep
from small_runs import ROOT
from text_sets import FILLERS, write_tokenizer

import widenet_jax as wj
from widenet_jax.cli import evaluate, export, predict
from widenet_jax.config.files import load_config
from widenet_jax.ops.plan.planner import data_info, size_figures
from widenet_jax.ops.plan.topology import parse_topology

FILE = Path(__file__).with_name("similarity.py")
LINES = 120


def write_pairs(directory: Path) -> Path:
    """Writes pairs of sentences; the score is 2.5 for each sentence that holds "good"."""
    rng = random.Random(0)
    for split, count in (("train", 128), ("dev", 32)):
        rows = ["first\tsecond\tscore"]
        for number in range(count):
            ends = ["good" if number & bit else "bad" for bit in (1, 2)]
            pair = [" ".join([*rng.choices(FILLERS, k=2), end]) for end in ends]
            rows.append("\t".join([*pair, str(2.5 * ends.count("good"))]))
        (directory / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    write_tokenizer(directory)
    return directory


@pytest.mark.slow
def test_life(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    assert len(FILE.read_text().splitlines()) < LINES
    config = f"{FILE}:{write_pairs(tmp_path)}"
    result = check_life(lambda: load_config(config), tmp_path)
    assert result["test_pearson"] > 0.9 and result["test_pairs"] == 32
    check_sweep(config, result, tmp_path, monkeypatch)

    run, out = tmp_path / "unbroken", tmp_path / "exported"
    assert evaluate.main([f"--workdir={run}", f"--out={tmp_path / 'evaluation'}"]) == 0
    found = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert found["pearson"] == pytest.approx(result["test_pearson"])
    assert export.main([f"--workdir={run}", f"--out={out}"]) == 0
    assert "scoring how similar two sentences are" in (out / "README.md").read_text()
    bad, good = ([f"--{name}=the day was {word}" for name in ("first", "second")]
                 for word in ("bad", "good"))  # fmt: skip
    flags = [f"--workdir={out}", "--json"]
    # One of the pairs in a process that knows nothing of the task.
    command = [sys.executable, ROOT / "scripts/predict.py", *flags, *bad]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
    capsys.readouterr()
    assert predict.main([*flags, *good]) == 0
    low, high = (
        json.loads(text)["similarities"][0]["score"]
        for text in (found.stdout, capsys.readouterr().out)
    )
    assert low + 0.5 < high
    assert wj.load(out).task == "similarity"

    plan_config = load_config(config)
    sizes = data_info(plan_config, num_examples=128, vocab_size=32)
    figures = size_figures(plan_config, sizes, parse_topology("v3-8"))
    assert figures["params"] == result["params"] and figures["gflops_per_example"] > 0
