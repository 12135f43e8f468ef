"""From a routing to slots in the experts' buffers: masks of chosen experts, capacities, priorities.

Shapes in the letters of `widenet_jax.typing`. C, the capacity, is a static size; padding lowers
the live limit below it.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.nn.rules import UNLIMITED
from widenet_jax.nn.settings import MoeSettings
from widenet_jax.typing import Array, Aux, Routing


def floor_times(n: Array | int, ratio: Fraction) -> Array | int:
    """Returns floor(n * ratio) exactly; floating point may turn 1.2 * 2 * 10 / 4 into 7, not 6.

    The whole part of the ratio is multiplied separately, and the rest by one byte of n after the
    other, as n * rest may exceed int32. Denominators are at most 1000 E.
    """
    whole, rest = divmod(ratio.numerator, ratio.denominator)
    quotient, left = 0, 0
    for digit in (n >> 24, n >> 16 & 255, n >> 8 & 255, n & 255):
        more, left = divmod(left * 256 + digit * rest, ratio.denominator)
        quotient = quotient * 256 + more
    return n * whole + quotient


def ceil_times(n: Array | int, ratio: Fraction) -> Array | int:
    """Returns ceil(n * ratio) exactly."""
    return -floor_times(-n, ratio)


# Slots an expert may fill for n tokens (an int or an int array); the capacity factor is a Fraction.
CAPACITY_RULES: dict[str, Callable[..., Array | int]] = {
    # All experts' buffers together hold factor*K*n tokens; each has one E-th of them, rounded up.
    "paper": lambda n, factor, K, E: ceil_times(n, factor * K / E),
    # The paper's text literally, B = CKNL for every expert: no choice is ever dropped.
    "literal": lambda n, factor, K, E: ceil_times(n, factor * K),
    # Released code: int(factor*K*n/E) slots, but slots count from 1 and the last is refused.
    "authors_code": lambda n, factor, K, E: floor_times(n, factor * K / E) - 1,
    # A slot for every token of the group: nothing is dropped, and the factor has no effect.
    UNLIMITED: lambda n, factor, K, E: n,
}


def capacity_limit(num_tokens: Array | int, moe: MoeSettings, *, train: bool) -> Array | int:
    """Returns the slots that each expert may fill in a group of `num_tokens` real tokens, >= 0.

    Differs from the paper, unless `moe.capacity_rule` is "literal": that gives each expert CKNL.
    """
    factor = moe.capacity_factor if train else moe.capacity_factor_eval
    factor = Fraction(str(factor)).limit_denominator(1000)
    slots = CAPACITY_RULES[moe.capacity_rule]
    limit = slots(num_tokens, factor, moe.num_selected_experts, moe.num_experts)
    return max(limit, 0) if isinstance(limit, int) else jnp.maximum(limit, 0)


def capacity(num_tokens: int, moe: MoeSettings, *, train: bool) -> int:
    """Returns C of a group of `num_tokens`: at least one slot, at most the whole group."""
    return max(1, min(capacity_limit(num_tokens, moe, train=train), num_tokens))


# --- Priorities: which choices are kept when an expert is full -------------------------------

# Each takes the choices as a mask [G, S, K, E] int32, zero for masked tokens, and the gates
# [G, S, K]. It returns [G, S, K] int32: how many choices of the same expert are served before.


def token_order(choices: Array, _: Array) -> Array:
    """Serves tokens in order, first and second choices together (the authors' released code)."""
    demand = choices.sum(axis=2)  # [G, S, E]; a token asks an expert at most once
    before = jnp.cumsum(demand, axis=1) - demand
    return jnp.einsum("gse,gske->gsk", before, choices)


def first_choice_first(choices: Array, _: Array) -> Array:
    """Serves all first choices before any second choice (GShard, V-MoE)."""
    G, S, K, E = choices.shape
    # [G, S, K, E] -> [G, K*S, E]: choice-major, tokens in order within a choice
    queue = choices.swapaxes(1, 2).reshape(G, K * S, E)
    before = jnp.cumsum(queue, axis=1) - queue
    position = (before * queue).sum(axis=-1)  # [G, K*S]
    return position.reshape(G, K, S).swapaxes(1, 2)


def batch_prioritized(choices: Array, gate: Array) -> Array:
    """Serves tokens by falling largest gate, then first choice first (V-MoE, section 4)."""
    order = jnp.argsort(-gate.max(axis=-1), axis=1, stable=True)  # [G, S]
    ranked = jnp.take_along_axis(choices, order[..., None, None], axis=1)
    position = first_choice_first(ranked, gate)
    back = jnp.argsort(order, axis=1)
    return jnp.take_along_axis(position, back[..., None], axis=1)


PRIORITIES: dict[str, Callable[[Array, Array], Array]] = {
    "token_order": token_order,
    "first_choice_first": first_choice_first,
    "batch_prioritized": batch_prioritized,
}


def assign_slots(
    routing: Routing,
    mask: Array,  # [G, S] True for real tokens
    *,
    capacity: int,
    limit: Array,  # [G] int32, slots that may be filled, at most `capacity`
    priority: str,
) -> Routing:
    """Fills `routing.slot`: the place in the expert's buffer, or `capacity` where dropped."""
    E = routing.router_probs.shape[-1]
    choices = choice_mask(routing.expert_index, E)  # [G, S, K, E]
    choices = (choices & mask[..., None, None]).astype(jnp.int32)
    position = PRIORITIES[priority](choices, routing.gate)  # position_in_expert [G, S, K]
    kept = (position < limit[:, None, None]) & mask[..., None]
    kept &= routing.expert_index < E
    return routing.replace(slot=jnp.where(kept, position, capacity).astype(jnp.int32))


def distinct(expert_index: Array, num_experts: int) -> Array:  # [..., K] -> [..., K]
    """Returns the choices, int32, with E for those that an own router may get wrong.

    Losses and dispatch count on experts from 0 to E - 1, different ones for a token; a choice of E
    is dropped.
    """
    choices = jnp.split(expert_index.astype(jnp.int32), expert_index.shape[-1], axis=-1)
    for k, choice in enumerate(choices):
        valid = (choice >= 0) & (choice < num_experts)
        for earlier in choices[:k]:
            valid &= choice != earlier
        choices[k] = jnp.where(valid, choice, num_experts)
    return jnp.concatenate(choices, axis=-1)


def assign_by_experts(routing: Routing, mask: Array, *, capacity: int, limit: Array) -> Routing:
    """Gives each expert's slots to the real tokens with the largest probabilities for it.

    Arguments as of `assign_slots`; ties go to the earlier token. A token's experts then come best
    first, and E with gate 0 in place of those that did not take it.
    """
    probs = routing.router_probs  # [G, S, E]
    real = mask[..., None]
    order = jnp.argsort(jnp.where(real, -probs, 1), axis=1, stable=True)
    position = jnp.argsort(order, axis=1)  # of each token among those that ask an expert
    taken = (position < limit[:, None, None]) & real
    E = probs.shape[-1]
    expert = jax.lax.top_k(jnp.where(taken, probs, -1), E)[1].astype(jnp.int32)
    expert_index = jnp.where(pick(taken, expert), expert, E)
    slot = pick(jnp.where(taken, position, capacity), expert)
    gate = pick(probs, expert_index)
    return routing.replace(expert_index=expert_index, gate=gate, slot=slot.astype(jnp.int32))


def tokens_without_expert(routing: Routing, mask: Array) -> Array:
    """Counts the real tokens that no expert took."""
    lost = (routing.expert_index[..., 0] == routing.router_probs.shape[-1]) & mask
    return jax.lax.stop_gradient(lost.sum(dtype=jnp.int32))


def choice_mask(expert_index: Array, num_experts: int) -> Array:  # [..., K] -> [..., K, E] bool
    """Marks the expert of each choice; none where the index is E."""
    return expert_index[..., None] == jnp.arange(num_experts)


def chosen_experts(expert_index: Array, num_experts: int) -> Array:  # [..., K] -> [..., E] bool
    """Marks the experts that the token chose."""
    return choice_mask(expert_index, num_experts).any(axis=-2)


def pick(values: Array, expert_index: Array) -> Array:  # [..., E], [..., K] -> [..., K]
    """Returns the values of the chosen experts."""
    chosen = choice_mask(expert_index, values.shape[-1])
    return jnp.where(chosen, values[..., None, :], jnp.zeros((), values.dtype)).sum(axis=-1)


def spread(values: Array, expert_index: Array, num_experts: int) -> Array:
    """Places the values of the choices at their experts, [..., K] to [..., E]; 0 elsewhere.

    A token chooses an expert at most once, so that its K choices never overlap.
    """
    chosen = choice_mask(expert_index, num_experts)
    return jnp.where(chosen, values[..., None], jnp.zeros((), values.dtype)).sum(axis=-2)


def choice_counts(routing: Routing, mask: Array) -> Array:
    """[G, E] int32: (token, choice) pairs of real tokens sent to each expert, before dropping."""
    choices = choice_mask(routing.expert_index, routing.router_probs.shape[-1])  # [G, S, K, E]
    return (choices & mask[..., None, None]).sum(axis=(1, 2), dtype=jnp.int32)


def routing_statistics(routing: Routing, mask: Array, capacity: int) -> Aux:
    """Returns sums over all groups.

    `load` [E] pairs sent (Shazeer et al. 2017), `importance` [E] gates, `dropped` of `pairs` found
    no slot, `entropy` of the router's probabilities in nats, `tokens`.
    """
    probs = routing.router_probs
    choices = choice_mask(routing.expert_index, probs.shape[-1])  # [G, S, K, E]
    entropy = -(probs * jnp.log(probs + 1e-30)).sum(axis=-1)  # [G, S] nats
    statistics = {
        "load": choice_counts(routing, mask).sum(axis=0),
        "importance": (choices * routing.gate[..., None]).sum(axis=(0, 1, 2)),
        "dropped": ((routing.slot == capacity) & mask[..., None]).sum(dtype=jnp.int32),
        "pairs": mask.sum(dtype=jnp.int32) * routing.slot.shape[-1],
        "entropy": (entropy * mask).sum(),
        "tokens": mask.sum(dtype=jnp.int32),
    }
    return jax.lax.stop_gradient(statistics)


def summarize(statistics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Turns sums of `routing_statistics`, with leading axis [operations], into shares and means.

    Returns load [operations, E] and importance [operations, E] as shares of 1; drop_rate
    [operations], the share of (token, choice) pairs dropped; router_entropy [operations] in nats,
    at most log(E); where experts choose, no_expert_rate [operations], the share of tokens that none
    took. All are NaN for an operation that did not run.
    """
    sums = {key: np.asarray(value, np.float64) for key, value in statistics.items()}
    sent = np.maximum(sums["load"].sum(axis=-1, keepdims=True), 1)
    gates = np.maximum(sums["importance"].sum(axis=-1, keepdims=True), 1e-30)
    tokens = np.maximum(sums["tokens"], 1)
    lost = {"no_expert_rate": sums["no_expert"] / tokens} if "no_expert" in sums else {}
    shares = lost | {
        "load": sums["load"] / sent,
        "importance": sums["importance"] / gates,
        "drop_rate": sums["dropped"] / np.maximum(sums["pairs"], 1),
        "router_entropy": sums["entropy"] / tokens,
    }
    ran = np.where(sums["tokens"] > 0, 1, np.nan)
    return {name: (value.T * ran).T for name, value in shares.items()}
