"""scripts/plan.py: output and error messages; plans as text."""

import json
from pathlib import Path

import pytest
from refusals import refused

from widenet_jax.cli.plan import plan_line
from widenet_jax.config.files import import_file
from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan import compile as planning
from widenet_jax.ops.plan import printed, report
from widenet_jax.ops.plan.compile import CompiledStep
from widenet_jax.ops.plan.printed import Printed
from widenet_jax.ops.plan.report import comparison, plan_rows
from widenet_jax.ops.plan.schedule import Schedule
from widenet_jax.ops.plan.topology import Topology

ROOT = Path(__file__).parents[3]
HLO = """HloModule m

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} negate(%x), metadata={op_name="jit(train_step)/add"}
}
"""
KEYS = {
    "params", "params_unrolled", "step_ms", "scheduled_share", "serial_ms", "hbm_peak_gib",
    "hbm_limit_gib", "fits", "examples_per_second_per_core", "mfu", "core_days", "collective_ms",
}  # fmt: skip


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch):
    """Returns `main` of the command with a double of the compiler: one millisecond per step."""

    class Double:
        def __init__(self, topology: Topology, **options):
            self.topology = topology

        def compile(self, name, config, data) -> CompiledStep:
            return CompiledStep(HLO, {"a": Schedule(940_000, 0)}, True, 2.0**30, 1.0)

    monkeypatch.setattr(planning, "TpuCompiler", Double)
    monkeypatch.chdir(ROOT)
    return import_file("scripts/plan.py").main


