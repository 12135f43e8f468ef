"""Capacities and priorities, by hand."""

import jax.numpy as jnp
import pytest

from widenet_jax.nn.moe.slots import CAPACITY_RULES, assign_slots, capacity_limit
from widenet_jax.nn.settings import MoeSettings
from widenet_jax.typing import Routing


@pytest.mark.parametrize(
    ("rule", "tokens", "slots"),
    [
        ("paper", 3136, 1882),  # 16 images: 1881.6
        ("paper", 10, 6),  # exactly 6, where floating point says 6.000000000000001
        ("literal", 196, 471),  # 1.2 * 2 * 196 = 470.4
        ("authors_code", 3152, 1890),  # 16 images of 197 tokens: int(1891.2) - 1
        ("authors_code", 1, 0),
        ("unlimited", 196, 196),  # a slot for every token, whatever the factor
    ],
)
def test_capacity(rule: str, tokens: int, slots: int):
    moe = MoeSettings(1, 4, 2, 1.2, 1.2, 1, capacity_rule=rule)
    assert capacity_limit(tokens, moe, train=True) == slots
    assert capacity_limit(jnp.array([tokens]), moe, train=True).tolist() == [slots]


def test_no_number_in_between_leaves_int32():
    """With 4112 tokens, the product 4112 * 333333 * 2 alone would exceed 2**31."""
    for rule in CAPACITY_RULES:
        moe = MoeSettings(1, 4, 2, 1.0, 333.333, 1, capacity_rule=rule)
        slots = capacity_limit(4112, moe, train=False)
        assert slots > 4112 or rule == "unlimited"
        assert capacity_limit(jnp.array([4112]), moe, train=False).tolist() == [slots]


def test_a_large_denominator():
    """50176 * 51199, of the rest of the factor alone, exceeds 2**31; 50176 * 51199 / 51200."""
    moe = MoeSettings(1, 512, 1, 511.99, 511.99, 1, capacity_rule="authors_code")
    tokens = [0, 1, 255, 256, 50176, 2**22 + 1]
    limits = [capacity_limit(n, moe, train=True) for n in tokens]
    assert limits == [max(n * 51199 // 51200 - 1, 0) for n in tokens]
    assert capacity_limit(jnp.array(tokens), moe, train=True).tolist() == limits
    moe = MoeSettings(1, 4096, 1, 999.999, 999.999, 1)  # the largest denominator, rounded up
    limits = [capacity_limit(n, moe, train=True) for n in tokens]
    assert capacity_limit(jnp.array(tokens), moe, train=True).tolist() == limits


# Three tokens choose (0, 1), (1, 0), (0, 1); their best gates are 0.5, 0.9, 0.6.
ROUTING = Routing(
    expert_index=jnp.array([[[0, 1], [1, 0], [0, 1]]]),
    gate=jnp.array([[[0.5, 0.3], [0.9, 0.1], [0.6, 0.2]]]),
    router_probs=jnp.zeros((1, 3, 2)),
    router_logits=jnp.zeros((1, 3, 2)),
)


@pytest.mark.parametrize(
    ("priority", "slots"),
    [
        # In order: token 0 is first everywhere, token 1 second everywhere; 2 is "dropped".
        ("token_order", [[0, 0], [1, 1], [2, 2]]),
        # Expert 0 serves tokens 0, 2 (first choices), then 1; expert 1 serves 1, then 0, 2.
        ("first_choice_first", [[0, 1], [0, 2], [1, 2]]),
        # Tokens in the order 1, 2, 0. Expert 0: 2, 0, then 1. Expert 1: 1, then 2, 0.
        ("batch_prioritized", [[1, 2], [0, 2], [0, 1]]),
    ],
)
def test_priorities(priority: str, slots: list):
    """Two slots per expert: positions 0 and 1 are kept, 2 means dropped."""
    mask = jnp.ones((1, 3), bool)
    limit = jnp.array([2])
    filled = assign_slots(ROUTING, mask, capacity=2, limit=limit, priority=priority)
    assert filled.slot[0].tolist() == slots


@pytest.mark.parametrize(
    ("priority", "slots"),
    [("token_order", [[0, 0], [1, 1]]), ("batch_prioritized", [[0, 1], [0, 1]])],
)
def test_masked_tokens_take_no_slot(priority: str, slots: list):
    """Whatever the gates of token 0; the others' first choices are experts 1 and 0."""
    mask = jnp.array([[False, True, True]])
    routing = ROUTING.replace(gate=ROUTING.gate.at[0, 0].set(2.0))
    filled = assign_slots(routing, mask, capacity=3, limit=jnp.array([3]), priority=priority)
    assert filled.slot[0].tolist() == [[3, 3], *slots]


def test_the_live_limit_lies_below_the_buffer():
    limit = jnp.array([1])
    mask = jnp.ones((1, 3), bool)
    filled = assign_slots(ROUTING, mask, capacity=3, limit=limit, priority="token_order")
    assert filled.slot[0].tolist() == [[0, 0], [3, 3], [3, 3]]


def test_priority_goes_by_the_largest_gate_wherever_it_stands():
    """A router need not sort its choices by gate: token 2 comes first for its second gate, 3.0."""
    gate = jnp.array([[[0.6, 0.4], [0.9, 0.1], [0.5, 3.0]]])
    index = jnp.array([[[0, 1], [0, 1], [0, 1]]])
    mask, limit = jnp.ones((1, 3), bool), jnp.array([1])
    routing = ROUTING.replace(gate=gate, expert_index=index)
    filled = assign_slots(routing, mask, capacity=1, limit=limit, priority="batch_prioritized")
    assert filled.slot[0].tolist() == [[1, 1], [1, 1], [0, 0]]
