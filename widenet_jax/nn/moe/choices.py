"""The experts that tokens chose: masks over all E of them, and statistics of a routing.

Masks are made by comparisons, so that no gradient scatters; their leading axes are any, such as
[G, S]. Counts are integers, so that they add up exactly over groups, devices and batches.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.typing import Array, Aux, Routing


def choice_mask(expert_index: Array, num_experts: int) -> Array:  # [..., K] -> [..., K, E] bool
    """Marks the expert of each choice."""
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

    `load` [E] pairs sent (Shazeer et al. 2017), `importance` [E] gates, `dropped` pairs that found
    no slot, `entropy` of the router's probabilities in nats, `tokens`.
    """
    probs = routing.router_probs
    choices = choice_mask(routing.expert_index, probs.shape[-1])  # [G, S, K, E]
    entropy = -(probs * jnp.log(probs + 1e-30)).sum(axis=-1)  # [G, S] nats
    statistics = {
        "load": choice_counts(routing, mask).sum(axis=0),
        "importance": (choices * routing.gate[..., None]).sum(axis=(0, 1, 2)),
        "dropped": ((routing.slot == capacity) & mask[..., None]).sum(dtype=jnp.int32),
        "entropy": (entropy * mask).sum(),
        "tokens": mask.sum(dtype=jnp.int32),
    }
    return jax.lax.stop_gradient(statistics)


def summarize(statistics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Turns sums of `routing_statistics`, with leading axis [operations], into shares and means.

    Returns load [operations, E] and importance [operations, E] as shares of 1; drop_rate
    [operations], the share of (token, choice) pairs dropped; router_entropy [operations] in nats,
    at most log(E).
    """
    sums = {key: np.asarray(value, np.float64) for key, value in statistics.items()}
    pairs = np.maximum(sums["load"].sum(axis=-1), 1)
    gates = np.maximum(sums["importance"].sum(axis=-1, keepdims=True), 1e-30)
    return {
        "load": sums["load"] / pairs[..., None],
        "importance": sums["importance"] / gates,
        "drop_rate": sums["dropped"] / pairs,
        "router_entropy": sums["entropy"] / np.maximum(sums["tokens"], 1),
    }
