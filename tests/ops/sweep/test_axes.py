"""Settings, and functions that combine lists of them."""

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep.axes import chainit, parse_axis, product, sweep, zipit


def test_product_varies_the_last_axis_fastest():
    assert product([sweep("a", [1, 2]), sweep("config.b", "xy")]) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip


def test_a_product_of_no_axes_is_one_run():
    assert product([]) == [{}]


def test_zipit_combines_in_step_and_repeats_an_axis_of_one_value():
    assert zipit([sweep("a", [1, 2]), sweep("b", [3, 4]), sweep("c", [5])]) == [
        {"a": 1, "b": 3, "c": 5}, {"a": 2, "b": 4, "c": 5},
    ]  # fmt: skip


def test_chainit_lists_one_axis_after_the_other():
    assert chainit([sweep("a", [1, 2]), sweep("b", [3])]) == [{"a": 1}, {"a": 2}, {"b": 3}]


def test_axes_of_different_lengths_are_not_zipped():
    with pytest.raises(BadInputError, match=r"a has 2, b has 3"):
        zipit([sweep("a", [1, 2]), sweep("b", [1, 2, 3])])


@pytest.mark.parametrize("combine", [product, zipit])
def test_a_field_is_swept_once(combine):
    with pytest.raises(BadInputError, match=r"^seed is swept twice"):
        combine([sweep("seed", [1]), sweep("config.seed", [2])])


def test_axes_of_the_command_line():
    assert parse_axis("seed=0, 1", "--sweep") == [{"seed": "0"}, {"seed": "1"}]
    assert parse_axis("variant=vit_b;widenet_b,experts=8", "--sweep") == [
        {"variant": "vit_b"}, {"variant": "widenet_b,experts=8"},
    ]  # fmt: skip
    for wrong in ("seed", "seed=", "=1"):
        with pytest.raises(BadInputError, match="--zip"):
            parse_axis(wrong, "--zip")
