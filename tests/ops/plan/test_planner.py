"""Figures of a plan, by hand, and changes that make a step fit, with a double of the compiler."""

import csv
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from widenet_jax.config.files import load_config
from widenet_jax.data.contract import DataInfo
from widenet_jax.data.sources import open_data
from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan.compile import CompiledStep
from widenet_jax.ops.plan.hlo import parse_instruction
from widenet_jax.ops.plan.planner import BAND, GIB, data_info, plan_run, size_figures, time_figures
from widenet_jax.ops.plan.pricing import Price
from widenet_jax.ops.plan.schedule import Schedule
from widenet_jax.ops.plan.topology import parse_topology

# One instruction of 100 ms and one all-reduce of 83 MB among 256 cores.
HLO = """HloModule m

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[20750000]{0} parameter(0)
  %a = f32[20750000]{0} negate(%x)
  ROOT %r = f32[20750000]{0} all-reduce(%a)
}
"""
SCHEDULES = {"a": Schedule(94_000_000, 0)}
DATA = data_info(load_config("configs/imagenet.py:vit_b"))


class Double:
    """Compiles nothing; a step needs 1 GiB, and `gib_per_image` for each image of a part."""

    topology = parse_topology("v3-256")

    def __init__(self, gib_per_image: float):
        self.gib_per_image = gib_per_image
        self.seen: list[str] = []
        self.noted: list[str] = []
        self.note = self.noted.append

    def compile(self, name: str, config: ConfigDict, data: DataInfo) -> CompiledStep:
        parts = config.optimizer.accumulation_steps
        images = config.batch_size // 256 // parts
        if config.model.moe and images % config.model.moe.examples_per_group:
            raise BadInputError("token groups would be split")
        self.seen.append(name)
        peak = (1 + self.gib_per_image * images) * GIB
        fits = peak <= 15.48 * GIB
        return CompiledStep(HLO if fits else "", SCHEDULES, fits, peak, 60.0)


def test_the_figures_of_a_plan():
    config = load_config("configs/imagenet.py:vit_b")
    plan = plan_run("vit_b", config, DATA, Double(0.5), price=2.0)
    figures = plan.figures
    assert figures["params"] == figures["params_unrolled"] == 87_158_248
    assert (figures["cores"], figures["examples_per_core"]) == (256, 16)
    assert figures["fits"] and figures["hbm_peak_gib"] == 9.0 and figures["advice"] is None
    assert figures["step_ms"] == pytest.approx(100.0)
    assert figures["scheduled_share"] == 1.0
    # 83 MB are read and written at 85% of 450 GB/s.
    assert figures["serial_ms"] == pytest.approx(100.0 + 2 * 83 / (0.85 * 450))
    # Calibration: predicted by measured time lies between 0.81 and 1.14.
    low, high = figures["step_ms_range"]
    assert (low, high) == pytest.approx((100 / 1.14, 100 / 0.81 + figures["collective_ms"]))
    assert figures["collective_mb"] == pytest.approx(2 * 83 * 255 / 256)
    assert figures["collective_hops"] == 256  # both halves of the ring at once, twice; 1 us each
    assert figures["collective_ms"] == pytest.approx(2 * 83 / 332 * 255 / 256 + 0.256)
    assert figures["examples_per_second_per_core"] == pytest.approx(160.0)
    # 105.4 GFLOP per image, 160 images/s, of 61.5 TFLOP/s.
    assert figures["mfu"] == pytest.approx(105.4e9 * 160 / 61.5e12, rel=1e-3)
    assert figures["limit_ms"] == pytest.approx(16 * 105.4e9 / 61.5e9, rel=1e-3)
    # 300 epochs of 1,281,167 images in batches of 4096, a tenth of a second each.
    assert figures["steps"] == 93_835
    assert figures["hours"] == pytest.approx(93_835 * 0.1 / 3600)
    assert figures["core_days"] == pytest.approx(93_835 * 0.1 * 256 / 86_400)
    assert figures["cost"] == pytest.approx(2.0 * 24 * figures["core_days"])


def test_what_is_guessed_widens_the_range():
    """Of 10 ms 4 are guessed: 2 to 8 of them, so 8 to 14 in all, before the calibration."""
    line = parse_instruction("  %x = f32[] negate(%y)")
    prices = [Price(line, 1, compute_ms=6.0, scheduled=True), Price(line, 1, memory_ms=4.0)]
    sizes = {"batch_size": 8, "steps": 1, "limit_ms": 5.0}
    found = time_figures(sizes, prices, parse_topology("v3-8"), None)
    assert found["step_ms"] == 10.0 and found["scheduled_share"] == pytest.approx(0.6)
    assert found["step_ms_range"] == pytest.approx([8 / 1.14, 14 / 0.81])
    assert found["dcn_ms"] == found["dcn_mb"] == 0
    prices.append(Price(line, 1, scheduled=True, dcn_bytes=5e6, dcn_ms=2.0))
    found = time_figures(sizes, prices, parse_topology("2xv5e-8"), None)
    assert (found["step_ms"], found["dcn_ms"], found["dcn_mb"]) == (10.0, 2.0, 5.0)
    assert found["step_ms_range"] == pytest.approx([8 / 1.14, 14 / 0.81 + 2])


