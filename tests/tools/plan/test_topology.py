"""Names of TPUs to chips, cores and devices."""

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.tools.plan.topology import CHIPS, parse_topology


@pytest.mark.parametrize(
    ("name", "layout", "cores", "devices"),
    [
        ("v3-8", "v3:2x2", 8, 8),
        ("v3-256", "v3:8x16", 256, 256),
        ("v3:8x16", "v3:8x16", 256, 256),
        ("v4-8", "v4:2x2x1", 8, 4),
        ("v4-128", "v4:4x4x4", 128, 64),  # two cores work as one device
        ("v5p-64", "v5p:2x4x4", 64, 32),
        ("v5e-16", "v5e:4x4", 16, 16),  # counts chips
        ("v5litepod-256", "v5e:16x16", 256, 256),
        ("v6e-8", "v6e:2x4", 8, 8),
        ("v6e-1", "v6e:1x1", 1, 1),
    ],
)
def test_names_that_people_know(name: str, layout: str, cores: int, devices: int):
    topology = parse_topology(name)
    assert (topology.layout, topology.num_cores, topology.num_devices) == (layout, cores, devices)


def test_a_shape_keeps_the_name_that_the_cloud_gives_it():
    assert parse_topology("v3:8x16").accelerator_type == "v3-256"
    assert parse_topology("v4:4x4x4").accelerator_type == "v4-128"
    assert parse_topology("v5e:4x4").accelerator_type == "v5litepod-16"


def test_figures_are_of_a_device():
    v3 = parse_topology("v3-8")  # half a chip
    assert v3.peak_flops == 61.5e12
    assert v3.hbm_bandwidth == 450e9
    assert v3.ici_bandwidth == 332e9  # rings share no link between the cores of a chip
    assert v3.cycles_per_ms == 940e3
    assert parse_topology("v4-8").peak_flops == 275e12  # a whole chip


def test_the_clocks_agree_with_the_peaks():
    """Peak = 2 * multipliers * clock; multipliers of a chip from the architecture pages.

    Except v6e, whose page names two units of 256 x 256 where its peak needs four.
    """
    squares = {"v2": 2, "v3": 4, "v4": 8, "v5p": 8, "v5e": 4, "v6e": 16}  # of 128 x 128
    for generation, count in squares.items():
        chip = CHIPS[generation]
        peak = 2 * count * 128 * 128 * chip.clock * 1e6
        assert peak == pytest.approx(chip.tflops * 1e12, rel=0.01)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v9-8", "there is no TPU v9"),
        ("v3-100", "powers of two"),
        ("v3-4", "at least 8 cores"),
        ("v5e-12", "v5e:4x4"),
        ("tpu", "write it as in v3-256"),
        ("v3:", "write it as in v3-256"),
        ("v3:0x4", "at least one chip"),
    ],
)
def test_mistakes_are_named_with_what_there_is(name: str, says: str):
    with pytest.raises(BadInputError, match=says):
        parse_topology(name)
