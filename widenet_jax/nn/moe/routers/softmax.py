"""Routers whose gates are softmax probabilities, WideNet's noisy top-K router among them."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.moe.routers import scoring
from widenet_jax.nn.moe.slots import pick
from widenet_jax.typing import Array, Routing


class TopKRouter(scoring.ScoringRouter):
    """Routes each token to the K experts with the largest noisy probabilities; see `route_top_k`.

    Attributes:
      noise_std: standard deviation of the noise in training, in units of 1/E.
      The rest: see `scoring.ScoringRouter`.
    """

    noise_std: float = 0.0

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`."""
        noise_std = self.noise_std if train else 0.0
        key = scoring.needed(key) if noise_std else None
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
    probs = jax.nn.softmax(noisy, axis=-1)  # eq. 5
    gate, expert_index = jax.lax.top_k(probs, num_selected)  # eq. 2
    return Routing(
        expert_index=expert_index.astype(jnp.int32),
        gate=gate * mask[..., None],
        router_probs=probs,
        router_logits=logits,
    )


class SoftmaxRouter(scoring.DroppingRouter):
    """Gates are softmax probabilities over all experts (Csordás et al. 2023, "no renorm.").

    Attributes: see `scoring.DroppingRouter`.
    """

    renormalized: ClassVar[bool] = False

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`."""
        logits = self.scores(x)
        keep = self.draw_keep(logits.shape, key, train=train)
        sizes = self.num_selected_experts, self.renormalized
        return route_softmax(logits, mask, keep, *sizes, self.balance_bias())


class SoftmaxRenormalizedRouter(SoftmaxRouter):
    """Gates are softmax probabilities over the K chosen experts (Csordás et al. 2023, eq. 25).

    Attributes: see `scoring.DroppingRouter`.
    """

    renormalized: ClassVar[bool] = True


class SwitchRouter(scoring.ScoringRouter):
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


class ExpertChoiceRouter(scoring.ScoringRouter):
    """Experts choose tokens by their softmax probabilities (Zhou et al. 2022, arXiv:2202.09368).

    Each token asks all E experts; c = K times the capacity factor of them take it on average, from
    none to all.

    Attributes: see `scoring.ScoringRouter`.
    """

    mixes = True

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        """Routes tokens; see the contract in `moe.routers`."""
        del key, train  # the same in training and in evaluation
        return route_softmax(self.scores(x), mask, None, self.num_experts, False)


def route_softmax(
    logits: Array,  # [G, S, E]
    mask: Array,  # [G, S] True for real tokens
    keep: Array | None,  # [G, S, E] False for dropped experts; None: all are kept
    num_selected: int,
    renormalized: bool,
    balance_bias: Array | None = None,  # [E]; None: 0
) -> Routing:
    """Chooses the K largest logits, with a bias softmax(logits) + bias; gates are probabilities.

    With `renormalized` the probabilities cover the chosen experts that are kept, and sum to
    1; otherwise all E experts, dropped ones included.
    """
    probs = jax.nn.softmax(logits)
    ranks = logits if balance_bias is None else probs + balance_bias
    expert_index = scoring.choose_experts(ranks, num_selected, keep)
    if renormalized:
        kept = 1 if keep is None else pick(keep, expert_index)
        real = jnp.broadcast_to((mask[..., None] * kept).astype(bool), expert_index.shape)
        gate = jax.nn.softmax(pick(logits, expert_index), where=real)
    else:
        gate = scoring.gates(probs, expert_index, mask, keep)
    return Routing(
        expert_index=expert_index,
        gate=gate,
        router_probs=probs,
        router_logits=logits,
        balance_bias=balance_bias,
    )
