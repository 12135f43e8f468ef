"""Figures of a plan, by hand, and what makes a step fit; the compiler is played by a double."""

import pytest
from ml_collections import ConfigDict

from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import DataFacts
from widenet_jax.tools.plan.compile import CompiledStep
from widenet_jax.tools.plan.planner import GIB, changes, plan_run
from widenet_jax.tools.plan.topology import parse_topology

# One instruction of 100 ms and one all-reduce of 83 MB among 256 cores.
HLO = """HloModule m

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[20750000]{0} parameter(0)
  %a = f32[20750000]{0} negate(%x), backend_config={"estimated_cycles":"94000000"}
  ROOT %r = f32[20750000]{0} all-reduce(%a)
}
"""
DATA = DataFacts(1_281_167, tuple(map(str, range(1000))), (224, 224, 3))


class Double:
    """Compiles nothing; a step needs `gib_a_part` for each image worked on at once, and 1 GiB."""

    topology = parse_topology("v3-256")

    def __init__(self, gib_an_image: float):
        self.gib_an_image = gib_an_image
        self.seen: list[str] = []

    def compile(self, name: str, config: ConfigDict, data: DataFacts) -> CompiledStep:
        parts = config.optimizer.accumulation_steps
        images = config.batch_size // 256 // parts
        if config.model.moe and images % config.model.moe.images_per_group:
            raise BadInputError("groups of images would be cut")
        self.seen.append(name)
        peak = (1 + self.gib_an_image * images) * GIB
        fits = peak <= 15.48 * GIB
        return CompiledStep(HLO if fits else "", fits, peak, 60.0)


def test_the_figures_of_a_plan():
    config = load_config("configs/imagenet.py:vit_b")
    plan = plan_run("vit_b", config, DATA, Double(0.5), price_per_core_hour=2.0)
    facts = plan.facts
    assert facts["params"] == facts["params_unrolled"] == 87_158_248
    assert (facts["cores"], facts["images_per_core"]) == (256, 16)
    assert facts["fits"] and facts["hbm_peak_gib"] == 9.0 and facts["advice"] is None
    assert facts["step_ms"] == pytest.approx(100.0)
    assert facts["compiler_priced_share"] == 1.0
    assert facts["collective_mb"] == pytest.approx(2 * 83 * 255 / 256)
    assert facts["collective_ms"] == pytest.approx(2 * 83 / 332 * 255 / 256)
    assert facts["images_per_second_per_core"] == pytest.approx(160.0)
    # 105.4 GFLOP an image, 160 a second, of 61.5 TFLOP/s.
    assert facts["mfu"] == pytest.approx(105.4e9 * 160 / 61.5e12, rel=1e-3)
    assert facts["limit_ms"] == pytest.approx(16 * 105.4e9 / 61.5e9, rel=1e-3)
    # 300 epochs of 1,281,167 images in batches of 4096, a tenth of a second each.
    assert facts["steps"] == 93_835
    assert facts["hours"] == pytest.approx(93_835 * 0.1 / 3600)
    assert facts["core_days"] == pytest.approx(93_835 * 0.1 * 256 / 86_400)
    assert facts["cost"] == pytest.approx(2.0 * 24 * facts["core_days"])


def test_a_shared_model_counts_its_parameters_twice_over():
    facts = plan_run("w", load_config("configs/imagenet.py:widenet_b"), DATA, Double(0.1)).facts
    assert facts["params"] < facts["params_unrolled"] / 8
    assert facts["cost"] is None


def test_fewer_images_at_once_where_they_do_not_fit():
    """16 images need 33 GiB of 15.48; 8 need 17; 4 need 9."""
    double = Double(2.0)
    facts = plan_run("v", load_config("configs/imagenet.py:vit_b,mlp_dim=8"), DATA, double).facts
    assert not facts["fits"] and facts["step_ms"] is None and facts["core_days"] is None
    assert facts["advice"]["flags"] == ["--config.optimizer.accumulation_steps=4"]
    assert facts["advice"]["hbm_peak_gib"] == 9.0
    assert facts["advice"]["step_ms"] == pytest.approx(100.0)
    remat = "--config.model.remat=block"  # tried first; the stand-in does not honour it
    assert double.seen == ["v", f"v {remat}", "v --config.optimizer.accumulation_steps=4"]


def test_what_would_cut_routing_groups_is_passed_over():
    """Groups are 16 images: neither parts nor smaller batches are possible on 256 cores."""
    config = load_config("configs/imagenet.py:widenet_l")
    for fsdp, splitting in ((1, ["--config.sharding.fsdp=-1"]), (-1, [])):
        config.sharding.fsdp = fsdp
        facts = plan_run("w", config, DATA, Double(2.0)).facts
        assert facts["advice"]["flags"] is None
        assert facts["advice"]["tried"] == ["--config.model.remat=block", *splitting]


def test_a_program_that_leaves_no_room_for_its_data_does_not_fit():
    class Large(Double):
        def compile(self, name: str, config: ConfigDict, data: DataFacts) -> CompiledStep:
            parts = config.optimizer.accumulation_steps
            return CompiledStep(HLO, True, 15.5 * GIB / parts, 60.0)

    facts = plan_run("v", load_config("configs/imagenet.py:vit_b"), DATA, Large(0)).facts
    assert not facts["fits"]
    assert facts["advice"]["flags"] == ["--config.optimizer.accumulation_steps=2"]


def test_changes_that_cannot_be_enough_are_not_tried():
    config = load_config("configs/imagenet.py:vit_b")
    config.optimizer.accumulation_steps, config.model.remat = 2, "block"
    first = [next(iter(changes(config, excess))) for excess in (1.01, 3.0, 5.0)]
    steps = [change["optimizer.accumulation_steps"] for change in first]
    assert steps == [4, 8, 16]  # 2, 4 and 8 times as many parts


def test_recomputing_blocks_comes_first_where_the_model_can():
    config = load_config("configs/imagenet.py:vit_b")
    config.model.remat = "none"
    assert changes(config, excess=2.0)[0] == {"model.remat": "block"}
    config.model.remat = "block"
    assert {"model.remat": "block"} not in changes(config, excess=2.0)
