"""Routers that balance the choices of a batch in training: S-BASE, and as it was released."""

import jax
import jax.numpy as jnp

from widenet_jax.nn.moe.routers.sigmoid import SigmoidRouter
from widenet_jax.typing import Array

ITERATIONS = 3


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
