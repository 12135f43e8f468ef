"""Paths, predicates on them, and the axes that separate LAMB's units."""

import jax.numpy as jnp
import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.param_names import (
    block_part,
    is_expert,
    is_matrix,
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
    seen = map_with_path(lambda path, a, b: (path, float((a + b).sum())), TREE, TREE)
    assert seen["cls_token"] == ("cls_token", 0.0)


def test_matches_is_end_to_end():
    assert matches(".*/kernel")("a/b/kernel")
    assert not matches("kernel")("a/kernel") and not matches("a/ker")("a/kernel")
    assert not matches("")("") and not matches("")("a")  # an empty expression matches nothing
    with pytest.raises(BadInputError, match="regular expression"):
        matches("(")


def test_norms_and_biases():
    assert is_norm_or_bias("encoder/block_00_norm_ffn/scale")
    assert is_norm_or_bias("mlm/output_bias")
    assert not is_norm_or_bias("embed/position_embedding")
    assert not is_norm_or_bias("unbiased/kernel")


def test_unit_axes():
    assert trust_ratio_unit_axes("moe/experts/wi/kernel", 3) == (0,)
    assert trust_ratio_unit_axes("moe/experts/wo/bias", 2) == (0,)
    assert trust_ratio_unit_axes("encoder/attention/out_experts/kernel", 3) == (0,)
    assert is_matrix("encoder/attention/out_experts/kernel", 3)
    assert not is_matrix("encoder/attention/out_router", 2)
    assert trust_ratio_unit_axes("block/attention/query/kernel", 2) == ()
    with pytest.raises(BadInputError, match="promises 3: a scope"):
        trust_ratio_unit_axes("moe/experts/wi/kernel", 2)


def test_parts_of_blocks():
    assert split_block_part("block_117_moe") == (117, "moe")
    assert block_part(3, "norm_ffn") == "block_03_norm_ffn"
    for name in ("moe", "block_moe"):
        assert split_block_part(name) == (None, name)


def test_a_path_says_whether_it_is_shared_and_of_an_expert():
    for path, *expected in [
        ("encoder/moe/experts/wi/kernel", True, True),
        ("encoder/moe/router/kernel", True, False),
        ("encoder/block_00_moe/experts/wi/kernel", False, True),
        ("encoder/block_00_norm_ffn/scale", False, False),
    ]:
        assert [is_shared_by_blocks(path), is_expert(path)] == expected, path
