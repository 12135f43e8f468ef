"""The layer of the K largest hidden units, compared with a loop over tokens in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply

from widenet_jax.nn.mlp import Mlp, TopKMlp

CASES, T, D, F, K = 60, 4, 3, 8, 3


def loop(
    params: dict, x: np.ndarray, weight: np.ndarray, k: int
) -> tuple[np.ndarray, dict, np.ndarray]:
    """Returns y [T, D], and the gradients of sum(y weight) by the parameters and by x [T, D]."""
    (wi, bi), (wo, bo) = ((params[k]["kernel"], params[k]["bias"]) for k in ("wi", "wo"))
    y, dx = np.zeros_like(x), np.zeros_like(x)
    d = {k: {name: np.zeros_like(v) for name, v in params[k].items()} for k in params}
    for t in range(len(x)):
        h = np.maximum(x[t] @ wi + bi, 0)
        kept = sorted(range(F), key=lambda f: (-h[f], f))[:k]
        y[t] = bo + sum(h[f] * wo[f] for f in kept)
        d["wo"]["bias"] += weight[t]
        for f in kept:
            d["wo"]["kernel"][f] += h[f] * weight[t]
            if h[f] > 0:
                dh = wo[f] @ weight[t]
                d["wi"]["kernel"][:, f] += dh * x[t]
                d["wi"]["bias"][f] += dh
                dx[t] += dh * wi[:, f]
    return y, d, dx


LAYERS = {K: TopKMlp(F, num_active=K, activation="relu"), F: Mlp(F, activation="relu")}


@pytest.mark.parametrize("k", LAYERS)
def test_equals_a_loop_over_tokens(k: int):
    """Also the dense layer, which uses all units.

    Numbers are multiples of 1/2, so that nothing is rounded and many hidden units are equal.
    """
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.integers(-2, 3, (CASES, *shape)) / 2  # noqa: E731
    params = {
        "wi": {"kernel": draw(D, F), "bias": draw(F)},
        "wo": {"kernel": draw(F, D), "bias": draw(D)},
    }
    x, weight = draw(T, D), draw(T, D)
    layer = LAYERS[k]

    def total(params: dict, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = layer.apply({"params": params}, x[None], train=False).y[0]
        return (y * weight).sum(), y

    run = jax.jit(jax.vmap(jax.value_and_grad(total, argnums=(0, 1), has_aux=True)))
    (_, y), (d_params, dx) = run(*jax.tree.map(jnp.float32, (params, x, weight)))
    for case in range(CASES):
        of_case = jax.tree.map(lambda v: v[case], (params, x, weight))  # noqa: B023
        expected = loop(*of_case, k)
        found = jax.tree.map(lambda v: v[case], (y, d_params, dx))  # noqa: B023
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_dropout_comes_before_the_choice():
    """Hidden units are 1 or, after dropout, 2 and 0: three of those left are kept."""
    rngs = {"dropout": jax.random.key(2)}
    ones = {"wi": {"kernel": jnp.zeros((1, 40)), "bias": jnp.ones(40)},
            "wo": {"kernel": jnp.ones((40, 1)), "bias": jnp.zeros(1)}}  # fmt: skip
    layer = TopKMlp(40, dropout=0.5, activation="relu", num_active=3)
    y = apply(layer, ones, jnp.ones((1, 20, 1)), train=True, rngs=rngs).y
    assert set(np.unique(y)) == {0, 12}  # 3 * 2, twice as large or dropped after the output layer
