"""The routing read from a model is the one it used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.ops.analysis.captured import routed_blocks, token_routing

# The last image is padding.
INPUTS = {"image": jax.random.normal(jax.random.key(1), (8, 8, 8, 1)), "mask": jnp.arange(8) < 7}
VARIANTS = [
    "widenet_tiny,depth=2,preset=authors_code",
    pytest.param("widenet_tiny,depth=2,routing_groups=1", marks=pytest.mark.slow),
    pytest.param("vit_moe_tiny,ffn_blocks=last_2,depth=3", marks=pytest.mark.slow),
]


def tiny(variant: str):
    """Builds a model whose buffers hold 3 of 4 choices, so that some are dropped."""
    fields = model_section(variant) | {"dtype": "float32"}
    fields["moe"] = fields["moe"] | {"capacity_factor_eval": 0.75}
    model = build_model(fields, num_classes=10)
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(model, INPUTS)
    return model, jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.3), shapes)


@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_are_those_of_the_model(variant: str):
    """Pairs sent to each expert and pairs dropped, counted token by token, equal the model's own
    statistics; reading the routing does not change the logits."""
    model, params = tiny(variant)

    @jax.jit
    def both(p):
        plain = model.apply({"params": p}, INPUTS, train=False)
        return plain, token_routing(model, p, INPUTS)

    (logits, aux), (same, routing) = both(params)
    np.testing.assert_allclose(same, logits, atol=1e-5)
    blocks = routed_blocks(model)
    sums = aux["sums"]
    operations = len(sums["load"])  # one if all blocks reuse the first block's routing
    for position in range(len(blocks)):
        load, dropped = np.zeros(4, int), 0
        for b in range(7):  # the last image is padding
            for t in range(routing.expert_index.shape[2]):
                for k in range(2):
                    load[routing.expert_index[position, b, t, k]] += 1
                    dropped += bool(routing.dropped[position, b, t, k])
        operation = min(position, operations - 1)
        np.testing.assert_array_equal(load, sums["load"][operation])
        assert dropped == sums["dropped"][operation] > 0


def test_which_blocks_route():
    def blocks_of(variant: str) -> tuple[int, ...]:
        return routed_blocks(build_model(model_section(variant), num_classes=10))

    assert blocks_of("widenet_tiny") == (0, 1, 2)
    assert blocks_of("vit_moe_tiny,ffn_blocks=every_2,depth=4") == (1, 3)
    with pytest.raises(BadInputError, match="has no mixture of experts"):
        blocks_of("vit_tiny")
