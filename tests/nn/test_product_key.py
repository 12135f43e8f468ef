"""Product keys, compared with a loop over tokens, heads and all pairs in float64."""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, equations_in, init, initial

from widenet_jax.nn.product_key import ProductKey, last_pair
from widenet_jax.nn.selection import keys_of

CASES, T, D, N, HEADS = 50, 3, 4, 3, 2


def loop(layer: ProductKey, params: dict, x: np.ndarray, weight: np.ndarray) -> tuple:
    """Returns y [T, D], and the gradients of sum(y weight) by the parameters and by x [T, D]."""
    keys, values = params["keys"], params["values"]
    y = np.zeros_like(x)
    dx, d = np.zeros_like(x), {k: np.zeros_like(params[k]) for k in ("keys", "values")}
    pairs = [(i, j) for i in range(N) for j in range(N)]
    together = [[0, 1]] if layer.combine_heads == "before" else [[0], [1]]
    every = layer.combine_heads == "before" and layer.knn >= N
    for t in range(len(x)):
        a, b = np.split(x[t], 2)
        for heads in together:
            score = [sum(keys[0, h, i] @ a + keys[1, h, j] @ b for h in heads) for i, j in pairs]
            order = sorted(range(N * N), key=lambda p: (-score[p], p))
            chosen = order if every else order[: layer.knn]
            exponentials = sum(np.exp(score[p]) for p in chosen)
            w = {p: max(score[p], 0) for p in chosen}
            if layer.weights == "softmax":
                w = {p: np.exp(score[p]) / exponentials for p in chosen}
            y[t] += sum(w[p] * values[p] for p in chosen)
            dw = {p: values[p] @ weight[t] for p in chosen}
            for p in chosen:
                d["values"][p] += w[p] * weight[t]
                ds = dw[p] * (score[p] > 0)
                if layer.weights == "softmax":
                    ds = w[p] * (dw[p] - sum(w[q] * dw[q] for q in chosen))
                i, j = pairs[p]
                for h in heads:
                    d["keys"][0, h, i] += ds * a
                    d["keys"][1, h, j] += ds * b
                    dx[t] += ds * np.concatenate([keys[0, h, i], keys[1, h, j]])
    return y, d, dx


@pytest.mark.parametrize(
    ("weights", "combine_heads", "knn"),
    [("relu", "after", 4), ("softmax", "before", 2), ("relu", "before", 3)],
)
def test_equals_brute_force(weights: str, combine_heads: str, knn: int):
    """Keys and tokens are multiples of 1/2, so that many scores are equal."""
    layer = ProductKey(N, HEADS, knn, weights=weights, combine_heads=combine_heads)
    rng = np.random.default_rng(knn)
    draw = lambda *shape: rng.integers(-2, 3, (CASES, *shape)) / 2  # noqa: E731
    params = {"keys": draw(2, HEADS, N, D // 2), "values": draw(N * N, D)}
    x, weight = draw(T, D), draw(T, D)

    def total(params: dict, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = layer.apply({"params": params}, x[None], train=False).y[0]
        return (y * weight).sum(), y

    run = jax.jit(jax.vmap(jax.value_and_grad(total, argnums=(0, 1), has_aux=True)))
    (_, y), (d_params, dx) = run(*jax.tree.map(jnp.float32, (params, x, weight)))
    for case in range(CASES):
        of_case = jax.tree.map(lambda v: v[case], (params, x, weight))  # noqa: B023
        found = jax.tree.map(lambda v: v[case], (y, d_params, dx))  # noqa: B023
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # noqa: E731
        jax.tree.map(close, found, loop(layer, *of_case))


@pytest.mark.parametrize(
    ("n", "knn"), [(31, 64), pytest.param(5, 24, marks=pytest.mark.slow), (5, 25)]
)
def test_the_choice_is_exact(n: int, knn: int):
    """The last chosen pair is that of sorting all n^2; half of the rows have many equal sums."""
    a, b = np.array(jax.random.normal(jax.random.key(n), (2, 20, n)))
    a[10:], b[10:] = np.round(a[10:]), np.round(b[10:])
    pairs = (a[:, :, None] + b[:, None, :]).reshape(20, -1)
    found = jax.jit(last_pair, static_argnums=2)(a, b, knn)
    if knn == n * n:
        assert found is None
        return
    last = np.argsort(-pairs, axis=1, kind="stable")[:, knn - 1]
    np.testing.assert_array_equal(found[1][:, 0], last)
    np.testing.assert_array_equal(found[0][:, 0], keys_of(pairs)[np.arange(20), last])


def test_a_projected_query_has_a_bias_and_each_head_its_own():
    layer = ProductKey(N, HEADS, 4, query_dim=6)
    x = jax.random.normal(jax.random.key(0), (2, T, D))
    params = init(layer, x)
    params["query"]["bias"] += 0.5
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == {
        "query": {"kernel": (D, HEADS * 6), "bias": (HEADS * 6,)},
        "keys": (2, HEADS, N, 3),
        "values": (N * N, D),
    }
    expected = 0
    for head in range(HEADS):
        of_head = slice(6 * head, 6 * head + 6)
        query = x @ params["query"]["kernel"][:, of_head] + params["query"]["bias"][of_head]
        # The same memory with one head, whose query is the token itself.
        one = {"keys": params["keys"][:, head : head + 1],
               "values": jnp.pad(params["values"], ((0, 0), (0, 2)))}  # fmt: skip
        expected += apply(ProductKey(N, 1, 4), one, query, train=False).y[..., :D]
    found = apply(layer, params, x, train=False).y
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_scores_are_full_float32():
    """Checks dtype and precision of every product but the last in a bfloat16 layer."""
    layer = ProductKey(N, HEADS, 2, query_dim=6, dtype="bfloat16")
    x = jnp.ones((2, T, D), jnp.bfloat16)
    params = init(layer, x, train=False)
    trace = jax.make_jaxpr(lambda p: layer.apply({"params": p}, x, train=False).y)(params)
    products = [e for e in equations_in(trace.jaxpr) if e.primitive.name == "dot_general"]
    *scores, weighted = products
    assert len(scores) == 3 and {str(v.aval.dtype) for v in weighted.invars} == {"bfloat16"}
    for product in scores:
        assert {str(v.aval.dtype) for v in product.invars} == {"float32"}
        assert product.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2


def test_tables_are_initialised_as_the_papers_say():
    """Paper: fan D for both; its row "init": n^2 for the values. Lample et al.: section 4."""
    D, n, L = 64, 24, 5
    stds = {}
    for name in ("embed_fan", "values_fan", "lample"):
        layer = ProductKey(n, 2, 4, table_init=name, kernel_init="pre_norm", depth=L)
        params = initial(layer, jnp.ones((1, 1, D)))
        stds[name] = [float(params[key].std()) for key in ("keys", "values")]
    kernel = (2 / (L * D)) ** 0.5
    assert stds["embed_fan"] == pytest.approx([kernel, kernel], rel=0.05)
    assert stds["values_fan"] == pytest.approx([kernel, (2 / (L * n * n)) ** 0.5], rel=0.05)
    assert stds["lample"] == pytest.approx([(32 * 3) ** -0.5, D**-0.5], rel=0.05)
