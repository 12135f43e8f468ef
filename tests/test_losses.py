"""Losses, compared with NumPy."""

import jax.numpy as jnp
import numpy as np

from widenet_jax.losses import smooth_labels, softmax_cross_entropy


def test_smoothing_by_hand():
    smoothed = smooth_labels(jnp.array([[0.0, 1.0, 0.0, 0.0]]), 0.1)
    np.testing.assert_allclose(smoothed, [[0.025, 0.925, 0.025, 0.025]], atol=1e-7)
    np.testing.assert_array_equal(smooth_labels(jnp.eye(3), 0.0), jnp.eye(3))
    soft = np.random.default_rng(0).dirichlet(np.ones(7), size=5)
    np.testing.assert_allclose(smooth_labels(soft, 0.3).sum(-1), np.ones(5), atol=1e-6)


def test_cross_entropy_against_numpy():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 5))
    target = rng.dirichlet(np.ones(5), size=4)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = softmax_cross_entropy(jnp.array(logits, jnp.float32), jnp.array(target, jnp.float32))
    assert loss.shape == (4,)
    np.testing.assert_allclose(loss, -(target * log_probs).sum(-1), rtol=1e-6)


def test_large_logits_stay_finite_and_bfloat16_is_widened():
    logits = jnp.array([[1e4, -1e4]], jnp.bfloat16)
    loss = softmax_cross_entropy(logits, jnp.array([[0.0, 1.0]], jnp.bfloat16))
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, [2e4], rtol=1e-2)
