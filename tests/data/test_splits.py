"""Slices of splits, written as TFDS writes them."""

import pytest

from widenet_jax.data.splits import parse_slice, slice_of
from widenet_jax.errors import BadInputError


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[90%:]", range(90, 100)),
        ("train[:90%]", range(90)),
        ("train[10%:20%]", range(10, 20)),
        ("train[5:-5]", range(5, 95)),
        ("train[-10%:]", range(90, 100)),
        ("train[:]", range(100)),
    ],
)
def test_a_slice_has_these_records(split, expected):
    name, bounds = parse_slice(split)
    assert name == "train"
    assert range(100)[slice_of(bounds, 100)] == expected


def test_percents_are_rounded_as_in_tfds():
    assert range(7)[slice_of(("", "50%"), 7)] == range(4) and parse_slice("val") == ("val", None)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[-1%:]", []),  # 0.4 records
        ("train[:-1%]", range(40)),
        ("train[99%:]", []),  # from 39.6
        ("train[-2%:]", [39]),  # 0.8 records
        ("train[-100%:]", range(40)),
        ("train[:-100%]", []),
    ],
)
def test_a_share_of_less_than_half_a_record_is_none(split, expected):
    assert list(range(40)[slice_of(parse_slice(split)[1], 40)]) == list(expected)


@pytest.mark.parametrize("bound", ["150%", "-101%"])
def test_more_than_everything_is_refused(bound):
    with pytest.raises(BadInputError, match=rf"'train\[:{bound}\]': {bound} is out of range; give"):
        parse_slice(f"train[:{bound}]")


def test_a_part_of_a_set_that_is_one_file():
    assert parse_slice("[5:]") == ("", ("5", ""))


@pytest.mark.parametrize("split", ["train[90%]", "train[a:]", "train[:5%]+test"])
def test_other_brackets_are_refused(split):
    with pytest.raises(BadInputError, match="a slice is written as"):
        parse_slice(split)
