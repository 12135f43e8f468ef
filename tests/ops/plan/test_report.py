"""Plans as text."""

from widenet_jax.ops.plan.report import comparison, plan_rows

FITS = {
    "config": "configs/imagenet.py:vit_l", "topology": "v3-256", "cores": 256, "devices": 256,
    "batch_size": 4096, "unit": "images", "examples_per_core": 16.0, "params": 305_376_232,
    "params_unrolled": 305_376_232, "gflops_per_example": 369.3, "limit_ms": 96.1,
    "dispatch": None, "carry_gib": 0.0, "hbm_peak_gib": 6.76,
    "hbm_limit_gib": 15.48, "fits": True, "compile_seconds": 158.0, "steps": 93_835,
    "step_ms": 220.0, "compiler_priced_share": 0.995, "collective_ms": 7.4,
    "collective_mb": 1225.4, "examples_per_second_per_core": 72.7, "mfu": 0.437, "hours": 5.73,
    "core_days": 61.2, "cost": None, "advice": None,
}  # fmt: skip
NO_TIMES = dict.fromkeys(
    ("step_ms", "compiler_priced_share", "collective_ms", "collective_mb",
     "examples_per_second_per_core", "mfu", "hours", "core_days", "cost")
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
    assert rows["step"].strip() == "220.0 ms; 99.5% priced by the compiler, 0.5% by roofline"
    assert rows["collectives, in addition"].strip() == "7.4 ms for 1,225 MB per device"
    assert rows["run"].strip() == "93,835 steps: 5.7 hours, 61.2 core-days"
    assert "cost" not in rows and "dispatch" not in rows
    methods = {"training": "gather", "evaluation": "ragged"}
    assert "gather in training, ragged in evaluation" in plan_rows(FITS | {"dispatch": methods})
    assert "1,234.50" in plan_rows(FITS | {"cost": 1234.5})
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


def test_table_of_several_plans():
    lines = comparison([FITS, TOO_LARGE], paper=True).splitlines()
    header, rule, first, second = ([c.strip() for c in line.split("|")[1:-1]] for line in lines[:4])
    assert set("".join(rule)) == {"-"}
    vit, widenet = (dict(zip(header, row, strict=True)) for row in (first, second))
    assert (vit["ms/step"], vit["at 100% MFU"], vit["MFU"]) == ("220.0", "96.1", "43.7%")
    assert vit["core-days"] == "61.2" and vit["paper"] == "80"
    assert vit["collectives ms (MB)"] == "7.4 (1,225)"
    assert widenet["HBM GiB"] == "17.8 (does not fit)" and widenet["core-days"] == "-"
    assert widenet["paper"] == "140"
    assert lines[-1].startswith("configs/imagenet.py:widenet_l: add --config.optimizer.accum")
    plain = comparison([FITS | {"cost": 12.0}], paper=False)
    assert "paper" not in plain and "cost" in plain.splitlines()[0]
