"""Losses that keep the experts in use: pure functions of a routing, weighted in the config.

A loss is `f(routing, mask) -> [G]` float32, one number a group; a group without a real token is
left out of the mean. `routing` has no slots yet. To add one: a function and an entry in `LOSSES`;
before a run a user's is tried on random tokens, and must be finite.

Shazeer et al. 2017 and Csordás et al. 2023 take their statistics over the batch, WideNet over each
token group: the field `over`.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from widenet_jax.extensions import guarded_loss
from widenet_jax.nn.moe.slots import choice_counts, pick, spread
from widenet_jax.typing import Array, Routing


def load_balance_loss(routing: Routing, mask: Array) -> Array:
    """Returns E * sum_i m_i P_i of each group (WideNet, eqs. 3-5).

    m_i is the share of (token, choice) pairs sent to expert i before dropping, so that m sums to
    1 for every K; P_i the mean noisy probability of expert i. Even routing gives exactly 1.
    Differs from the paper: eq. 4 would sum to K; divided by K here, as in the authors' released
    code. Eq. 5 defines P_i of one token; here it is averaged over the group's tokens, as m_i.
    """
    E, K = routing.router_probs.shape[-1], routing.expert_index.shape[-1]
    m = choice_counts(routing, mask) / (K * real_tokens(mask))  # eq. 4, [G, E]
    P = token_mean(routing.router_probs, mask)  # of eq. 5, [G, E]
    return E * (m * P).sum(axis=-1)  # eq. 3


def switch_loss(routing: Routing, mask: Array) -> Array:
    """Returns E * sum_i f_i P_i of each group (Fedus et al. 2021; Csordás et al. 2023, eq. 17).

    As `load_balance_loss`, but f_i is the share of tokens that chose expert i: K times as large.
    Differs from the code that Csordás et al. released: that is E^2 times smaller.
    """
    return routing.expert_index.shape[-1] * load_balance_loss(routing, mask)


def first_choice_loss(routing: Routing, mask: Array) -> Array:
    """Returns `load_balance_loss` of each group, m_i the share of tokens whose best expert is i.

    As GShard has it (arXiv:2006.16668), and the code of arXiv:2606.16825.
    """
    first = routing.expert_index[..., :1]
    return load_balance_loss(routing.replace(expert_index=first), mask)


def importance_loss(routing: Routing, mask: Array) -> Array:
    """Returns CV(I)^2 of each group, I_i the sum of expert i's gates (Shazeer et al. 2017)."""
    gates = spread(routing.gate, routing.expert_index, routing.router_probs.shape[-1])
    return squared_variation(token_sum(gates, mask))


