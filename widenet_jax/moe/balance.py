"""The load-balancing loss and what is reported of a routing.

Counts are integers, so that they add up exactly over groups, devices and batches.
"""

import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.typing import Array, Aux, Routing


def choice_counts(routing: Routing, mask: Array) -> Array:
    """[G, E] int32: (token, choice) pairs of real tokens sent to each expert, before dropping."""
    E = routing.probs.shape[-1]
    choices = jax.nn.one_hot(routing.expert_index, E, dtype=jnp.int32)  # [G, S, K, E]
    return (choices * mask[..., None, None]).sum(axis=(1, 2))


def load_balance_loss(routing: Routing, mask: Array) -> Array:  # scalar float32
    """E * sum_i m_i P_i, averaged over the groups that hold a real token (WideNet, eqs. 3-5).

    m_i is the share of (token, choice) pairs sent to expert i before dropping, so that m sums to
    1 for every K; P_i the mean noisy probability of expert i. Even routing gives exactly 1.
    Differs from the paper: eq. 4 averages over the tokens and would sum to K; divided by K here,
    as in the authors' released code.
    """
    E = routing.probs.shape[-1]
    tokens = jnp.maximum(mask.sum(axis=1), 1)[:, None]  # [G, 1]
    K = routing.expert_index.shape[-1]
    m = choice_counts(routing, mask) / (K * tokens)  # [G, E]
    P = (routing.probs * mask[..., None]).sum(axis=1) / tokens
    per_group = E * (m * P).sum(axis=-1)  # [G]; 0 for a group that is all padding
    return per_group.sum() / jnp.maximum(mask.any(axis=1).sum(), 1)


def routing_statistics(routing: Routing, mask: Array, capacity: int) -> Aux:
    """Sums over all groups: `load` [E] pairs sent (Shazeer et al. 2017), `importance` [E] gates,
    `dropped` pairs that found no slot, `entropy` of the router's probabilities, `tokens`."""
    E = routing.probs.shape[-1]
    choices = jax.nn.one_hot(routing.expert_index, E)  # [G, S, K, E]
    entropy = -(routing.probs * jnp.log(routing.probs + 1e-30)).sum(axis=-1)  # [G, S] nats
    statistics = {
        "load": choice_counts(routing, mask).sum(axis=0),
        "importance": (choices * routing.gate[..., None]).sum(axis=(0, 1, 2)),
        "dropped": ((routing.slot == capacity) & mask[..., None]).sum(dtype=jnp.int32),
        "entropy": (entropy * mask).sum(),
        "tokens": mask.sum(dtype=jnp.int32),
    }
    return jax.lax.stop_gradient(statistics)


def summarize(statistics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sums of `routing_statistics`, each with leading axis [blocks], as shares and means.

    Returns load [blocks, E] and importance [blocks, E] as shares of 1; drop_rate [blocks], the
    share of (token, choice) pairs dropped; router_entropy [blocks] in nats, at most log(E).
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
