"""A router with its own parameters and loss in one file, which is also a config."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from small_runs import small_config

from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.moe.losses import LOSSES
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.typing import Array, Routing


class CosineRouter(nn.Module):
    """Router by the cosine between a projected token and a learned vector of each expert.

    Its own field is `size`, of the projection; its own parameters `projection` and `experts`.
    """

    num_experts: int
    num_selected_experts: int
    kernel_init: KernelInit
    size: int

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        draw = nn.initializers.normal(1.0)
        projected = x @ self.param("projection", draw, (x.shape[-1], self.size))
        experts = self.param("vectors", draw, (self.num_experts, self.size))
        unit = lambda v: v / jnp.linalg.norm(v, axis=-1, keepdims=True)  # noqa: E731
        logits = 4.0 * unit(projected) @ unit(experts).T
        probs = jax.nn.softmax(logits)
        gate, index = jax.lax.top_k(probs, self.num_selected_experts)
        return Routing(
            expert_index=index.astype(jnp.int32),
            gate=gate * mask[..., None],
            router_probs=probs,
            router_logits=logits,
            extra={"norm": jnp.linalg.norm(projected, axis=-1)},
        )


def norm_loss(routing: Routing, mask: Array) -> Array:
    """Computes the mean square distance of projected tokens' norms from 1, for each group."""
    square = jnp.where(mask, (routing.extra["norm"] - 1) ** 2, 0)
    return square.sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1)


ROUTERS["cosine"], LOSSES["norm"] = CosineRouter, norm_loss


def get_config():
    config = small_config()
    with config.unlocked():
        config.model.moe.router = {"name": "cosine", "size": 6}
        config.model.moe.losses = {"load_balance": 0.01, "norm": 0.5, "over": "group"}
    return config
