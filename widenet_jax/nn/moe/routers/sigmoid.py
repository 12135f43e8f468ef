"""The router of sigma-MoE."""

import flax.linen as nn
import jax

from widenet_jax.nn.moe.routers.scoring import DroppingRouter, choose_experts, gates
from widenet_jax.typing import Array, Routing


class SigmoidRouter(DroppingRouter):
    """Gates are sigmoids of the logits, which do not compete (Csordás et al. 2023, eqs. 18, 22).

    Attributes: see `scoring.DroppingRouter`.
    """

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`."""
        logits = self.scores(x)
        keep = self.draw_keep(logits.shape, key, train=train)
        K = self.num_selected_experts
        return route_sigmoid(logits, mask, keep, num_selected_experts=K)


def route_sigmoid(
    logits: Array,  # [G, S, E]
    mask: Array,  # [G, S] True for real tokens
    keep: Array | None,  # [G, S, E] False for dropped experts; None: all are kept
    *,
    num_selected_experts: int,
) -> Routing:
    """Chooses the K largest sigmoid(logits), which are the gates: in (0, 1), of any sum.

    It compares the logits, which have the same order and no ties where the sigmoid rounds to 1.
    Differs from the paper: eq. 22 does not say whether a mask of the expert dropout belongs to a
    token or to a batch; here to a token, as in the released code.
    """
    expert_index = choose_experts(logits, num_selected_experts, keep)
    return Routing(
        expert_index=expert_index,
        gate=gates(jax.nn.sigmoid(logits), expert_index, mask, keep),
        router_probs=jax.nn.softmax(logits),
        router_logits=logits,
    )
