"""Statistics of a routing, by hand."""

import jax.numpy as jnp
import numpy as np

from widenet_jax.nn.moe.slots import routing_statistics, summarize
from widenet_jax.typing import Routing

ROUTING = Routing(
    expert_index=jnp.array([[[0, 1], [0, 2], [1, 0]]]),
    gate=jnp.array([[[0.5, 0.3], [0.6, 0.4], [0.0, 0.0]]]),
    router_logits=jnp.zeros((1, 3, 3)),
    router_probs=jnp.array([[[0.5, 0.3, 0.2], [0.6, 0.0, 0.4], [1 / 3, 1 / 3, 1 / 3]]]),
    slot=jnp.array([[[0, 0], [2, 0], [2, 2]]]),
)
MASK = jnp.array([[True, True, False]])


def test_statistics_count_real_tokens_only():
    """Pairs: expert 0 twice, 1 and 2 once; token 1's first choice found no slot (2 = capacity)."""
    stats = routing_statistics(ROUTING, MASK, 2)
    assert stats["load"].tolist() == [2, 1, 1]
    np.testing.assert_allclose(stats["importance"], [1.1, 0.3, 0.4], rtol=1e-6)
    assert int(stats["dropped"]) == 1 and int(stats["pairs"]) == 4
    assert int(stats["tokens"]) == 2
    # -(0.5 ln 0.5 + 0.3 ln 0.3 + 0.2 ln 0.2) = 1.0296530, -(0.6 ln 0.6 + 0.4 ln 0.4) = 0.6730117
    np.testing.assert_allclose(stats["entropy"], 1.0296530 + 0.6730117, rtol=1e-5)


def test_summary_is_shares_and_means():
    """Two blocks with the same sums, stacked as in the encoder."""
    stats = routing_statistics(ROUTING, MASK, 2)
    summary = summarize({key: np.stack([value, value]) for key, value in stats.items()})
    np.testing.assert_allclose(summary["load"], [[0.5, 0.25, 0.25]] * 2)
    np.testing.assert_allclose(summary["importance"], [[1.1 / 1.8, 0.3 / 1.8, 0.4 / 1.8]] * 2, 1e-5)
    np.testing.assert_allclose(summary["drop_rate"], [0.25, 0.25])
    np.testing.assert_allclose(summary["router_entropy"], [0.8513323] * 2, rtol=1e-5)
    idle = {key: np.stack([value, np.zeros_like(value)]) for key, value in stats.items()}
    for name, value in summarize(idle | {"no_expert": np.zeros(2)}).items():  # a loop did not run
        assert np.isfinite(value[0]).all() and np.isnan(value[1]).all(), name
