"""TPU names read into chips, cores and devices."""

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan.topology import CHIPS, parse_topology


@pytest.mark.parametrize(
    ("name", "layout", "cores", "devices"),
    [
        ("v3-8", "v3:2x2", 8, 8),
        ("v3-256", "v3:8x16", 256, 256),
        ("v3:8x16", "v3:8x16", 256, 256),
        ("v4-8", "v4:2x2x1", 8, 4),
        ("v4-128", "v4:4x4x4", 128, 64),  # two cores form one device
        ("v4-384", "v4:4x4x12", 384, 192),  # cubes of 4 x 4 x 4
        ("v5e-16", "v5e:4x4", 16, 16),  # the name counts chips
        ("v5litepod-256", "v5e:16x16", 256, 256),
        ("2xv5e-256", "v5e:16x16", 512, 512),  # two slices
        ("3xv4:2x2x1", "v4:2x2x1", 24, 12),
        ("1xv3-8", "v3:2x2", 8, 8),
    ],
)
def test_names(name: str, layout: str, cores: int, devices: int):
    topology = parse_topology(name)
    assert (topology.layout, topology.num_cores, topology.num_devices) == (layout, cores, devices)


def test_a_shape_has_the_accelerator_type_of_its_size():
    assert parse_topology("v3:8x16").accelerator_type == "v3-256"
    assert parse_topology("v4:4x4x4").accelerator_type == "v4-128"
    assert parse_topology("v5e:4x4").accelerator_type == "v5litepod-16"


def test_slices_have_the_accelerator_type_of_one():
    two, one = parse_topology("2xv5e-8"), parse_topology("v5e-8")
    assert two.accelerator_type == one.accelerator_type == "v5litepod-8"
    assert two.peak_flops == 2 * one.peak_flops
    assert two.several_hosts and not one.several_hosts


def test_the_clocks_agree_with_the_peaks():
    """Peak = 2 * multipliers * clock, with the multipliers per chip from the architecture pages.

    Except v6e, whose page names two units of 256 x 256 where its peak needs four.
    """
    squares = {"v2": 2, "v3": 4, "v4": 8, "v5p": 8, "v5e": 4, "v6e": 16}  # units of 128 x 128
    for generation, count in squares.items():
        chip = CHIPS[generation]
        peak = 2 * count * 128 * 128 * chip.clock
        assert peak == pytest.approx(chip.flops, rel=0.01)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v9-8", r"is no TPU; write it as in v3-256, .*\(generations: v2, v3, v4"),
        ("v3-100", "powers of two of at least 8 cores, up to 2,048"),
        ("v4-12", "multiples of 8 cores"),
        ("v5e-12", "powers of two of at least 1 chips"),
        ("v3-99999999999999999999", "write it as in v3-256"),
        ("v3:99999x99999", "1 to 1,024 chips"),
        ("2xv3-8", "joins slices of v4 and later, not of v3"),
        ("2xv5e-12", "powers of two of at least 1 chips"),
        ("0xv5e-8", "write it as in v3-256, .*, 2xv5e-256"),
        ("2x2xv5e-8", "is no TPU"),
    ],
)
def test_refused_names(name: str, says: str):
    with pytest.raises(BadInputError, match=says) as error:
        parse_topology(name)
    assert str(error.value).startswith(f"--topology={name}")
