"""scripts/plan.py: output and error messages."""

import json
from pathlib import Path

import pytest

from widenet_jax.config.files import import_file
from widenet_jax.ops.plan import compile as planning
from widenet_jax.ops.plan import counts, report
from widenet_jax.ops.plan.compile import CompiledStep
from widenet_jax.ops.plan.topology import Topology

ROOT = Path(__file__).parents[3]
HLO = """HloModule m

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} negate(%x), metadata={op_name="jit(train_step)/add"}, \
backend_config={"estimated_cycles":"940000"}
}
"""
KEYS = {
    "params", "params_unrolled", "step_ms", "compiler_priced_share", "hbm_peak_gib",
    "hbm_limit_gib", "fits", "examples_per_second_per_core", "mfu", "core_days", "collective_ms",
}  # fmt: skip


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch):
    """Returns `main` of the command with a double of the compiler: one millisecond per step."""

    class Double:
        def __init__(self, topology: Topology, **options):
            self.topology = topology

        def compile(self, name, config, data) -> CompiledStep:
            return CompiledStep(HLO, True, 2.0**30, 1.0)

    monkeypatch.setattr(planning, "TpuCompiler", Double)
    monkeypatch.chdir(ROOT)
    return import_file("scripts/plan.py").main


def test_json_has_the_documented_keys(plan, capsys: pytest.CaptureFixture):
    assert plan(["--config=configs/digits.py:widenet_tiny", "--topology=v3-8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts.keys() >= KEYS
    assert facts["step_ms"] == pytest.approx(1.0) and facts["hbm_peak_gib"] == 1.0
    assert facts["examples_per_second_per_core"] == pytest.approx(64 / 8 / 1e-3)


def test_overrides_cost_hlo_and_breakdown(plan, capsys: pytest.CaptureFixture, tmp_path: Path):
    argv = ["--config=configs/digits.py:widenet_tiny", "--topology=v3-8", "--breakdown"]
    argv += ["--config.batch_size=128", "--price_per_core_hour=10", f"--dump_hlo={tmp_path}/x.hlo"]
    assert plan(argv) == 0
    out = capsys.readouterr().out
    assert "batch 128, 16 images per core" in out
    # 100 epochs of 1,437 digits in batches of 128: 1,123 steps of 1 ms on 8 cores.
    assert f"{1123 * 1e-3 / 3600 * 8 * 10:,.2f}" in out
    assert "optimizer" in out.splitlines()[-1] and "100.0%" in out.splitlines()[-1]
    assert (tmp_path / "x.hlo").read_text() == HLO


def test_compare_and_paper(plan, capsys: pytest.CaptureFixture, monkeypatch):
    argv = ["--compare", "configs/digits.py:vit_tiny", "configs/digits.py:widenet_tiny"]
    assert plan([*argv, "--topology=v3-8", "--json"]) == 0
    assert [facts["params"] for facts in json.loads(capsys.readouterr().out)] == [77_898, 53_066]
    monkeypatch.setattr(report, "PAPER_VARIANTS", ("vit_b,depth=1",))
    monkeypatch.setattr(report, "PAPER_CORE_DAYS", {"vit_b,depth=1": 70})
    assert plan(["--paper"]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.split("|")[-2].strip() == "paper"
    assert row.split("|")[-2].strip() == "70"


def test_every_model_of_the_paper_appears_once():
    assert len(report.PAPER_VARIANTS) == len(set(report.PAPER_VARIANTS)) == 19
    assert report.PAPER_CORE_DAYS.keys() <= set(report.PAPER_VARIANTS)


def test_counts(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """One row stands for all; it needs no compiler."""
    monkeypatch.setattr(counts, "PRETRAINING", ())
    for rows in ("TEXT", "LANGUAGE_COUNTS", "KEYS"):
        monkeypatch.setattr(counts, rows, ())
    monkeypatch.setattr(counts, "FINETUNING", counts.FINETUNING[:1])
    assert import_file(str(ROOT / "scripts/plan.py")).main(["--counts", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"tables": "5", "model": "ViT-B", "variant": "vit_b", "params": 85_806_346,
                   "params_unrolled": 85_806_346, "printed": 85, "agrees": True}  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--config=configs/digits.py", "--topology=v9-8"], "no TPU generation v9"),
        (["--config=configs/digits.py:nothing"], "no model is named 'nothing'"),
        (["--config=configs/digits.py", "--config.batch_sice=64"], "did you mean"),
        (["--config=configs/digits.py", "--breakdwn"], "no flag --breakdwn"),
        (["--compare", "configs/digits.py", "configs/digits.py", "--dump_hlo=x"], "one --config"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(plan, capsys, argv: list[str], says: str):
    assert plan(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and says in captured.err
    assert captured.err.count("\n") == 1
