"""A router with a temperature for each expert and a balance loss, in one file to copy."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.moe.losses import LOSSES, token_mean
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.typing import Array, Routing


class CosineRouter(nn.Module):
    """Router by the cosine between a projected token and a learned vector of each expert.

    Attributes:
      num_experts, num_selected_experts, kernel_init: of every router.
      size: of the projection. Such own fields are `config.model.moe.router.size`.
    """

    num_experts: int
    num_selected_experts: int
    kernel_init: KernelInit
    size: int = 16

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        draw, (D, E) = nn.initializers.normal(1.0), (x.shape[-1], self.num_experts)
        projection = self.param("projection", draw, (D, self.size))
        vectors = self.param("vectors", draw, (E, self.size))
        temperature = jnp.exp(self.param("log_temperature", nn.initializers.zeros, (E,)))
        projected = jnp.matmul(x, projection, precision="highest")  # [G, S, size]
        cosine = jnp.matmul(unit(projected), unit(vectors).T, precision="highest")  # [G, S, E]
        logits = 4.0 * cosine / temperature
        probs = jax.nn.softmax(logits)
        gate, index = jax.lax.top_k(probs, self.num_selected_experts)
        return Routing(
            expert_index=index,
            gate=gate * mask[..., None],
            router_probs=probs,
            router_logits=logits,
            extra={"cosine": cosine},  # for the loss below
        )


def unit(v: Array) -> Array:
    """Divides vectors by their lengths."""
    return v * jax.lax.rsqrt((v**2).sum(axis=-1, keepdims=True) + 1e-6)


def even_loss(routing: Routing, mask: Array) -> Array:
    """Returns E * sum_i P_i^2 of each group, 1 where experts are equally likely on average.

    P_i is expert i's mean probability before temperatures, which cannot lower the loss so.
    """
    P = token_mean(jax.nn.softmax(4.0 * routing.extra["cosine"]), mask)  # [G, E]
    return P.shape[-1] * (P**2).sum(axis=-1)


ROUTERS["cosine"], LOSSES["even"] = CosineRouter, even_loss
