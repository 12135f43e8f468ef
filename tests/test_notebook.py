"""The notebook of docs/: its cells run in order."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import ROOT

NOTEBOOK = ROOT / "docs" / "start" / "digits.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_cells_run_as_they_are(tmp_path: Path):
    """As one program on one device, outside the checkout: each of 16 tokens has two experts."""
    one_device = re.sub(r"(device_count)=\d+", r"\1=1", os.environ["XLA_FLAGS"])
    more = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "XLA_FLAGS": one_device}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(CODE)], cwd=tmp_path, env=os.environ | more,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert re.match(r"[\d.]+% of 360 test images\n", text)
    assert float(text.partition("%")[0]) > 70
    assert len(re.findall(r"^\d \['\d: \d+%', '\d: \d+%'\]$", text, re.MULTILINE)) == 5
    loads = re.findall(r"^block \d \[(.*)\]$", text, re.MULTILINE)
    assert [sum(map(int, load.split())) for load in loads] == [32] * 3
