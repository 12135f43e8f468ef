"""The average of the parameters follows them, and changes places with them in a checkpoint."""

import jax.numpy as jnp
import numpy as np
import optax

from widenet_jax.optim.build import AverageState, averaged, swap, with_average

PARAMS = {"w": jnp.array([1.0, 2.0])}
GRADS = {"w": jnp.array([1.0, -1.0])}


def test_the_average_by_hand():
    tx = with_average(optax.sgd(0.5), 0.15)
    state, params = tx.init(PARAMS), PARAMS
    expected = p = np.array([1.0, 2.0])
    for n in range(3):
        updates, state = tx.update(GRADS, state, params)
        params = optax.apply_updates(params, updates)
        p = p - 0.5 * np.array([1.0, -1.0])
        d = min(0.15, (1 + n) / (10 + n))
        expected = d * expected + (1 - d) * p
        np.testing.assert_allclose(params["w"], p, rtol=1e-6)
        np.testing.assert_allclose(averaged(params, state)["w"], expected, rtol=1e-6)
    assert int(state.count) == 3


def test_frozen_parameters_stay_to_the_bit():
    tx = with_average(optax.sgd(0.0), 0.999)
    params = {"w": jnp.linspace(0.1, 3.0, 1000)}
    state = tx.init(params)
    for _ in range(50):
        _, state = tx.update(params, state, params)
    np.testing.assert_array_equal(state.average["w"], params["w"])


def test_swapping_twice_changes_nothing():
    state = AverageState((), {"w": jnp.zeros(2)}, jnp.int32(1))
    stored, kept = swap(PARAMS, state)
    assert stored is state.average and kept.average is PARAMS
    again = swap(stored, kept)
    assert again[0] is PARAMS and again[1].average is state.average
    assert swap(PARAMS, "another state") == (PARAMS, "another state")
    assert averaged(PARAMS, ()) is PARAMS
