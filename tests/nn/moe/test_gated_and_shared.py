"""Experts with gates, and shared ones, equal loops over tokens, under each dispatch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from gradients import assert_gradients
from moe_by_loops import ffn, sigmoid

from widenet_jax.nn.moe.dispatch import ANYWHERE
from widenet_jax.nn.moe.layer import MoeLayer

B, T, D, F, E, K = 2, 4, 3, 4, 3, 2
FIELDS = {"mlp_dim": F, "num_experts": E, "num_selected_experts": K, "examples_per_group": 1}
FIELDS |= {"capacity_factor": 1.0, "capacity_factor_eval": 1.0, "capacity_rule": "unlimited"}
FIELDS |= {"router": {"name": "sigmoid"}, "activation": "swiglu", "shared_experts": 2}


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def by_loops(params: dict, x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    for b in range(B):
        for t in range(T):
            s = sigmoid(x[b, t] @ params["router"]["kernel"])
            for e in np.argsort(-s)[:K]:
                y[b, t] += s[e] * ffn(x[b, t], params["experts"], silu, e)
            y[b, t] += ffn(x[b, t], params["shared"], silu)
    return y


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ANYWHERE if name != "masked"]


@pytest.mark.parametrize("use_bias", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dispatch", ["masked", *OTHERS])
def test_gated_and_shared_experts_equal_a_loop_over_tokens(dispatch: str, use_bias: bool):
    layer = MoeLayer(**FIELDS, dispatch=dispatch, use_bias=use_bias)
    rng = np.random.default_rng(0)
    x, cotangent = np.float32(rng.normal(size=(2, B, T, D)))
    params = init(layer, jnp.asarray(x))
    assert params["experts"]["wg"]["kernel"].shape == (E, D, F)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    biases = E * (2 * F + D) + 2 * 2 * F + D
    assert numbers == D * E + 3 * (E + 2) * D * F + use_bias * biases
    assert layer.forward_flops(B, T, D) == 6 * B * T * D * F * (K + 2)
    if use_bias:  # `init` draws zeros
        draw = lambda p: jnp.float32(rng.normal(size=p.shape))  # noqa: E731
        params |= jax.tree.map(draw, {name: params[name] for name in ("experts", "shared")})

    def loss(params: dict, x: jax.Array):
        y = layer.apply({"params": params}, x, train=True).y
        return (y * cotangent).sum(), y

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, y), gradients = run(params, jnp.asarray(x))
    np.testing.assert_allclose(y, by_loops(jax.tree.map(np.float64, params), x), atol=1e-5)
    assert_gradients(lambda a: (by_loops(*a) * cotangent).sum(), (params, x), gradients)


@pytest.mark.slow
def test_shared_experts_run_where_a_routing_is_followed_and_have_the_sum_s_dropout():
    """K experts of zero weights; the shared one is silu(1) * 1 * 1, and drops its output once."""
    layer = MoeLayer(**FIELDS | {"mlp_dim": 1, "shared_experts": 1}, use_bias=False)
    layer = layer.clone(dropout=0.5, hidden_dropout=False, output_dropout=0.2)
    x = jnp.ones((1, 2000, 1))
    params = jax.tree.map(jnp.ones_like, init(layer, x))
    params["experts"] = jax.tree.map(jnp.zeros_like, params["experts"])
    out = apply(layer, params, x, train=False)
    np.testing.assert_allclose(out.y, 0.73105858, rtol=1e-6)
    rngs = {"dropout": jax.random.key(0)}
    y = apply(layer, params, x, train=True, routing=out.routing, rngs=rngs).y / 0.73105858
    np.testing.assert_allclose(np.unique(np.round(y, 4)), [0, 1.25])
