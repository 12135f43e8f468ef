"""The k largest of many numbers, compared with sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.nn.selection import floats_of, keep_largest, keys_of, last_of_largest


def test_by_hand():
    """Of three equal numbers the first two are kept; the gradient passes through what is kept."""
    x = jnp.array([2.0, 5.0, 2.0, 1.0, 2.0])
    total = lambda x: ((kept := keep_largest(x, 3)) @ jnp.arange(1.0, 6.0), kept)  # noqa: E731
    gradient, kept = jax.jit(jax.grad(total, has_aux=True))(x)
    assert kept.tolist() == [2, 5, 2, 0, 0]
    assert gradient.tolist() == [1, 2, 3, 0, 0]
    assert keep_largest(x, 5).tolist() == keep_largest(x, 9).tolist() == x.tolist()


@pytest.mark.parametrize(("n", "k", "dtype"), [(1, 1, "float32"), (33, 16, "bfloat16")])
def test_random_cases(n: int, k: int, dtype: str):
    """60 rows each, many with equal numbers, with fewer than k positive ones, or without any."""
    rng = np.random.default_rng(n)
    x = np.maximum(rng.integers(-4, 6, (60, n)) / 4, 0).astype(np.float32)
    x[:20] = rng.random((20, n)) * 1e-3
    x[20] = 0
    x = jnp.asarray(x, dtype)
    run = jax.jit(keep_largest, static_argnums=1)
    kept, expected = np.asarray(run(x, k), float), np.zeros(x.shape)
    for row, values in enumerate(np.asarray(x, float)):
        largest = sorted(range(n), key=lambda i: (-values[i], i))[:k]
        expected[row, largest] = values[largest]
    np.testing.assert_array_equal(kept, expected)


def test_keys_keep_the_order_of_floats():
    x = np.array([-np.inf, -3.5, -1e-37, 0, 1e-37, 2, np.nextafter(np.float32(2), 3), np.inf])
    keys = np.asarray(keys_of(jnp.asarray(x, jnp.float32)))
    assert (np.diff(keys.astype(np.int64)) > 0).all()
    zeros = jax.jit(keys_of)(jnp.array([-0.0, 0.0]))
    assert zeros[0] == zeros[1]


def test_negative_numbers():
    """Of the three equal keys the first two are chosen, then all of them."""
    keys = keys_of(jnp.array([[-1.0, -2.0, -1.0, -1.0]]))
    run = jax.jit(last_of_largest, static_argnums=1)
    assert run(keys, 2) == (keys[0, 0], 2)
    assert run(keys, 3) == (keys[0, 0], 3)
    assert run(keys, 4) == (keys[0, 1], 1)
    assert floats_of(keys).tolist() == [[-1, -2, -1, -1]]
