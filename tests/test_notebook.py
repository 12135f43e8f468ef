"""The notebook of docs/: its cells run in order."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import ROOT, small_config

NOTEBOOK = ROOT / "docs" / "digits.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def check_printed(text: str, blocks: int) -> None:
    """Asserts that the cells print what they claim: each of 16 tokens goes to two experts."""
    assert re.match(r"[\d.]+% of 360 test images\n", text)
    assert len(re.findall(r"^\d \['\d: \d+%', '\d: \d+%'\]$", text, re.MULTILINE)) == 5
    loads = re.findall(r"^block \d \[(.*)\]$", text, re.MULTILINE)
    assert [sum(map(int, load.split())) for load in loads] == [32] * blocks


@pytest.mark.slow
def test_the_cells_run(digits_run: Path, tmp_path: Path, monkeypatch, capsys):
    """On a finished run of a smaller config, which the cell that trains reports."""
    import matplotlib.pyplot as plt

    shutil.copytree(digits_run, tmp_path / "runs" / "notebook")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for number, code in enumerate(CODE):
        exec(compile(code, f"{NOTEBOOK.name}, code cell {number}", "exec"), names)
        if number == 0:
            assert names["config"].duration == "10 epochs"
            names["config"] = small_config()
    plt.close("all")
    check_printed(capsys.readouterr().out, blocks=2)


@pytest.mark.slow
def test_the_cells_run_as_they_are(tmp_path: Path):
    """As one program on one device, in a directory outside the checkout."""
    one_device = re.sub(r"(device_count)=\d+", r"\1=1", os.environ["XLA_FLAGS"])
    more = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "XLA_FLAGS": one_device}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(CODE)], cwd=tmp_path, env=os.environ | more,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_printed(done.stdout, blocks=3)
    assert float(done.stdout.partition("%")[0]) > 70
