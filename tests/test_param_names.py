"""Paths, predicates on them, and the axes that separate LAMB's units."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.param_names import (
    is_norm_or_bias,
    map_with_path,
    matches,
    path_names,
    trust_ratio_unit_axes,
)

TREE = {"block": {"attention": {"query": {"kernel": jnp.ones((2, 2))}}}, "cls_token": jnp.zeros(2)}


def test_names_follow_the_order_of_the_leaves():
    assert path_names(TREE) == ["block/attention/query/kernel", "cls_token"]
    assert len(path_names(TREE)) == len(jax.tree.leaves(TREE))


def test_names_of_lists_and_of_a_bare_leaf():
    assert path_names({"a": [1, 2]}) == ["a/0", "a/1"]
    assert path_names(3.0) == [""]


def test_names_of_a_flax_model():
    params = nn.Dense(3, name="head").init(jax.random.key(0), jnp.ones((1, 2)))["params"]
    assert path_names(params) == ["bias", "kernel"]


def test_map_sees_path_and_every_tree():
    seen = map_with_path(lambda path, a, b: (path, float((a + b).sum())), TREE, TREE)
    assert seen["cls_token"] == ("cls_token", 0.0)
    assert seen["block"]["attention"]["query"]["kernel"][1] == 8.0


def test_matches_is_end_to_end():
    assert matches(".*/kernel")("a/b/kernel")
    assert not matches("kernel")("a/kernel")
    assert not matches("a/ker")("a/kernel")


def test_empty_regex_matches_nothing_not_even_the_empty_path():
    assert not matches("")("")
    assert not matches("")("a")


def test_broken_regex_is_bad_input():
    with pytest.raises(BadInputError, match="regular expression"):
        matches("(")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("encoder/block_0/norm_ffn/scale", True),
        ("encoder/block_0/norm_ffn/bias", True),
        ("head/bias", True),
        ("moe/experts/wi/bias", True),
        ("mlm/output_bias", True),
        ("head/kernel", False),
        ("embed/position_embedding", False),
        ("embed/cls_token", False),
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
        ("experts/wi/kernel", 3, (0,)),
        ("block/attention/query/kernel", 2, ()),
        ("block/attention/qkv/kernel", 4, (1,)),
        ("block/attention/qkv/bias", 3, (0,)),
        ("blocks_stacked/moe/experts/wi/kernel", 4, (0, 1)),
        ("encoder/blocks_stacked/moe/experts/wo/bias", 3, (0, 1)),
        ("encoder/blocks_stacked/attention/qkv/kernel", 5, (0, 2)),
        ("encoder/blocks_stacked/attention/qkv/bias", 4, (0, 1)),
        ("encoder/blocks_stacked/mlp/wi/kernel", 3, (0,)),
        ("encoder/blocks_stacked/norm_ffn/scale", 2, (0,)),
        ("embed/position_embedding", 3, ()),
        ("head/bias", 1, ()),
        ("my_experts/wi/kernel", 2, ()),
        ("", 2, ()),
    ],
)
def test_unit_axes(path: str, ndim: int, axes: tuple[int, ...]):
    assert trust_ratio_unit_axes(path, ndim) == axes


@pytest.mark.parametrize(
    ("path", "ndim"),
    [
        ("moe/experts/wi/kernel", 2),
        ("moe/experts/wi/kernel", 4),
        ("blocks_stacked/experts/wi/bias", 2),
        ("attention/qkv/kernel", 2),
        ("blocks_stacked/gain", 0),
    ],
)
def test_a_rank_the_path_does_not_promise(path: str, ndim: int):
    with pytest.raises(ValueError, match="promises"):
        trust_ratio_unit_axes(path, ndim)
