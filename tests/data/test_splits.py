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


def test_a_part_of_a_set_that_is_one_file():
    assert parse_slice("[5:]") == ("", ("5", ""))


@pytest.mark.parametrize("split", ["train[90%]", "train[a:]", "train[:5%]+test"])
def test_other_brackets_are_refused(split):
    with pytest.raises(BadInputError, match="a slice is written as"):
        parse_slice(split)
