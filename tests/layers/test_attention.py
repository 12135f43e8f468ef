"""Attention agrees with its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init

from widenet_jax.layers.attention import MultiHeadAttention, attend

B, T, D, N = 2, 5, 8, 2


def test_equals_its_definition():
    """softmax(q k^T / sqrt(H)) v for each head, in loops, without the masked keys."""
    x = jax.random.normal(jax.random.key(0), (B, T, D))
    mask = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
    layer = MultiHeadAttention(N)
    params = init(layer, x, seed=1)
    ours = apply(layer, params, x, mask=mask, train=False)

    def linear(name: str, inputs: np.ndarray) -> np.ndarray:
        return inputs @ np.asarray(params[name]["kernel"]) + np.asarray(params[name]["bias"])

    H = D // N
    for b in range(B):
        real = np.flatnonzero(mask[b])
        q, k, v = (linear(name, np.asarray(x[b])) for name in ("query", "key", "value"))
        heads = []
        for n in range(N):
            part = slice(n * H, (n + 1) * H)
            scores = q[:, part] @ k[real, part].T / np.sqrt(H)
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            heads.append(weights @ v[real, part])
        expected = linear("out", np.concatenate(heads, -1))
        np.testing.assert_allclose(ours[b], expected, rtol=1e-4, atol=1e-5)


def test_dropout_acts_on_the_output_alone():
    """At rate 0.5 each output is 0 or twice the output without dropout, and half are 0."""
    x = jax.random.normal(jax.random.key(0), (8, 16, D))
    layer = MultiHeadAttention(N, dropout=0.5)
    params = init(layer, x, seed=1)
    whole = apply(layer, params, x, train=False)
    rngs = {"dropout": jax.random.key(2)}
    dropped = np.asarray(apply(layer, params, x, train=True, rngs=rngs))
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], 2 * np.asarray(whole)[kept], rtol=1e-5)
    np.testing.assert_allclose(kept.mean(), 0.5, atol=0.06)


def plain_attend(query, key, value, mask=None, segments=None, bias=None) -> jax.Array:
    """Computes attention by its formula, which JAX differentiates."""
    scores = jnp.einsum("bqnh,bknh->bnqk", query, key)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    if segments is not None:
        same = segments[0][:, None, :, None] == segments[1][:, None, None]
        scores = jnp.where(same, scores, -jnp.inf)
    return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores), value)


MASK = jnp.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]], bool)
OF_KEYS = jnp.array([[0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 1]])
OF_QUERIES = jnp.array([[0, 1, 1, 2, 2], [0, 0, 0, 0, 1]])
CAUSAL = jnp.where(jnp.arange(7) <= jnp.arange(5)[:, None] + 2, 0.0, -jnp.inf)[None, None]
RELATIVE = jax.random.normal(jax.random.key(9), (B, N, T, 7))
OPTIONS = {
    "nothing": {},
    "mask": {"mask": MASK},
    "segments": {"segments": (OF_QUERIES, OF_KEYS)},
    "causal": {"bias": CAUSAL},
    "a bias for each head": {"bias": RELATIVE[:1]},
    "a bias for each example": {"bias": RELATIVE[:, :1]},
    "mask and bias": {"mask": MASK, "bias": RELATIVE},
    "segments and one bias": {"segments": (OF_QUERIES, OF_KEYS), "bias": RELATIVE[:1, :1]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradient_written_out_is_that_of_the_formula(options: dict):
    """Five queries, seven keys; output and gradients of queries, keys, values and bias."""
    keys = jax.random.split(jax.random.key(0), 4)
    query, d_out = (jax.random.normal(k, (B, T, N, 4)) for k in keys[:2])
    key, value = (jax.random.normal(k, (B, 7, N, 4)) for k in keys[2:])
    bias = options.get("bias")
    others = {name: value for name, value in options.items() if name != "bias"}

    def run(function) -> tuple:
        def of_arrays(q, k, v, bias):
            return function(q, k, v, bias=bias, **others)

        @jax.jit
        def out_and_gradients(*arrays):
            out, pull = jax.vjp(of_arrays, *arrays)
            return out, pull(d_out)

        return out_and_gradients(query, key, value, bias)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        run(attend),
        run(plain_attend),
    )


def test_segments_are_as_good_as_separate_sequences():
    """Two sequences packed into one row have the same outputs as each sequence alone."""
    x = jax.random.normal(jax.random.key(0), (1, 7, N, 4))
    segments = jnp.array([[0, 0, 0, 1, 1, 1, 1]])
    packed = attend(x, x, x, segments=(segments, segments))
    for part in (slice(0, 3), slice(3, 7)):
        alone = attend(x[:, part], x[:, part], x[:, part])
        np.testing.assert_allclose(packed[:, part], alone, rtol=1e-6, atol=1e-6)


def test_mask_or_segments():
    x, segments = jnp.ones((1, 2, 1, 4)), jnp.zeros((1, 2), jnp.int32)
    with pytest.raises(ValueError, match="mask or segments"):
        attend(x, x, x, mask=segments == 0, segments=(segments, segments))


def test_a_component_common_to_all_keys_leaves_the_bfloat16_gradient_accurate():
    """Keys and values of unit noise around a mean of 10: each gradient to 5% of its own norm.

    The gradients of a query's scores sum to nearly 0; their residue times a mean key of 10 would
    be larger than the query's gradient. JAX's own gradient, in bfloat16, is 3% off.
    """
    shape = (2, 64, 2, 32)
    keys = jax.random.split(jax.random.key(0), 6)
    noise = [jax.random.normal(k, shape) for k in keys[:4]]
    mean_key, mean_value = (10 * jax.random.normal(k, (1, 1, *shape[2:])) for k in keys[4:])
    inputs = (0.05 * noise[0], noise[1] + mean_key, noise[2] + mean_value)
    inputs = [x.astype(jnp.bfloat16) for x in inputs]
    d_out = noise[3].astype(jnp.bfloat16)

    def gradients(function, dtype) -> list:
        _, pull = jax.vjp(function, *(x.astype(dtype) for x in inputs))
        return pull(d_out.astype(dtype))

    exact = gradients(plain_attend, jnp.float32)
    for ours, right in zip(gradients(attend, jnp.bfloat16), exact, strict=True):
        error = np.linalg.norm(np.float32(ours) - right) / np.linalg.norm(right)
        assert error < 0.05


def float64_query_gradient(query, key, value, d_out) -> np.ndarray:
    query, key, value, d_out = (np.float64(x) for x in (query, key, value, d_out))
    scores = np.einsum("bqnh,bknh->bnqk", query, key)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    d_weights = np.einsum("bqnh,bknh->bnqk", d_out, value)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    return np.einsum("bnqk,bknh->bqnh", d_scores, key)


def test_large_scores_leave_the_query_gradient_as_accurate_as_plain_autodiff():
    """Scores of deviation 30 in float32, against float64."""
    keys = jax.random.split(jax.random.key(0), 4)
    query, key, value, d_out = (jax.random.normal(k, (2, 64, 2, 32)) for k in keys)
    query = 30 / np.sqrt(32) * query
    exact = float64_query_gradient(query, key, value, d_out)

    def error(function) -> float:
        with jax.default_matmul_precision("highest"):
            _, pull = jax.vjp(function, query, key, value)
            return np.linalg.norm(pull(d_out)[0] - exact) / np.linalg.norm(exact)

    assert error(attend) < 1.5 * error(plain_attend)


def test_an_image_that_is_all_padding_is_finite():
    x = jnp.ones((1, T, N, 4))
    out, pull = jax.vjp(lambda x: attend(x, x, x, mask=jnp.zeros((1, T), bool)), x)
    assert np.isfinite(out).all()
    assert np.isfinite(pull(x)[0]).all()
