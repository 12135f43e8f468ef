"""Pooling, compared with values computed by hand."""

import jax.numpy as jnp

from widenet_jax.vision.model import pool_mean, pool_token

X = jnp.array([[[1.0], [2.0], [6.0]], [[4.0], [8.0], [0.0]]])
MASK = jnp.array([[True, True, False], [False, False, False]])


def test_token():
    assert pool_token(X, None).tolist() == [[1], [4]]


def test_mean_over_real_tokens():
    assert pool_mean(X, None).tolist() == [[3], [4]]
    assert pool_mean(X, MASK).tolist() == [[1.5], [0]]
