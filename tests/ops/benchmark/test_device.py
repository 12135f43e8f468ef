"""The report on devices, at the smallest sizes, on this machine's CPU."""

import json
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from widenet_jax.cli import benchmark
from widenet_jax.nn.moe.dispatch import DISPATCHERS
from widenet_jax.ops.benchmark import device
from widenet_jax.ops.benchmark.feed_forward import DispatchSize
from widenet_jax.run.figures import PALETTE

VIT = "configs/digits.py:vit_tiny,depth=1"
SMALLEST = device.Sizes(
    "float32", 16, 1, ((1, 8, 2, 4),), DispatchSize(2, 4, 2, 2, 2, 8, 8), (VIT, "configs/no.py"),
    batch=4, calls=1
)  # fmt: skip


def test_a_report_holds_what_was_measured_and_what_failed(
    monkeypatch, tmp_path: Path, capsys, drawn
):
    monkeypatch.setattr(device, "CPU", SMALLEST)
    out = tmp_path / "report"
    argv = ["device", f"--out={out}", "--rounds=1"]
    assert benchmark.main([*argv, "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads((out / "device.json").read_text())
    assert report == json.loads(captured.out)
    assert report["device"] == "cpu" and report["devices"] == 8 and report["packages"]["jax"]
    assert {"date", "host", "git"} < set(report) and report["seconds"] > 0
    assert [row["unit"] for row in report["peak"]] == ["TFLOP/s", "GB/s"]
    assert all(row["rate"] > 0 and row["share"] is None for row in report["peak"])
    assert [row["implementation"] for row in report["attention"]] == ["xla"]
    assert [row["method"] for row in report["dispatch"]] == list(DISPATCHERS)
    for row in report["attention"] + report["dispatch"]:
        assert row["ms"] > 0 and row["right"] and row["difference"] < 1e-5
    (step,) = report["steps"]
    assert step["config"] == VIT and step["batch_size"] == 32 and step["step_ms"] > 0
    assert step["planned_ms"] is None and step["no_plan"] == "cpu is no TPU that plans know"
    (failure,) = report["failures"]
    assert failure["part"] == "steps, configs/no.py" and "no Python file" in failure["reason"]

    page = (out / "device.md").read_text()
    assert page.startswith("# Device report: 8 x cpu\n") and "(device.png)" in page
    assert failure["reason"] in page and VIT in page and "| ragged" in page
    assert (out / "device.png").stat().st_size > 0
    bars = [to_hex(bar.get_facecolor()) for axis in drawn[0].axes for bar in axis.patches]
    assert {bar.upper() for bar in bars} <= set(PALETTE) and len(bars) == 2 + len(DISPATCHERS)

    assert benchmark.main(argv) == 2
    assert f"--out={out} exists; give a new directory" in capsys.readouterr().err


def test_plans_stand_beside_the_steps_of_a_known_tpu():
    """Four devices of v4 are four chips of two cores; the plan has the measured batch."""
    measured = {"batch_size": 64, "step_ms": 8.0, "attention": "pallas"}
    steps = [{"config": name, **measured} for name in ("a.py", "b.py")]
    asked = []

    def plan(*arguments):
        asked.append(arguments)
        fits = {"step_ms": 6.0, "serial_ms": 7.0, "collective_ms": 0.5, "hbm_peak_gib": 2.0}
        return fits if arguments[0] == "a.py" else "no compiler"

    device.add_plans({"device": "TPU v4", "devices": 4, "steps": steps}, plan)
    flags = ["--config.batch_size=64", "--config.model.attention.implementation=pallas"]
    assert sorted(asked) == [("a.py", "v4-8", flags), ("b.py", "v4-8", flags)]
    assert steps[0]["planned_ms"] == 6.0 and steps[0]["planned_per_measured"] == 0.75
    assert steps[0]["no_plan"] is None and steps[1]["no_plan"] == "no compiler"
    assert steps[1]["planned_ms"] is None and steps[1]["planned_per_measured"] is None


@pytest.mark.parametrize(
    ("kind", "devices", "name"),
    [("TPU v3", 8, "v3-8"), ("TPU v5 lite", 4, "v5e-4"), ("TPU v5", 4, "v5p-8"), ("cpu", 1, None)],
)
def test_devices_form_a_slice(kind: str, devices: int, name: str | None):
    assert device.slice_name(kind, devices) == name
