"""Noisy top-K gating with learned noise, on one level or two (Shazeer et al. 2017)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr

from widenet_jax.nn.moe.routers.scoring import ScoringRouter, choose_experts, needed
from widenet_jax.nn.moe.slots import chosen_experts, pick, spread
from widenet_jax.typing import Array, Routing

# Added to the standard deviation of the noise, as in the released code (tensor2tensor).
MIN_STD = 0.01


class NoisyTopKRouter(ScoringRouter):
    """Adds noise whose size the token decides, and renormalises (Shazeer et al. 2017, eqs. 3-5).

    Both projections start at zero, whatever `kernel_init`, so that at first all experts are chosen
    equally often (their appendix A).

    Attributes: see `scoring.ScoringRouter`.
    """

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`."""
        logits, std = self.scores_and_noise(x, self.num_experts)
        noise = jax.random.normal(needed(key), logits.shape, logits.dtype) if train else None
        return route_noisy_top_k(logits, std, noise, mask, self.num_selected_experts)

    def scores_and_noise(self, x: Array, columns: int) -> tuple[Array, Array]:
        """Returns the clean scores and the standard deviation of their noise, [G, S, columns]."""
        zeros = nn.initializers.zeros
        std = jax.nn.softplus(self.project(x, "noise_kernel", columns, zeros)) + MIN_STD
        return self.project(x, "kernel", columns, zeros), std


def route_noisy_top_k(
    logits: Array,  # [..., E] clean
    std: Array,  # [..., E] of the noise
    noise: Array | None,  # [..., E] of N(0, 1); None: no noise
    mask: Array,  # [...] True for real tokens
    num_selected: int,
) -> Routing:
    """Chooses the K largest h = logits + noise * std; the gates are the softmax over these K.

    extra["load_probability"] is `load_probability` for the loss `load`.
    Differs from the paper: eq. 4 has no least standard deviation; the released code adds 0.01.
    """
    noisy = logits if noise is None else logits + noise * std
    expert_index = choose_experts(noisy, num_selected)
    gate = jax.nn.softmax(pick(noisy, expert_index))
    std = None if noise is None else std
    return Routing(
        expert_index=expert_index,
        gate=jnp.where(mask[..., None], gate, 0),
        router_probs=jax.nn.softmax(noisy),
        router_logits=logits,
        extra={"load_probability": load_probability(logits, std, noisy, expert_index)},
    )


def load_probability(
    logits: Array,  # [..., E] clean
    std: Array | None,  # [..., E]; None: no noise
    noisy: Array,  # [..., E]
    expert_index: Array,  # [..., K] of the K largest noisy logits, best first
) -> Array:
    """Returns P(x, e) [..., E]: that the token chooses the expert if only its noise is redrawn.

    P = Phi((logits_e - t_e) / std_e), where t_e is the K-th largest noisy logit of the other
    experts: the (K+1)-th of all if e is chosen, else the K-th (Shazeer et al. 2017, eqs. 8, 9).
    With K = E or without noise it is 1 for the chosen experts, else 0, and has no gradient.
    """
    E, K = logits.shape[-1], expert_index.shape[-1]
    chosen = chosen_experts(expert_index, E)
    if std is None or K == E:
        return chosen.astype(logits.dtype)
    last = pick(noisy, expert_index[..., -1:])
    next_best = jnp.where(chosen, -jnp.inf, noisy).max(axis=-1, keepdims=True)
    return ndtr((logits - jnp.where(chosen, next_best, last)) / std)


class HierarchicalRouter(NoisyTopKRouter):
    """Chooses K1 of E1 groups of experts, then K2 = K/K1 of the E2 = E/E1 experts in each.

    Expert j of group i has index i * E2 + j. Each level is a router `noisy_top_k`; the E1 columns
    of the groups come first in both kernels (Shazeer et al. 2017, appendix B).

    Attributes:
      groups: E1; divides E.
      selected_groups: K1; divides K. In the paper K1 = K2 = 2.
      The rest: see `scoring.ScoringRouter`.
    """

    groups: int = 2
    selected_groups: int = 2

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`."""
        scores, std = self.scores_and_noise(x, self.groups + self.num_experts)
        noise = jax.random.normal(needed(key), scores.shape, scores.dtype) if train else None
        sizes = self.num_selected_experts, self.groups, self.selected_groups
        return route_hierarchical(scores, std, noise, mask, *sizes)


def route_hierarchical(
    scores: Array,  # [G, S, E1 + E1*E2] clean
    std: Array,  # of the noise
    noise: Array | None,  # of N(0, 1); None: no noise
    mask: Array,  # [G, S] True for real tokens
    num_selected: int,
    groups: int,
    selected_groups: int,
) -> Routing:
    """Chooses K1 groups, then K2 experts in each; the gate is the product of both levels' gates.

    router_probs are products of both levels' softmax probabilities; the router_logits are the
    group's clean logit plus the clean log-probability within the group, so that their softmax is
    that distribution without noise. For the loss `load`, extra has

      load_probability [G, S, E]: P of the expert within its group; 0 where the group is not chosen
      group_load_probability [G, S, E1]: P of the group
      group_chosen [G, S, E1]: 1 where the token chose the group, else 0
    """

    def experts(x: Array) -> Array:
        """Returns the columns of the experts, [G, S, E1, E2]."""
        return x[..., groups:].reshape(*mask.shape, groups, -1)

    K1, K2 = selected_groups, num_selected // selected_groups
    noise_1 = None if noise is None else noise[..., :groups]
    noise_2 = None if noise is None else experts(noise)
    of_groups = route_noisy_top_k(scores[..., :groups], std[..., :groups], noise_1, mask, K1)
    within = route_noisy_top_k(experts(scores), experts(std), noise_2, mask[..., None], K2)
    E2 = within.router_probs.shape[-1]
    group_chosen = chosen_experts(of_groups.expert_index, groups)[..., None]  # [G, S, E1, 1]

    def flat(x: Array) -> Array:
        return x.reshape(*mask.shape, groups * E2)

    group_gate = spread(of_groups.gate, of_groups.expert_index, groups)[..., None]
    gate = flat(group_gate * spread(within.gate, within.expert_index, E2))
    chosen = flat(chosen_experts(within.expert_index, E2) & group_chosen)
    expert_index = choose_experts(jnp.where(chosen, gate, -1), num_selected)
    load = jnp.where(group_chosen, within.extra["load_probability"], 0)
    logits = of_groups.router_logits[..., None] + jax.nn.log_softmax(within.router_logits)
    return Routing(
        expert_index=expert_index,
        gate=pick(gate, expert_index),
        router_probs=flat(of_groups.router_probs[..., None] * within.router_probs),
        router_logits=flat(logits),
        extra={
            "load_probability": flat(load),
            "group_load_probability": of_groups.extra["load_probability"],
            "group_chosen": group_chosen[..., 0].astype(scores.dtype),
        },
    )