def load_loss(routing: Routing, mask: Array) -> Array:
    """Returns CV(L)^2 of each group, L_i a smooth count of expert i (Shazeer et al. 2017).

    L_i is the sum over tokens of P(x, i), see `routers.noisy.load_probability`. With two levels it
    is L_g * L_i / |X_g| (their appendix B): L_g of the expert's group, L_i over the tokens X_g
    that chose that group.
    """
    extra = routing.extra
    load = token_sum(extra["load_probability"], mask)  # [G, E]
    if "group_chosen" in extra:
        group_load = token_sum(extra["group_load_probability"], mask)  # [G, E1]
        tokens = jnp.maximum(token_sum(extra["group_chosen"], mask), 1)
        load = load * jnp.repeat(group_load / tokens, load.shape[-1] // tokens.shape[-1], axis=-1)
    return squared_variation(load)


def entropy_loss(routing: Routing, mask: Array) -> Array:
    """Returns sum_i p_i log p_i of each group, in nats (Csordás et al. 2023, eqs. 20 and 21).

    p is the mean over tokens of the softmax over all E clean logits. The least value is -log E, at
    an even p.
    """
    return negative_entropy(token_mean(jax.nn.softmax(routing.router_logits), mask))


def entropy_of_chosen_loss(routing: Routing, mask: Array) -> Array:
    """Returns `entropy_loss` with p over a token's K chosen logits, best first, instead of all E.

    The code that Csordás et al. 2023 released computes it so for the router `softmax_renormalized`,
    but in the order that `torch.topk(sorted=False)` gives on its device, which sets the value. Best
    first is our choice. It does not see which experts are chosen: for rerunning that row only.
    """
    chosen = pick(routing.router_logits, routing.expert_index)
    return negative_entropy(token_mean(jax.nn.softmax(chosen), mask))


def negative_entropy(p: Array) -> Array:  # [G, E] -> [G]
    """Returns sum_i p_i log p_i, in nats."""
    return (p * jnp.log(jnp.maximum(p, 1e-30))).sum(axis=-1)


def z_loss(routing: Routing, mask: Array) -> Array:
    """Returns the mean over tokens of logsumexp(logits)^2 (ST-MoE, Zoph et al. 2022, eq. 5)."""
    square = jax.nn.logsumexp(routing.router_logits, axis=-1, keepdims=True) ** 2
    return token_mean(square, mask)[:, 0]


def balance_bias_loss(routing: Routing, mask: Array) -> Array:
    """Returns 0, whose gradient for expert i's bias is E c_i - sum_j c_j, a sum over all tokens.

    c_i are the real tokens sent to expert i, before dropping. As the gradient is linear in the
    counts, it adds up over devices, accumulation steps and visits of a tied router; times E it is
    whole, so that its sign, all that the optimizer takes, has no rounding.
    """
    counts = choice_counts(routing, mask).sum(axis=0).astype(jnp.float32)
    excess = counts.shape[0] * counts - counts.sum()
    term = (excess * routing.balance_bias).sum()
    return term - jax.lax.stop_gradient(term)


def real_tokens(mask: Array) -> Array:
    """Returns [G, 1], the number of real tokens of each group, at least 1."""
    return jnp.maximum(mask.sum(axis=1), 1)[:, None]


def token_sum(x: Array, mask: Array) -> Array:  # [G, S, E] -> [G, E]
    """Adds up x over the real tokens of each group."""
    return jnp.where(mask[..., None], x, 0).sum(axis=1)


def token_mean(x: Array, mask: Array) -> Array:  # [G, S, E] -> [G, E]
    """Averages x over the real tokens of each group."""
    return token_sum(x, mask) / real_tokens(mask)


def squared_variation(x: Array) -> Array:  # [G, E] -> [G]
    """Returns the squared coefficient of variation over the experts: variance / mean^2."""
    return x.var(axis=-1) / (x.mean(axis=-1) ** 2 + 1e-10)


LOSSES: dict[str, Callable[[Routing, Array], Array]] = {
    "load_balance": load_balance_loss,
    "switch": switch_loss,
    "first_choice": first_choice_loss,
    "importance": importance_loss,
    "load": load_loss,
    "entropy": entropy_loss,
    "entropy_of_chosen": entropy_of_chosen_loss,
    "z": z_loss,
}


# What a loss takes for a group: each token group, or all tokens, [G, S, ...] to [1, G*S, ...].
SCOPES = {"group": lambda x: x, "batch": lambda x: x.reshape(1, -1, *x.shape[2:])}


def balance_losses(
    routing: Routing, mask: Array, settings: Mapping[str, float | str]
) -> tuple[dict[str, Array], Array]:
    """Computes the losses of one routing operation that have a weight, lambda of WideNet's eq. 8.

    Args:
      routing: without slots.
      mask: [G, S] True for real tokens.
      settings: weights by names in `LOSSES`, those that are absent being 0; and `over`: "group"
        takes the statistics over each group and averages the losses over the groups that hold a
        real token; "batch" takes the statistics over all tokens of the batch.

    Returns:
      Each loss of weight other than 0, unweighted, and their weighted sum, with a balancing bias
      plus `balance_bias_loss`; scalars float32.
    """
    weights = {name: weight for name, weight in settings.items() if name != "over" and weight}
    start = jnp.float32(0)
    if routing.balance_bias is not None:
        start = balance_bias_loss(routing, mask)
    routing, mask = jax.tree.map(
        SCOPES[settings["over"]], (routing.replace(balance_bias=None), mask)
    )
    real = mask.any(axis=1)
    groups = jnp.maximum(real.sum(), 1)
    per_group = {name: guarded_loss(name, LOSSES[name])(routing, mask) for name in weights}
    losses = {name: jnp.where(real, x, 0).sum() / groups for name, x in per_group.items()}
    total = sum((weights[name] * loss for name, loss in losses.items()), start=start)  # eq. 8
    return losses, total
