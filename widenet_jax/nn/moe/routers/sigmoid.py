"""Routers whose gates are sigmoids: sigma-MoE's, and those that balance a batch in training."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.moe.routers.scoring import DroppingRouter, choose_experts, gates
from widenet_jax.typing import Array, Routing

ITERATIONS = 3  # of the routers that balance


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
        bias = self.balance_bias()
        return route_sigmoid(logits, mask, keep, self.num_selected_experts, offset, bias)

    def offset(self, logits: Array, mask: Array) -> Array | None:
        """Returns what is added to the logits before the choice in training: here nothing."""
        del logits, mask


def route_sigmoid(
    logits: Array,  # [G, S, E]
    mask: Array,  # [G, S] True for real tokens
    keep: Array | None,  # [G, S, E] False for dropped experts; None: all are kept
    num_selected: int,
    offset: Array | None = None,  # broadcasts to [G, S, E]; None: 0
    balance_bias: Array | None = None,  # [E]; None: 0
) -> Routing:
    """Chooses the K largest logits + offset; the gates are sigmoid(logits): in (0, 1), of any sum.

    With a bias, which has no offset beside it, the K largest sigmoid(logits) + bias.

    It compares the logits, which have the same order and no ties where the sigmoid rounds to 1.
    Differs from the paper: eq. 22 does not say whether a mask of the expert dropout belongs to a
    token or to a batch; here to a token, as in the released code.
    """
    scores = logits if offset is None else logits + offset
    ranks = scores if balance_bias is None else jax.nn.sigmoid(logits) + balance_bias
    expert_index = choose_experts(ranks, num_selected, keep)
    return Routing(
        expert_index=expert_index,
        gate=gates(jax.nn.sigmoid(logits), expert_index, mask, keep),
        router_probs=jax.nn.softmax(scores),
        router_logits=logits,
        balance_bias=balance_bias,
    )


class SinkhornRouter(SigmoidRouter):
    """Chooses experts by a nearly balanced assignment in training (S-BASE, Clark et al. 2022).

    As Csordás et al. 2023 describe it: the gate is the sigmoid of the raw logit. In evaluation the
    K largest logits are chosen. In training a token's experts depend on the other tokens of the
    batch, later ones of its own sequence included, so that a language model in training sees a
    trace of the future; in evaluation it does not. Under gradient accumulation a micro-batch is
    balanced.

    Attributes: see `scoring.DroppingRouter`.
    """

    def offset(self, logits: Array, mask: Array) -> Array:
        """Returns `sinkhorn_offset`."""
        return sinkhorn_offset(logits, mask)


class ReleasedSinkhornRouter(SigmoidRouter):
    """S-BASE as in the code that Csordás et al. 2023 released, for rerunning their rows only.

    Its iteration differs from Sinkhorn's, see `released_offset`, and its loads are less even. Its
    scope is the token group, which is a sequence where examples_per_group is 1.

    Attributes: see `scoring.DroppingRouter`.
    """

    def offset(self, logits: Array, mask: Array) -> Array:
        """Returns `released_offset`."""
        return released_offset(logits, mask)


def sinkhorn_offset(logits: Array, mask: Array) -> Array:
    """Returns h [1, 1, E], which spreads the n real tokens of the batch evenly over the experts.

    Three times: f_i = -logsumexp_e(z_ie + h_e), h_e = log(n / E) - logsumexp_i(z_ie + f_i), from
    h = 0. The plan exp(z_ie + f_i + h_e) then has columns of sum n/E, and rows of sum nearly 1. A
    token's experts have its largest z + h, since f does not matter in a row. Without
    gradient. [G, S, E] is reduced over the whole batch, which costs an all-reduce of [E] numbers.
    """
    logits, (tokens, real) = jax.lax.stop_gradient(logits), real_tokens(mask, axis=(0, 1))
    h = jnp.zeros_like(logits[:1, :1])
    for _ in range(ITERATIONS):
        f = -jax.nn.logsumexp(logits + h, axis=-1, keepdims=True)
        of_expert = jax.nn.logsumexp(logits + f, axis=(0, 1), keepdims=True, where=real)
        h = jnp.log(tokens / logits.shape[-1]) - of_expert
    return jnp.where(real.any(), h, 0)


def released_offset(logits: Array, mask: Array) -> Array:
    """Returns a [G, 1, E], as the released code adds it to the logits before the choice.

    Three times: b_i = log(n) - logsumexp_e(z_ie - a_e), a_e = log(E) - logsumexp_i(z_ie - b_i),
    from a = 0, over the n real tokens of a group; then chosen by z + a. Inside the loop the signs
    of a and b are the opposite of Sinkhorn's, so that it does not converge to an even load: the
    wider the logits, the less even.
    """
    logits, (tokens, real) = jax.lax.stop_gradient(logits), real_tokens(mask, axis=1)
    a = jnp.zeros_like(logits[:, :1])
    for _ in range(ITERATIONS):
        b = jnp.log(tokens) - jax.nn.logsumexp(logits - a, axis=-1, keepdims=True)
        of_expert = jax.nn.logsumexp(logits - b, axis=1, keepdims=True, where=real)
        a = jnp.log(logits.shape[-1]) - of_expert
    return jnp.where(real.any(axis=1, keepdims=True), a, 0)


def real_tokens(mask: Array, axis: int | tuple[int, ...]) -> tuple[Array, Array]:
    """Returns the number of real tokens, at least 1, as [., ., 1], and the mask as [G, S, 1]."""
    tokens = jnp.maximum(mask.sum(axis=axis, keepdims=True), 1)
    return tokens[..., None].astype(jnp.float32), mask[..., None]
