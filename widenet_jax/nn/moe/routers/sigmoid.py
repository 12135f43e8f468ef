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
        offset = self.offset(logits, mask) if train else None
        return route_sigmoid(logits, mask, keep, self.num_selected_experts, offset)

    def offset(self, logits: Array, mask: Array) -> Array | None:
        """Returns what is added to the logits before the choice in training: here nothing."""
        del logits, mask


def route_sigmoid(
    logits: Array,  # [G, S, E]
    mask: Array,  # [G, S] True for real tokens
    keep: Array | None,  # [G, S, E] False for dropped experts; None: all are kept
    num_selected: int,
    offset: Array | None = None,  # broadcasts to [G, S, E]; None: 0
) -> Routing:
    """Chooses the K largest logits + offset; the gates are sigmoid(logits): in (0, 1), of any sum.

    It compares the logits, which have the same order and no ties where the sigmoid rounds to 1.
    Differs from the paper: eq. 22 does not say whether a mask of the expert dropout belongs to a
    token or to a batch; here to a token, as in the released code.
    """
    scores = logits if offset is None else logits + offset
    expert_index = choose_experts(scores, num_selected, keep)
    return Routing(
        expert_index=expert_index,
        gate=gates(jax.nn.sigmoid(logits), expert_index, mask, keep),
        router_probs=jax.nn.softmax(scores),
        router_logits=logits,
    )
