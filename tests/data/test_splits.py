"""Slices of splits, written as TFDS writes them."""

import pytest

from widenet_jax.data.splits import parse_slice, slice_of
from widenet_jax.errors import BadInputError


@pytest.mark.parametrize(
    ("split", "size", "expected"),
    [
        ("train[90%:]", 100, range(90, 100)),
        ("train[10%:20%]", 100, range(10, 20)),
        ("train[5:-5]", 100, range(5, 95)),
        ("train[:50%]", 7, range(4)),  # rounded as in TFDS
        # A share of less than half a record is none.
        ("train[-1%:]", 40, []),  # 0.4 records
        ("train[:-1%]", 40, range(40)),
        ("train[99%:]", 40, []),  # from 39.6
        ("train[-2%:]", 40, [39]),  # 0.8 records
        ("train[-100%:]", 40, range(40)),
    ],
)
def test_a_slice_has_these_records(split, size, expected):
    name, bounds = parse_slice(split)
    assert name == "train" and list(range(size)[slice_of(bounds, size)]) == list(expected)


def test_no_slice_and_a_part_of_a_set_that_is_one_file():
    assert parse_slice("val") == ("val", None) and parse_slice("[5:]") == ("", ("5", ""))


def test_other_slices_are_refused():
    for bound in ("150%", "-101%"):
        refused = rf"'train\[:{bound}\]': {bound} is out of range; give"
        with pytest.raises(BadInputError, match=refused):
            parse_slice(f"train[:{bound}]")
    for split in ("train[90%]", "train[a:]", "train[:5%]+test"):
        with pytest.raises(BadInputError, match="a slice is written as"):
            parse_slice(split)
