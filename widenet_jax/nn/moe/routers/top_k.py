"""Noisy top-K routing, the router of WideNet."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import check_range
from widenet_jax.nn.moe.routers.scoring import SECTION, ScoringRouter, needed
from widenet_jax.typing import Array, Routing


class TopKRouter(ScoringRouter):
    """Routes each token to the K experts with the largest noisy probabilities; see `route_top_k`.

    Attributes:
      noise_std: standard deviation of the noise in training, in units of 1/E.
      The rest: see `scoring.ScoringRouter`.
    """

    noise_std: float = 0.0

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`.

        Raises:
          BadInputError: noise_std is out of range.
          ValueError: training with noise, but without a key.
        """
        check_range(f"{SECTION}.noise_std", self.noise_std, 0, 1e3)
        noise_std = self.noise_std if train else 0.0
        key = needed(key) if noise_std else None
        return route_top_k(self.scores(x), mask, key, self.num_selected_experts, noise_std)


def route_top_k(
    logits: Array,  # [G, S, E] float32
    mask: Array,  # [G, S] True for real tokens
    key: Array | None,  # read only where noise_std > 0
    num_selected: int,
    noise_std: float,
) -> Routing:
    """Chooses the K largest of softmax(logits + noise_std / E * eps), eps ~ N(0, 1).

    The gates are these probabilities, not renormalised (WideNet, eqs. 2 and 5). Ties go to the
    lower expert index. Masked tokens get gate 0.
    Differs from the paper: eq. 2's N(0, 1/E^2) is read as a variance, so that the standard
    deviation is 1/E (as in V-MoE and in the authors' released code).
    """
    noisy = logits
    if noise_std > 0:
        E = logits.shape[-1]
        noisy = logits + noise_std / E * jax.random.normal(key, logits.shape, logits.dtype)
    probs = jax.nn.softmax(noisy, axis=-1)
    gate, expert_index = jax.lax.top_k(probs, num_selected)
    return Routing(
        expert_index=expert_index.astype(jnp.int32),
        gate=gate * mask[..., None],
        router_probs=probs,
        router_logits=logits,
    )
