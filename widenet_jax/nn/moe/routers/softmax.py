"""Routers whose gates are softmax probabilities: softmax, softmax_renormalized, switch."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.moe.routers.scoring import DroppingRouter, ScoringRouter, choose_experts, gates
from widenet_jax.nn.moe.slots import pick
from widenet_jax.typing import Array, Routing


class SoftmaxRouter(DroppingRouter):
    """Gates are softmax probabilities over all experts (Csordás et al. 2023, "no renorm.").

    Attributes: see `scoring.DroppingRouter`.
    """

    renormalized: ClassVar[bool] = False

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`."""
        logits = self.scores(x)
        keep = self.draw_keep(logits.shape, key, train=train)
        return route_softmax(logits, mask, keep, self.num_selected_experts, self.renormalized)


class SoftmaxRenormalizedRouter(SoftmaxRouter):
    """Gates are softmax probabilities over the K chosen experts (Csordás et al. 2023, eq. 25).

    Attributes: see `scoring.DroppingRouter`.
    """

    renormalized: ClassVar[bool] = True


class SwitchRouter(ScoringRouter):
    """Gates are softmax probabilities (Fedus et al. 2021, Switch Transformer: K = 1).

    Differs from the paper: without jitter of the router's input. K > 1 is allowed, as Csordás et
    al. 2023 ran it for their Table 4.

    Attributes: see `scoring.ScoringRouter`.
    """

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`."""
        del key, train  # the same in training and in evaluation
        return route_softmax(self.scores(x), mask, None, self.num_selected_experts, False)


def route_softmax(
    logits: Array,  # [G, S, E]
    mask: Array,  # [G, S] True for real tokens
    keep: Array | None,  # [G, S, E] False for dropped experts; None: all are kept
    num_selected: int,
    renormalized: bool,
) -> Routing:
    """Chooses the K largest logits; the gates are softmax probabilities.

    With `renormalized` the probabilities cover the chosen experts that are kept, and sum to
    1; otherwise all E experts, dropped ones included.
    """
    expert_index = choose_experts(logits, num_selected, keep)
    probs = jax.nn.softmax(logits)
    if renormalized:
        kept = 1 if keep is None else pick(keep, expert_index)
        real = jnp.broadcast_to((mask[..., None] * kept).astype(bool), expert_index.shape)
        gate = jax.nn.softmax(pick(logits, expert_index), where=real)
    else:
        gate = gates(probs, expert_index, mask, keep)
    return Routing(expert_index=expert_index, gate=gate, router_probs=probs, router_logits=logits)