def test_json_has_the_documented_keys(plan, capsys: pytest.CaptureFixture):
    assert plan(["--config=configs/digits.py:widenet_tiny", "--topology=v3-8", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.keys() >= KEYS
    assert figures["step_ms"] == pytest.approx(1.0) and figures["hbm_peak_gib"] == 1.0
    assert figures["examples_per_second_per_core"] == pytest.approx(64 / 8 / 1e-3)


def test_overrides_cost_and_breakdown(plan, capsys: pytest.CaptureFixture):
    argv = ["--config=configs/digits.py:widenet_tiny", "--topology=v3-8", "--breakdown"]
    argv += ["--config.batch_size=128", "--price_per_core_hour=10"]
    assert plan(argv) == 0
    out = capsys.readouterr().out
    assert "batch 128, 16 images per core" in out
    # 100 epochs of 1,437 digits in batches of 128: 1,123 steps of 1 ms on 8 cores.
    assert f"{1123 * 1e-3 / 3600 * 8 * 10:,.2f}" in out
    assert "optimizer" in out.splitlines()[-1] and "100.0%" in out.splitlines()[-1]


def test_compare_and_paper(plan, capsys: pytest.CaptureFixture, monkeypatch):
    argv = ["--compare", "configs/digits.py:vit_tiny", "configs/digits.py:widenet_tiny"]
    assert plan([*argv, "--topology=v3-8", "--json"]) == 0
    assert [figures["params"] for figures in json.loads(capsys.readouterr().out)] == [
        77_898,
        53_066,
    ]
    monkeypatch.setattr(report, "PAPER_VARIANTS", ("vit_b,depth=1",))
    monkeypatch.setattr(report, "PAPER_CORE_DAYS", {"vit_b,depth=1": 70})
    assert plan(["--paper"]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.split("|")[-2].strip() == "paper"
    assert row.split("|")[-2].strip() == "70"


def test_several_slices_are_columns(plan, capsys: pytest.CaptureFixture):
    """A step takes 940,000 cycles: 1 ms at v3's 0.94 GHz, 0.63 ms at v5e's 1.5."""
    argv = ["--config=configs/digits.py:vit_tiny", "--topology", "v3-8", "v5e-8", "--breakdown"]
    assert plan(argv) == 0
    table, *parts = capsys.readouterr().out.split("\n\n")
    header, _, row = (line.split("|") for line in table.splitlines())
    assert [name.strip() for name in header[2:4]] == ["v3-8", "v5e-8"]
    assert row[2].startswith(" 1.0, ") and row[3].startswith(" 0.6, ")
    assert [part.splitlines()[0][-5:].strip() for part in parts] == ["v3-8", "v5e-8"]


def test_counts_of_a_topology(capsys: pytest.CaptureFixture):
    """Two own blocks, then A B A B: which parts blocks share, and which they own."""
    config = "configs/language_model.py:tiny,attention=full,norms=tied,loop=2+2x2"
    command = ["--counts", config, "--vocab_size=256"]
    assert import_file(str(ROOT / "scripts/plan.py")).main([*command, "--json"]) == 0
    ((name, rows),) = json.loads(capsys.readouterr().out).items()
    assert name == config
    blocks = {row["part"].removeprefix("encoder/"): row["blocks"] for row in rows}
    assert blocks["block_00_attention"] == [0] and blocks["embedding"] == []
    assert blocks["core_0_0_attention"] == blocks["core_0_0_norm_ffn"] == [2, 4]
    assert blocks["core_0_1_attention"] == [3, 5]
    assert import_file(str(ROOT / "scripts/plan.py")).main(command) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{config}: {sum(row['params'] for row in rows):,} parameters"
    runs = {line.split()[0]: line.split()[2:] for line in lines}
    assert runs["encoder/core_0_0_attention"] == ["2", "4"] and runs["embedding"] == []
    assert runs["encoder/block_*_mlp"] == ["0", "1,", "one", "in", "each"]


def test_counts(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """One row stands for all; it needs no compiler. A row is shown before the next is counted."""
    for rows in ("PRETRAINING", "TEXT", "LANGUAGE", "LOOPED"):
        monkeypatch.setattr(printed, rows, ())
    monkeypatch.setattr(printed, "FINETUNING", printed.FINETUNING[:1])
    assert import_file(str(ROOT / "scripts/plan.py")).main(["--counts", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"tables": "5", "model": "ViT-B", "variant": "vit_b", "params": 85_806_346,
                   "params_unrolled": 85_806_346, "printed": 85, "agrees": True}  # fmt: skip
    monkeypatch.setattr(printed, "FINETUNING", (*printed.FINETUNING, Printed("no_model", "")))
    assert import_file(str(ROOT / "scripts/plan.py")).main(["--counts"]) == 2
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == [
        "5",
        "ViT-B",
        "85M",
        "85,806,346",
    ]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--config=configs/digits.py", "--topology=v9-8"], "v9-8 is no TPU"),
        (["--config=configs/digits.py:nothing"], "no model is named 'nothing'"),
        (["--config=configs/digits.py", "--config.batch_sice=64"], "did you mean"),
        (["--config=configs/digits.py", "--out=x.png"], "--rows and --out belong to --calibrate"),
        (["--config=configs/digits.py", "--price_per_core_hour=-3"], "-3 must be a number, 0 or"),
        (
            ["--config=configs/digits.py", "--price_per_core_hour=3", "--topology", "v3-8", "v4-8"],
            "a table of several slices has no costs",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(plan, capsys, argv: list[str], says: str):
    assert says in refused(capsys, plan, *argv)


FITS = {
    "config": "configs/imagenet.py:vit_l", "topology": "v3-256", "cores": 256, "devices": 256,
    "batch_size": 4096, "unit": "images", "examples_per_core": 16.0, "params": 305_376_232,
    "params_unrolled": 305_376_232, "gflops_per_example": 369.3, "limit_ms": 96.1,
    "dispatch": None, "carry_gib": 0.0, "hbm_peak_gib": 6.76,
    "hbm_limit_gib": 15.48, "fits": True, "compile_seconds": 158.0, "steps": 93_835,
    "step_ms": 220.0, "step_ms_range": [193.0, 269.3], "serial_ms": 260.0,
    "scheduled_share": 0.995, "collective_ms": 7.4,
    "collective_mb": 1225.4, "collective_hops": 1500.0, "dcn_ms": 0.0, "dcn_mb": 0.0,
    "examples_per_second_per_core": 72.7, "mfu": 0.437, "hours": 5.73,
    "core_days": 61.2, "cost": None, "advice": None, "kernels": {},
}  # fmt: skip
NO_TIMES = dict.fromkeys(
    ("step_ms", "step_ms_range", "serial_ms", "scheduled_share", "collective_ms", "collective_mb",
     "collective_hops", "dcn_ms", "dcn_mb", "examples_per_second_per_core", "mfu", "hours",
     "core_days", "cost")
)  # fmt: skip
TOO_LARGE = FITS | NO_TIMES | {
    "config": "configs/imagenet.py:widenet_l", "hbm_peak_gib": 17.8, "fits": False,
    "advice": {"flags": ["--config.optimizer.accumulation_steps=2"], "hbm_peak_gib": 9.8,
               "step_ms": 480.0, "core_days": 133.5,
               "tried": ["--config.optimizer.accumulation_steps=2"]},
}  # fmt: skip


def test_one_plan():
    rows = dict(line.split("  ", 1) for line in plan_rows(FITS).splitlines())
    assert rows["slice"].strip() == "v3-256: 256 cores, batch 4096, 16 images per core"
    assert rows["memory per device"].strip() == "6.8 of 15.5 GiB: fits"
    assert rows["step"].strip() == (
        "220.0 ms; 193.0 to 269.3 by calibration, with collectives; 99.5% by the compiler's "
        "schedules, 0.5% guessed"
    )
    assert rows["collectives, in addition"].strip() == (
        "7.4 ms for 1,225 MB per device and 1,500 hops"
    )
    assert "1,225 MB per device\n" in plan_rows(FITS | {"collective_hops": 0})  # as for GPUs
    assert "between slices" not in plan_rows(FITS)
    two = FITS | {"topology": "2xv5e-256", "dcn_ms": 1.234, "dcn_mb": 2.0}
    assert "between slices, in addition  1.2 ms for 2.0 MB per device" in plan_rows(two)
    assert "| slices ms | slices MB |" in comparison([two, FITS], paper=False)
    assert "slices" not in comparison([FITS], paper=False)
    # 61.2 x 193.0 / 220.0, and x 269.3 / 220.0.
    run = "93,835 steps: 5.7 hours, 61.2 core-days, 53.7 to 74.9 with the step's range"
    assert rows["run"].strip() == run
    assert "cost" not in rows and "dispatch" not in rows
    small = plan_rows(FITS | {"hbm_peak_gib": 0.0312, "step_ms": 0.2134, "collective_mb": 0.5})
    assert "0.0312 of 15.5 GiB" in small and "0.213 ms; " in small and "for 0.5 MB" in small
    methods = {"training": "gather", "evaluation": "ragged"}
    assert "gather in training, ragged in evaluation" in plan_rows(FITS | {"dispatch": methods})
    # 1234.5 x 193.0 / 220.0, and x 269.3 / 220.0.
    cost = "1,234.50, 1,082.99 to 1,511.14 with the step's range"
    assert cost in plan_rows(FITS | {"cost": 1234.5})
    # 5.73 hours and their range, to three digits.
    assert plan_line(FITS) == "plan: fits, 5.73 h (5.03 to 7.01), 61.2 core-days"
    assert "fits; 0.14 GiB of it are carried" in plan_rows(FITS | {"carry_gib": 0.141})


def test_a_plan_that_does_not_fit_names_a_change():
    text = plan_rows(TOO_LARGE)
    assert "17.8 of 15.5 GiB: does not fit" in text
    change = "add --config.optimizer.accumulation_steps=2: 9.8 GiB, 480.0 ms, 133.5 core-days"
    assert f"{change} (compiled)" in text
    nothing = dict.fromkeys(TOO_LARGE["advice"]) | {"tried": ["--a=1", "--b=2"]}
    assert "none found (tried: --a=1; --b=2)." in plan_rows(TOO_LARGE | {"advice": nothing})
    nothing["tried"] = []
    assert "the config allows no change" in plan_rows(TOO_LARGE | {"advice": nothing})


@pytest.mark.parametrize("name", ["attention", "choices", "schedules"])
def test_comparisons_check_their_slices_first(name: str, capsys: pytest.CaptureFixture):
    main = import_file(str(ROOT / f"scripts/compare/{name}.py")).main
    with pytest.raises(BadInputError, match="TPU=v9-8 is no TPU"):
        main(["v9-8"])
    main(["--help"])
    assert f"scripts/compare/{name}.py" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gpu_kernels", "gpu_steps"])
def test_comparisons_on_gpus_check_their_names_first(name: str, capsys: pytest.CaptureFixture):
    main = import_file(str(ROOT / f"scripts/compare/{name}.py")).main
    with pytest.raises(BadInputError, match="'b17' is unknown; choose one of"):
        main("b17")
    main("--help")
    assert f"scripts/compare/{name}.py" in capsys.readouterr().out


def test_a_peer_without_a_checkout(tmp_path: Path):
    peer = import_file(str(ROOT / "scripts/compare/peer_vit.py"))
    with pytest.raises(BadInputError, match="no checkout of big_vision: git clone"):
        peer.main(str(tmp_path), "v3-8")
    config = peer.our_config("vit_b", batch_size=8)
    assert (config.model.dropout, config.augment.mixup_alpha, config.batch_size) == (0, 0, 8)
