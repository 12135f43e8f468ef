"""The step's own parts; whole steps are tested in test_train."""

import jax.numpy as jnp

from widenet_jax.step import deal


def test_groups_are_dealt_out_in_turn():
    """Four groups of two rows to two parts: groups 0 and 2, then 1 and 3, each whole."""
    rows = jnp.arange(8)
    assert deal(rows, 2, 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert deal(rows[:, None], 4, 1).shape == (4, 2, 1)
