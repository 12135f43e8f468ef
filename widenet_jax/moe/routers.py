"""Routers: pure functions of logits. Shapes in the letters of `widenet_jax.typing`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from widenet_jax.typing import Array, Routing

Router = Callable[..., Routing]


def top_k(
    logits: Array,  # [G, S, E] float32
    mask: Array,  # [G, S] True for real tokens
    rng: Array | None,  # None: no noise (evaluation)
    *,
    num_selected_experts: int,
    noise_std: float,
) -> Routing:
    """Noisy top-K routing (WideNet, eqs. 2 and 5).

    probs = softmax(logits + noise_std / E * eps), eps ~ N(0, 1); the gates are the K largest,
    not renormalised. Ties go to the lower expert index. Masked tokens get gate 0.
    Differs from the paper: eq. 2's N(0, 1/E^2) is read as a variance, so the standard deviation
    is 1/E (as in V-MoE and in the authors' released code).
    """
    if rng is not None and noise_std > 0:
        E = logits.shape[-1]
        logits = logits + noise_std / E * jax.random.normal(rng, logits.shape, logits.dtype)
    probs = jax.nn.softmax(logits, axis=-1)
    gate, expert_index = jax.lax.top_k(probs, num_selected_experts)
    return Routing(
        expert_index=expert_index.astype(jnp.int32), gate=gate * mask[..., None], probs=probs
    )


ROUTERS: dict[str, Router] = {"top_k": top_k}
