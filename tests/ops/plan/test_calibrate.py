"""plan.py --calibrate: prices beside measured times, and the file of measurements."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from ops.compiler import needs_libtpu
from refusals import refused

from widenet_jax.cli.plan import main
from widenet_jax.ops.plan import calibrate
from widenet_jax.ops.plan.calibrate import bands, draw, kernels_computing
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.schedule import Schedule
from widenet_jax.run.figures import PALETTE

ROWS = """
import jax

from widenet_jax.ops.plan.calibrate import Measurement, Program


def product(size):
    x = jax.ShapeDtypeStruct((size, size), jax.numpy.bfloat16)
    return lambda: [Program(0.5, jax.numpy.dot, (x, x))]


ROWS = [
    Measurement("large", "v5e-1", 0.7, "by trace", "a page", product(4096)),
    Measurement("small", "v5e-1", 1.0, "by trace", "a page", product(1024), outside="a guess"),
]
"""


def test_schedules_and_estimates_have_colours_and_markers(tmp_path: Path, drawn):
    row = {"name": "flash_attention", "tpu": "v3-8", "outside": ""}
    row |= {"ratio": 0.9, "apart_ratio": 1.2, "old": 2.0}
    draw([row, row | {"outside": "a guess"}], str(tmp_path / "a.png"))
    span, _, schedule, estimate, _ = drawn[0].axes[0].lines
    assert drawn[0].axes[0].get_ylim() == (0.4, 2.6)  # the rows, at 2 and 1, lie within
    names = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    assert names == ["flash attention on v3-8", "flash attention on v3-8*"]
    assert [*span.get_xdata()] == [0.9, 1.2] and [*estimate.get_xdata()] == [2.0, 2.0]
    assert {line.get_color() for line in (span, schedule, estimate)} == {PALETTE[0], PALETTE[5]}
    assert (schedule.get_marker(), estimate.get_marker()) == ("o", "X")


@needs_libtpu
def test_a_file_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Half of 2 x 4096 cubed operations takes 0.349 ms at the peak of a v5e chip."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # libtpu aborts on a flag it does not know
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file, picture = tmp_path / "rows.py", tmp_path / "ratios.png"
    file.write_text(ROWS)
    argv = [f"--calibrate={file}", "--rows", "large", f"--out={picture}"]
    assert main([*argv, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert 0.349 <= row["ms"] <= 1.1 * 0.349
    assert row["ratio"] == row["ms"] / 0.7
    assert row["apart_ms"] == row["serial_ms"] + row["collective_ms"] > row["ms"]
    assert picture.read_bytes().startswith(b"\x89PNG")

    # Another process finds the row in the cache.
    command = [sys.executable, "-m", "widenet_jax.cli.plan", *argv]
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not second.stderr
    out = second.stdout
    header, _, line, *_, last = out.splitlines()
    cells = dict(zip(*([c.strip() for c in t.split("|")] for t in (header, line)), strict=True))
    assert cells["workload"] == "large" and cells["ratio"] == f"{row['ratio']:.2f}"
    assert last.startswith(f"all: predicted / measured {row['ratio']:.2f} to")


def test_kernels_that_skip_blocks():
    """Three quarters of a kernel's 100 rows a trip count, also of those that a branch skips."""
    module = parse(
        "ENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8]{0} parameter(0)\n"
        '  %k = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call"\n'
        "  ROOT %f = f32[8]{0} negate(%k)\n}\n"
    )
    schedules = {"k": Schedule(10, 100, 2, (0, 60)), "f": Schedule(5, 50, seldom=(20,))}
    assert kernels_computing(module, schedules, 0.75) == {"k": Schedule(10, 75, 2)}
    assert kernels_computing(module, schedules, 1.0) == {}


def test_bands_leave_rows_out():
    ratios = {0.8: "", 1.2: "", 0.1: "an upper bound"}
    rows = [
        {"tpu": "v3-8", "ratio": ratio, "apart_ratio": 2 * ratio, "outside": outside}
        for ratio, outside in ratios.items()
    ]
    band = "predicted / measured 0.80 to 1.20, 1.60 to 2.40 without overlap (2 rows)"
    assert bands(rows) == [f"v3: {band}", f"all: {band}"]
    assert bands(rows[2:]) == []


@pytest.mark.parametrize(
    ("name", "content", "flags", "told"),
    [
        ("a.py", ROWS, ["--rows", "larg"], "--rows larg: did you mean large? there are large, sm"),
        ("a.py", None, [], "there is no file"),
        ("rows.txt", "", [], "no such Python file"),
        ("a.py", "x = (", [], "a.py, line 1: SyntaxError"),
        ("a.py", "", [], "ROWS"),
    ],
)
def test_mistakes_are_one_line(name: str, content, flags: list, told: str, tmp_path: Path, capsys):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert told in refused(capsys, main, f"--calibrate={tmp_path / name}", *flags)


def test_an_installation_has_no_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys):
    monkeypatch.setattr("widenet_jax.ops.plan.calibrate.MEASUREMENTS", tmp_path / "rows.py")
    assert "part of a checkout" in refused(capsys, main, "--calibrate")


@pytest.mark.slow
def test_every_measured_workload_is_traced():
    rows = calibrate.read_measurements(str(calibrate.MEASUREMENTS), None)
    assert len({row.tpu.partition("-")[0] for row in rows}) == 5
    with jax.set_mesh(Mesh(np.array(jax.devices()[:1]), ("data",))):
        for row in rows:
            for _, function, args in row.programs():
                jax.eval_shape(function, *args)
