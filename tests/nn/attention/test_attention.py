"""Attention agrees with its definition."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, equations_in, init

from widenet_jax.errors import BadInputError
from widenet_jax.nn.attention.full import MultiHeadAttention
from widenet_jax.nn.attention.implementations import attend
from widenet_jax.nn.attention.relative import relative_attend

B, T, D, N = 2, 5, 8, 2


def test_equals_its_definition():
    """softmax(q k^T / sqrt(H)) v for each head, in loops, without the masked keys."""
    x = jax.random.normal(jax.random.key(0), (B, T, D))
    mask = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
    layer = MultiHeadAttention(N)
    params = init(layer, x, seed=1)
    ours, _ = apply(layer, params, x, mask=mask, train=False)

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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask": jnp.ones((2, 3, 3), bool)}, r"mask is \[2, 3, 3\]; must be \[2, 4\]"),
        ({"segment_ids": jnp.ones(3, int)}, r"segment_ids is \[3\]; must be \[2, 3\]"),
        ({"causal": True}, "as many keys as queries, not 4, 3"),
        ({"implementation": "flash"}, "choose one of auto, xla, pallas, cudnn"),
    ],
)
def test_attend_names_what_does_not_fit(options: dict, words: str):
    query, key = jnp.ones((2, 3, 2, 4)), jnp.ones((2, 4, 2, 4))
    with pytest.raises(BadInputError, match=words):
        attend(query, key, key, **options)


def test_dropout_acts_on_the_output_alone():
    """At rate 0.5 each output is 0 or twice the output without dropout, and half are 0."""
    x = jax.random.normal(jax.random.key(0), (8, 16, D))
    layer = MultiHeadAttention(N, dropout=0.5)
    params = init(layer, x, seed=1)
    whole, _ = apply(layer, params, x, train=False)
    rngs = {"dropout": jax.random.key(2)}
    dropped = np.asarray(apply(layer, params, x, train=True, rngs=rngs)[0])
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], 2 * np.asarray(whole)[kept], rtol=1e-5)
    np.testing.assert_allclose(kept.mean(), 0.5, atol=0.06)


def plain_attend(query, key, value, mask=None, segment_ids=None, causal=False) -> jax.Array:
    """Computes attention by its formula, which JAX differentiates."""
    scores = jnp.einsum("bqnh,bknh->bnqk", query, key)
    if mask is not None:
        scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    if segment_ids is not None:
        same = segment_ids[:, None, :, None] == segment_ids[:, None, None]
        scores = jnp.where(same, scores, -jnp.inf)
    if causal:
        scores = jnp.where(jnp.tri(query.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores), value)


MASK = jnp.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]], bool)
SEGMENTS = jnp.array([[0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 1]])
OPTIONS = {"nothing": {}, "mask": {"mask": MASK}, "segment_ids": {"segment_ids": SEGMENTS}}
OPTIONS["causal"] = {"mask": MASK, "causal": True}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradient_written_out_is_that_of_the_formula(options: dict):
    """Output and gradients of queries, keys and values."""
    keys = jax.random.split(jax.random.key(0), 4)
    query, key, value, d_out = (jax.random.normal(k, (B, 7, N, 4)) for k in keys)

    def run(function) -> tuple:
        @jax.jit
        def out_and_gradients(*arrays):
            out, pull = jax.vjp(partial(function, **options), *arrays)
            return out, pull(d_out)

        return out_and_gradients(query, key, value)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        run(attend),
        run(plain_attend),
    )


@pytest.mark.parametrize("relative", [False, True])
def test_bfloat16_scores_have_a_float32_softmax(relative: bool):
    """Exponentials, and all sums of the forward and the backward pass."""
    x = jnp.ones((2, 4, N, 4), jnp.bfloat16)
    function, arrays = attend, (x, x, x)
    if relative:
        function = partial(relative_attend, memory_length=jnp.zeros(2, jnp.int32))
        arrays = (x[:, :3], x, x, jnp.ones((D, N, 4)), jnp.ones((N, 4)), jnp.ones((N, 4)))

    def both(*arrays):
        out, pull = jax.vjp(function, *arrays)
        return pull(out)

    gradients = jax.eval_shape(both, *arrays)
    assert [d.dtype for d in gradients] == [x.dtype for x in arrays]
    equations = equations_in(jax.make_jaxpr(both)(*arrays).jaxpr)
    found = [e for e in equations if e.primitive.name in ("exp", "reduce_sum", "div")]
    assert {e.primitive.name for e in found} == {"exp", "reduce_sum", "div"}
    assert {str(e.invars[0].aval.dtype) for e in found} == {"float32"}
    # With relative positions, the product with the values has the sum as one more column.
    sums = [e for e in equations if relative and 5 in e.outvars[0].aval.shape[-2:]]
    assert {str(e.outvars[0].aval.dtype) for e in sums if e.primitive.name == "dot_general"} == (
        {"float32"} if relative else set()
    )


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
