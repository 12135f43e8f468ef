"""Noisy top-K gating with learned noise (Shazeer et al. 2017)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr

from widenet_jax.nn.moe.routers.scoring import ScoringRouter, choose_experts, needed
from widenet_jax.nn.moe.slots import chosen_experts, pick
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
        """Routes tokens; see the contract in `moe.routers`.

        Raises:
          ValueError: training without a key.
        """
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
