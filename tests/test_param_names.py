"""Paths, predicates on them, and the axes that separate LAMB's units."""

import jax.numpy as jnp
import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.param_names import (
    block_part,
    is_expert,
    is_norm_or_bias,
    is_shared_by_blocks,
    map_with_path,
    matches,
    path_names,
    split_block_part,
    trust_ratio_unit_axes,
)

TREE = {"block": {"attention": {"query": {"kernel": jnp.ones((2, 2))}}}, "cls_token": jnp.zeros(2)}


def test_names_follow_the_order_of_the_leaves():
    assert path_names(TREE) == ["block/attention/query/kernel", "cls_token"]
    assert path_names({"a": [1, 2]}) == ["a/0", "a/1"]
    assert path_names(3.0) == [""]
    seen = map_with_path(lambda path, a, b: (path, float((a + b).sum())), TREE, TREE)
    assert seen["cls_token"] == ("cls_token", 0.0)
    assert seen["block"]["attention"]["query"]["kernel"][1] == 8.0


def test_matches_is_end_to_end():
    assert matches(".*/kernel")("a/b/kernel")
    assert not matches("kernel")("a/kernel") and not matches("a/ker")("a/kernel")
    assert not matches("")("") and not matches("")("a")  # an empty expression matches nothing
    with pytest.raises(BadInputError, match="regular expression"):
        matches("(")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("encoder/block_00_norm_ffn/scale", True),
        ("mlm/output_bias", True),
        ("embed/position_embedding", False),
        ("unbiased/kernel", False),
    ],
)
def test_norms_and_biases(path: str, expected: bool):
    assert is_norm_or_bias(path) is expected


@pytest.mark.parametrize(
    ("path", "ndim", "axes"),
    [
        ("moe/experts/wi/kernel", 3, (0,)),
        ("moe/experts/wo/bias", 2, (0,)),
        ("block/attention/query/kernel", 2, ()),
    ],
)
def test_unit_axes(path: str, ndim: int, axes: tuple[int, ...]):
    assert trust_ratio_unit_axes(path, ndim) == axes


def test_a_rank_the_path_does_not_promise():
    with pytest.raises(ValueError, match="promises"):
        trust_ratio_unit_axes("moe/experts/wi/kernel", 2)


@pytest.mark.parametrize(
    ("name", "index", "part"),
    [("block_03_norm_ffn", 3, "norm_ffn"), ("block_117_moe", 117, "moe"), ("moe", None, "moe"),
     ("block_moe", None, "block_moe")],
)  # fmt: skip
def test_parts_of_blocks(name: str, index: int | None, part: str):
    assert split_block_part(name) == (index, part)
    if index is not None:
        assert block_part(index, part) == name


@pytest.mark.parametrize(
    ("path", "shared", "expert"),
    [
        ("encoder/moe/experts/wi/kernel", True, True),
        ("encoder/moe/router/kernel", True, False),
        ("encoder/block_00_moe/experts/wi/kernel", False, True),
        ("encoder/block_00_norm_ffn/scale", False, False),
        ("experts", False, False),
    ],
)
def test_what_a_path_says_of_storage(path: str, shared: bool, expert: bool):
    assert (is_shared_by_blocks(path), is_expert(path)) == (shared, expert)
