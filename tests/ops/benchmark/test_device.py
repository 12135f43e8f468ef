"""The report on devices, at the smallest sizes, on this machine's CPU."""

import json
from pathlib import Path

import jax.numpy as jnp
import pytest
from matplotlib.colors import to_hex

from widenet_jax.cli import benchmark
from widenet_jax.config.files import load_config
from widenet_jax.errors import RunFailedError
from widenet_jax.nn.moe.dispatch import ANYWHERE
from widenet_jax.ops.benchmark import device
from widenet_jax.ops.benchmark.feed_forward import DispatchSize
from widenet_jax.run.figures import PALETTE
from widenet_jax.run.kernel_trial import Problem

VIT = "configs/digits.py:vit_tiny,depth=1"
SMALLEST = device.Sizes(
    "float32", 16, 1, (Problem((1, 8, 2, 4), "float32", mask=True, segment_ids=False),),
    DispatchSize(2, 4, 2, 2, 2, 8, 8), (VIT, "configs/no.py"), batch=16, calls=1
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
    found = [(row["implementation"], row["hides"]) for row in report["attention"]]
    assert found == [("xla", "mask")]
    assert [row["method"] for row in report["dispatch"]] == list(ANYWHERE)
    for row in report["attention"] + report["dispatch"]:
        assert row["ms"] > 0 and row["right"] and row["difference"] < 1e-5
    (step,) = report["steps"]
    assert step["config"] == VIT and step["batch_size"] == 32 and step["step_ms"] > 0
    assert step["planned_ms"] is None and step["no_plan"] == "cpu is no TPU that plans know"
    (failure,) = report["failures"]
    assert failure["part"] == "steps, configs/no.py" and "no Python file" in failure["reason"]

    page = (out / "device.md").read_text()
    assert page.startswith("# Device report: 8 x cpu\n") and "(device.png)" in page
    assert "Interrupted" not in page
    assert failure["reason"] in page and VIT in page and "| ragged" in page
    assert (out / "device.png").stat().st_size > 0
    bars = [to_hex(bar.get_facecolor()) for axis in drawn[0].axes for bar in axis.patches]
    assert {bar.upper() for bar in bars} <= set(PALETTE) and len(bars) == 2 + len(ANYWHERE)

    assert benchmark.main(argv) == 2
    assert f"--out={out} exists; give a new directory" in capsys.readouterr().err


def test_what_was_measured_is_kept_part_by_part(monkeypatch, tmp_path: Path):
    """A report that is interrupted at the third part has the first two."""
    monkeypatch.setattr(device, "CPU", SMALLEST)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "step_row", interrupted)
    assert benchmark.main(["device", f"--out={tmp_path / 'report'}", "--rounds=1"]) == 130
    report = json.loads((tmp_path / "report" / "device.json").read_text())
    assert len(report["peak"]) == 2 and report["seconds"] > 0 and report["steps"] == []
    page = (tmp_path / "report" / "device.md").read_text()
    assert "TFLOP/s" in page and "**Interrupted: what was measured by then.**" in page
    assert "device.png" not in page


def test_the_largest_batch_that_fits(monkeypatch):
    """On 8 devices, with 16 examples at first, mixed in groups of 16, and memory for 4."""
    tried = []

    def step(name, experiment, **_):
        tried.append((experiment.config.batch_size, experiment.config.augment.mixup_group_size))
        if experiment.config.batch_size > 32:
            raise RunFailedError("memory")
        return {"config": name, "device": "x", "devices": 8}

    monkeypatch.setattr(device, "train_step_row", step)
    sizes = SMALLEST._replace(batch=64)
    assert load_config("configs/imagenet.py:vit_b").augment.mixup_group_size == 16
    device.step_row("configs/imagenet.py:vit_b,depth=1", sizes, 1)
    assert tried == [(128, 16), (64, 8), (32, 4)]


def test_what_is_not_finite_is_wrong_and_valid_json():
    one, nan = jnp.ones(3), jnp.full(3, jnp.nan)
    assert device.apart([nan], lambda: [one]) == {"difference": None, "right": False}
    assert device.apart([one], lambda: [one]) == {"difference": 0.0, "right": True}
    assert device.apart([one], lambda: 1 / 0) == {"difference": None, "right": None}


def test_plans_stand_beside_the_steps_of_a_known_tpu():
    """Four devices of v4 are four chips of two cores; the plan has the measured batch."""
    measured = {"batch_size": 64, "step_ms": 8.0, "attention": "pallas"}
    names = [f"configs/digits.py:{name}_tiny" for name in ("vit", "vit_moe", "widenet")]
    steps = [{"config": name, **measured} for name in names]
    asked = []

    def plan(*arguments):
        asked.append(arguments)
        fits = {"step_ms": 6.0, "serial_ms": 7.0, "collective_ms": 0.5, "hbm_peak_gib": 2.0}
        return dict(zip(names, (fits, "no compiler", {"step_ms": None}), strict=True))[arguments[0]]

    device.add_plans({"device": "TPU v4", "devices": 4, "steps": steps}, plan)
    flags = ["--config.batch_size=64", "--config.evaluation.batch_size=64"]
    flags += ["--config.augment.mixup_group_size=16"]  # 16 examples on each of 4 devices
    flags += ["--config.model.attention.implementation=pallas"]
    assert sorted(asked) == sorted((name, "v4-8", flags) for name in names)
    assert steps[0]["planned_ms"] == 6.0 and steps[0]["planned_per_measured"] == 0.75
    assert steps[0]["with_collectives"] == 6.5 / 8
    assert steps[2]["no_plan"] == "the plan does not fit the memory"
    assert steps[0]["no_plan"] is None and steps[1]["no_plan"] == "no compiler"
    assert steps[1]["planned_ms"] is None and steps[1]["planned_per_measured"] is None


@pytest.mark.parametrize(
    ("kind", "devices", "name"),
    [("TPU v3", 8, "v3-8"), ("TPU v5 lite", 4, "v5e-4"), ("TPU v5", 4, "v5p-8"), ("cpu", 1, None)],
)
def test_devices_form_a_slice(kind: str, devices: int, name: str | None):
    assert device.slice_name(kind, devices) == name
