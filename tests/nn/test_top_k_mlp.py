"""The layer of the K largest hidden units, compared with a loop over tokens in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init

from widenet_jax.errors import BadInputError
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


def test_by_hand():
    """x = 1: hidden units 3, 1, 3, 2, of which the two 3s are kept: 3 * 10 + 3 * 1 + bias 5."""
    params = {
        "wi": {"kernel": jnp.array([[3.0, 1, 2, -1]]), "bias": jnp.array([0.0, 0, 1, 3])},
        "wo": {"kernel": jnp.array([[10.0], [7], [1], [7]]), "bias": jnp.array([5.0])},
    }
    layer = TopKMlp(4, num_active=2, activation="relu")
    assert apply(layer, params, jnp.ones((1, 1, 1)), train=False).y.item() == 38
    one = layer.clone(num_active=1)  # of equal ones the first
    assert apply(one, params, jnp.ones((1, 1, 1)), train=False).y.item() == 35


def test_all_units_are_the_dense_layer_and_dropout_comes_first():
    x = jax.random.normal(jax.random.key(0), (2, 5, D))
    dense = Mlp(F, dropout=0.5, activation="relu")
    params = init(dense, x)
    rngs = {"dropout": jax.random.key(2)}
    same = TopKMlp(F, dropout=0.5, activation="relu", num_active=F)
    expected, found = (apply(f, params, x, train=True, rngs=rngs).y for f in (dense, same))
    np.testing.assert_array_equal(found, expected)

    # Hidden units are 1 or, after dropout, 2 and 0: three of those left are kept.
    ones = {"wi": {"kernel": jnp.zeros((1, 40)), "bias": jnp.ones(40)},
            "wo": {"kernel": jnp.ones((40, 1)), "bias": jnp.zeros(1)}}  # fmt: skip
    layer = TopKMlp(40, dropout=0.5, activation="relu", num_active=3)
    y = apply(layer, ones, jnp.ones((1, 20, 1)), train=True, rngs=rngs).y
    assert set(np.unique(y)) == {0, 12}  # 3 * 2, twice as large or dropped after the output layer


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"num_active": 9}, "top_k_mlp.num_active"), ({"activation": "gelu"}, "activation=relu")],
)
def test_fields_that_do_not_fit(fields: dict, message: str):
    layer = TopKMlp(**{"mlp_dim": 8, "num_active": 3, "activation": "relu"} | fields)
    with pytest.raises(BadInputError, match=message):
        layer.init(jax.random.key(0), jnp.ones((1, 1, D)), train=False)
