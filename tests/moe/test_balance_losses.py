"""Balance losses by hand; over groups and over the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.moe.losses import balance_losses, load_balance_loss
from widenet_jax.moe.routers.top_k import route_top_k
from widenet_jax.typing import Routing


def routing(logits: jax.Array, mask: jax.Array) -> Routing:
    return route_top_k(logits, mask, None, num_selected_experts=1, noise_std=0.0)


# Group 0 sends both tokens to expert 0, group 1 to expert 1, each with probability 1.
SURE = 50.0 * jnp.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
ALL = jnp.ones((2, 2), bool)


@pytest.mark.parametrize(("over", "expected"), [("group", 2.0), ("batch", 1.0)])
def test_each_group_collapses_and_the_batch_is_even(over: str, expected: float):
    """E = 2: collapsed groups have loss 2 each; over all four tokens m = P = 1/2 gives 1."""
    settings = {"load_balance": 0.25, "over": over}
    losses, total = balance_losses(routing(SURE, ALL), ALL, settings)
    np.testing.assert_allclose(losses["load_balance"], expected, rtol=1e-6)
    np.testing.assert_allclose(total, 0.25 * expected, rtol=1e-6)


def test_over_the_batch_is_one_large_group():
    """Random logits, some tokens masked: the loss equals that of one joined group."""
    logits = jax.random.normal(jax.random.key(0), (3, 5, 4))
    mask = jax.random.bernoulli(jax.random.key(1), 0.7, (3, 5))
    settings = {"load_balance": 1.0, "over": "batch"}
    losses, _ = balance_losses(routing(logits, mask), mask, settings)
    joined = logits.reshape(1, 15, 4), mask.reshape(1, 15)
    expected = load_balance_loss(routing(*joined), joined[1])
    np.testing.assert_allclose(losses["load_balance"], expected[0], rtol=1e-6)


def test_a_group_of_padding_is_left_out_of_the_mean():
    mask = jnp.array([[True, True], [False, False]])
    losses, _ = balance_losses(routing(SURE, mask), mask, {"load_balance": 1.0, "over": "group"})
    np.testing.assert_allclose(losses["load_balance"], 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"load_balanse": 1.0, "over": "group"},
            "losses.load_balanse is unknown; .* load_balance, switch",
        ),
        ({"load_balance": 1.0, "over": "groups"}, "config.model.moe.losses.over='groups'"),
        ({"load_balance": 1.0}, "choose one of group, batch"),
    ],
)
def test_names_that_do_not_exist(settings: dict, message: str):
    with pytest.raises(BadInputError, match=message):
        balance_losses(routing(SURE, ALL), ALL, settings)


def test_router_logits_are_without_noise_and_gates_of_padding_zero():
    mask = jnp.array([[True, False]])
    logits = jnp.array([[[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]])
    key = jax.random.key(0)
    noisy = route_top_k(logits, mask, key, num_selected_experts=2, noise_std=1.0)
    np.testing.assert_array_equal(noisy.router_logits, logits)
    assert (noisy.router_probs != jax.nn.softmax(logits)).all()
    np.testing.assert_array_equal(noisy.gate[0, 1], 0)
