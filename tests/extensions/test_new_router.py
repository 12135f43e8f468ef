"""A new router with its own parameters and loss, from one file: two classes and two entries."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import init
from small_runs import final_state, metrics_of, small_config

from widenet_jax import train
from widenet_jax.errors import BadInputError
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.moe.layer import MoeLayer
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


def test_trains_with_its_own_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ROUTERS, "cosine", CosineRouter)
    monkeypatch.setitem(LOSSES, "norm", norm_loss)
    config = small_config()
    with config.unlocked():
        config.model.moe.router = {"name": "cosine", "size": 6}
        config.model.moe.losses = {"load_balance": 0.01, "norm": 0.5, "over": "group"}
    train.run(config, str(tmp_path / "run"), devices=jax.devices()[:1])
    first, *_, last = metrics_of(tmp_path / "run")
    routed = config.model.depth  # every block routes, all with one shared router
    assert len(last["norm_loss"]) == routed
    expected = first["cross_entropy"] + sum(
        0.01 * balance + 0.5 * norm
        for balance, norm in zip(first["load_balance_loss"], first["norm_loss"], strict=True)
    )
    assert first["loss"] == pytest.approx(expected, rel=1e-5)
    assert sum(last["norm_loss"]) < sum(first["norm_loss"])  # the gradient reaches the parameters
    stored = [name for name in final_state(tmp_path / "run") if "['moe']['router']" in name]
    assert sum(name.startswith("params") for name in stored) == 2
    assert np.allclose(np.sum(last["load"], axis=-1), 1)


def test_a_field_without_a_default_must_be_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ROUTERS, "cosine", CosineRouter)
    layer = MoeLayer(
        mlp_dim=4,
        num_experts=2,
        num_selected_experts=1,
        capacity_factor=1.2,
        capacity_factor_eval=2.0,
        examples_per_group=2,
        router={"name": "cosine"},
    )
    with pytest.raises(BadInputError, match=r"config\.model\.moe\.router\.size is missing"):
        init(layer, jnp.ones((2, 3, 5)))