def test_the_memory_of_a_language_model():
    """64 rows with 512 tokens of 1,024 bfloat16 numbers in one block, and as many lengths."""
    config = load_config("configs/language_model.py:wt_b,depth=1")
    figures = size_figures(config, data_info(config), parse_topology("v3-8"))
    assert figures["carry_gib"] * GIB == 64 * (512 * 1024 * 2 + 4) / 8
    assert figures["examples_per_core"] == 8 and figures["steps"] == 100_000
    image = load_config("configs/imagenet.py:vit_b,depth=1")
    assert size_figures(image, DATA, parse_topology("v3-8"))["carry_gib"] == 0


def test_gradient_accumulation_makes_a_step_fit():
    """16 images need 33 GiB of 15.48; 8 need 17; 4 need 9."""
    double = Double(2.0)
    figures = plan_run("v", load_config("configs/imagenet.py:vit_b,depth=1"), DATA, double).figures
    assert not figures["fits"] and figures["step_ms"] is None and figures["core_days"] is None
    assert figures["advice"]["flags"] == ["--config.optimizer.accumulation_steps=4"]
    assert figures["advice"]["hbm_peak_gib"] == 9.0
    assert figures["advice"]["step_ms"] == pytest.approx(100.0)
    # As in `test_the_figures_of_a_plan`.
    assert figures["advice"]["core_days"] == pytest.approx(93_835 * 0.1 * 256 / 86_400)
    remat = "--config.model.remat=block"  # tried first; the double ignores it
    parts = "--config.optimizer.accumulation_steps=4"
    assert double.seen == ["v", f"v {remat}", f"v {parts}"]
    need = "needs 33.0 of 15.5 GiB, does not fit; trying"
    assert double.noted == [f"v: {need} {remat}", f"v {remat}: {need} {parts}"]


def test_changes_that_split_token_groups_are_skipped():
    """Groups have 16 images, so 256 cores allow neither parts nor smaller batches."""
    config = load_config("configs/imagenet.py:widenet_b,depth=2")
    for fsdp, splitting in ((1, ["--config.sharding.fsdp=-1"]), (-1, [])):
        config.sharding.fsdp = fsdp
        figures = plan_run("w", config, DATA, Double(2.0)).figures
        assert figures["advice"]["flags"] is None
        assert figures["advice"]["tried"] == ["--config.model.remat=block", *splitting]


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        ("configs/imagenet.py:widenet_h", (1_281_167, 1000, (224, 224, 3))),
        ("configs/digits.py", (1_437, 10, (8, 8, 1))),
    ],
)
def test_sets_of_the_configs(config: str, numbers: tuple):
    info = data_info(load_config(config))
    shape = info.example["image"].shape
    assert (info.num_examples, len(info.info["class_names"]), shape) == numbers


def test_other_sets_need_both_numbers():
    config = load_config("configs/imagenet.py:vit_b")
    config.data.path = "/data/flowers"
    with pytest.raises(BadInputError, match=r"'flowers'.*--num_examples=N --num_classes=N"):
        data_info(config, num_examples=7, num_classes=None)
    info = data_info(config, num_examples=1020, num_classes=102)
    assert (info.num_examples, len(info.info["class_names"])) == (1020, 102)


def test_a_text_file_here_needs_no_numbers(tmp_path: Path):
    """The rows and the number of bytes are those that a run would read."""
    (tmp_path / "mine.txt").write_text("It was a night.\n" * 625)
    config = load_config("configs/language_model.py:tiny")
    config.data.path = str(tmp_path / "mine.txt")
    found = data_info(config)
    assert found.info["vocab_size"] == 256 and found == open_data(config).data_info
    config.data.path = str(tmp_path / "other.txt")
    with pytest.raises(BadInputError, match=r"the size of the set 'other\.txt' is unknown"):
        data_info(config)


def test_the_band_is_that_of_the_rows_on_the_page():
    """Predicted by measured time, in the table of `plan.py --calibrate` and the CSV beside it."""
    log = Path(__file__).parents[3] / "docs" / "log"
    page = (log / "plans_against_measurements.md").read_text()
    rows = page.split("| ratio | by the old estimate |\n")[1].split("\n\n")[0].splitlines()[1:]
    shown = [[float(x.replace(",", "")) for x in row.split("|")[3:7]] for row in rows]
    with (log / "plans_against_measurements.csv").open(newline="") as file:
        numbers = [list(map(float, row[2:])) for row in list(csv.reader(file))[1:]]
    assert numbers == shown and len(shown) == 20
    ratios = [ratio for _, _, ratio, _ in shown]
    assert (min(ratios), max(ratios)) == BAND
    for measured, predicted, ratio, _ in shown:
        assert predicted / measured == pytest.approx(ratio, abs=0.006)
