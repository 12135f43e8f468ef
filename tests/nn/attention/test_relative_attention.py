"""Relative attention agrees with its definition in loops, and with sums worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from sinusoids import sinusoids

from widenet_jax.nn.attention.relative import RelativeAttention, relative_attend

NAMES = ("query", "key", "value", "position_kernel", "content_bias", "position_bias")


def in_loops(arrays: dict[str, np.ndarray], lengths: np.ndarray, d_out: np.ndarray) -> tuple:
    """Computes attention and the gradients of sum(out * d_out), token by token in float64."""
    q, k, v, kernel, u, w = (np.asarray(arrays[name], np.float64) for name in NAMES)
    (B, T, N, H), M = q.shape, k.shape[1] - q.shape[1]
    waves = sinusoids(M + T, len(kernel)).astype(np.float64)
    r = np.tensordot(waves, kernel, 1)
    out, d = np.zeros(q.shape), {name: np.zeros(arrays[name].shape) for name in NAMES}
    d_r = np.zeros(r.shape)
    for b, i, n in np.ndindex(B, T, N):
        places = range(M - lengths[b], M + i + 1)
        content, position = q[b, i, n] + u[n], q[b, i, n] + w[n]
        scores = [
            (content @ k[b, j, n] + position @ r[M + i - j, n]) / math.sqrt(H) for j in places
        ]
        weights = np.exp(scores) / np.exp(scores).sum()
        out[b, i, n] = sum(p * v[b, j, n] for p, j in zip(weights, places, strict=True))
        of_weights = [d_out[b, i, n] @ v[b, j, n] for j in places]
        mean = weights @ of_weights
        for p, of_weight, j in zip(weights, of_weights, places, strict=True):
            d_score = p * (of_weight - mean) / math.sqrt(H)
            d["value"][b, j, n] += p * d_out[b, i, n]
            d["key"][b, j, n] += d_score * content
            d_r[M + i - j, n] += d_score * position
            d["content_bias"][n] += d_score * k[b, j, n]
            d["position_bias"][n] += d_score * r[M + i - j, n]
            d["query"][b, i, n] += d_score * (k[b, j, n] + r[M + i - j, n])
    return out, d | {"position_kernel": np.tensordot(waves.T, d_r, 1)}


@pytest.mark.parametrize(("T", "M", "D"), [(4, 5, 64), (5, 0, 6), (1, 3, 2), (2, 9, 16)])
def test_equals_loops_over_tokens(T: int, M: int, D: int):
    """50 rows whose memories hold 0 to M tokens; output and gradients of every argument."""
    rng, (B, N, H) = np.random.default_rng(T), (50, 2, 4)
    shapes = [(B, T, N, H), (B, M + T, N, H), (B, M + T, N, H), (D, N, H), (N, H), (N, H)]
    arrays = {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}
    lengths, d_out = np.arange(B) % (M + 1), rng.normal(size=(B, T, N, H))

    @jax.jit
    def ours(arrays: dict) -> tuple:
        def attend(arrays: dict) -> jax.Array:
            return relative_attend(**arrays, memory_length=jnp.asarray(lengths))

        out, pull = jax.vjp(attend, arrays)
        return out, pull(jnp.asarray(d_out, jnp.float32))[0]

    single = {name: np.float32(array) for name, array in arrays.items()}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        ours(single),
        in_loops(single, lengths, d_out),
    )


def test_by_hand():
    """One head of one number, two tokens after one memory row: scores and weights on paper."""
    numbers = {
        "query": [1.0, 2.0],
        "key": [3.0, 1.0, -1.0],  # of the memory, of token 0, of token 1
        "value": [1.0, 10.0, 100.0],
    }
    arrays = {name: jnp.array(x).reshape(1, -1, 1, 1) for name, x in numbers.items()}
    keys = [0.5, 1.0, 2.0]  # of the distances 0, 1, 2
    kernel = np.linalg.solve(sinusoids(3, 4)[:, 1:], keys)
    arrays["position_kernel"] = jnp.array([0, *kernel]).reshape(4, 1, 1)
    biases = {"content_bias": jnp.full((1, 1), 1.0), "position_bias": jnp.full((1, 1), -1.0)}

    attend = jax.jit(relative_attend)

    def run(length: int) -> np.ndarray:
        lengths = jnp.array([length])
        return np.asarray(attend(**arrays, **biases, memory_length=lengths)).ravel()

    # Token 0: (1 + 1) * (3, 1) + (1 - 1) * (1, 0.5) = (6, 2).
    # Token 1: (2 + 1) * (3, 1, -1) + (2 - 1) * (2, 1, 0.5) = (11, 4, -2.5).
    e = np.exp
    first = (1 * e(6) + 10 * e(2)) / (e(6) + e(2))
    second = (1 * e(11) + 10 * e(4) + 100 * e(-2.5)) / (e(11) + e(4) + e(-2.5))
    np.testing.assert_allclose(run(1), [first, second], rtol=1e-5)
    alone = (10 * e(4) + 100 * e(-2.5)) / (e(4) + e(-2.5))
    np.testing.assert_allclose(run(0), [10, alone], rtol=1e-5)


def test_the_layer_by_parts():
    """Heads whose widths do not add up to D; an empty memory row has no influence."""
    B, T, M, D, N, H = 2, 3, 2, 6, 2, 5
    x, memory = (jax.random.normal(jax.random.key(i), (B, n, D)) for i, n in enumerate((T, M)))
    layer, lengths = RelativeAttention(N, H), jnp.array([1, 2])

    params = jax.jit(lambda: layer.init(
        jax.random.key(2), x, memory=memory, memory_length=lengths, train=False
    ))()["params"]  # fmt: skip
    kernels = dict.fromkeys(("query", "key", "value", "position"), (D, N * H))
    shapes = {name: p["kernel"].shape for name, p in params.items() if not name.endswith("bias")}
    assert shapes == kernels | {"out": (N * H, D)}
    biases = {name: params[name] for name in ("content_bias", "position_bias")}
    assert all((b == 0).all() and b.shape == (N, H) for b in biases.values())
    biases = {name: b + 0.3 + i for i, (name, b) in enumerate(biases.items())}

    def heads(name: str, x: np.ndarray) -> np.ndarray:
        return (x @ params[name]["kernel"]).reshape(*x.shape[:-1], N, H)

    context = np.concatenate([memory, x], axis=1)
    arrays = {"query": heads("query", x), "key": heads("key", context)}
    arrays |= {"value": heads("value", context)}
    arrays["position_kernel"] = params["position"]["kernel"].reshape(D, N, H)
    arrays |= biases
    expected, _ = in_loops(arrays, np.asarray(lengths), np.zeros((B, T, N, H)))
    options = {"memory": memory.at[0, 0].set(100.0), "memory_length": lengths}
    ours, _ = apply(layer, params | biases, x, **options, train=False)
    expected = expected.reshape(B, T, -1) @ params["out"]["kernel"]
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
