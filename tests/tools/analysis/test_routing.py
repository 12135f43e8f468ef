"""The routing taken out of a model is the one that it used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.models.sizes import parse_variant, vision_model
from widenet_jax.models.vit import build_model, parameter_shapes
from widenet_jax.tasks.classification import to_unit_range
from widenet_jax.tools.analysis.routing import (
    image_router,
    patch_grid,
    routed_blocks,
    token_routing,
)
from widenet_jax.weights.trained import open_trained

IMAGES = jax.random.normal(jax.random.key(1), (8, 8, 8, 1))
MASK = jnp.arange(8) < 7
VARIANTS = ["widenet_tiny,depth=2,preset=authors_code", "widenet_tiny,depth=2,routing_groups=1",
            "vit_moe_tiny,moe_blocks=last_2,depth=3"]  # fmt: skip


def tiny(variant: str):
    """With room for 3 in 4 choices, so that some are dropped."""
    fields = vision_model(*parse_variant(variant)) | {"dtype": "float32"}
    fields["moe"] = fields["moe"] | {"capacity_factor_eval": 0.75}
    model = build_model(fields, 10)
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(model, IMAGES.shape[1:])
    return model, jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.3), shapes)


@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_are_those_of_the_model(variant: str):
    """Pairs sent to each expert and pairs dropped, counted token by token, against the model's own
    statistics; logits are not touched by looking."""
    model, params = tiny(variant)

    @jax.jit
    def both(p):
        plain = model.apply({"params": p}, IMAGES, mask=MASK, train=False)
        return plain, token_routing(model, p, IMAGES, MASK)

    (logits, aux), (same, routing) = both(params)
    np.testing.assert_allclose(same, logits, atol=1e-5)
    blocks = routed_blocks(model)
    operations = len(aux["load"])  # one, where all blocks follow the first one's routing
    for position in range(len(blocks)):
        load, dropped = np.zeros(4, int), 0
        for b in range(7):  # the last image is padding
            for t in range(routing.expert_index.shape[2]):
                for k in range(2):
                    load[routing.expert_index[position, b, t, k]] += 1
                    dropped += bool(routing.dropped[position, b, t, k])
        operation = min(position, operations - 1)
        np.testing.assert_array_equal(load, aux["load"][operation])
        assert dropped == aux["dropped"][operation] > 0


def test_which_blocks_route():
    def blocks_of(variant: str) -> tuple[int, ...]:
        return routed_blocks(build_model(vision_model(*parse_variant(variant)), 10))

    assert blocks_of("widenet_tiny") == (0, 1, 2)
    assert blocks_of("vit_moe_tiny,moe_blocks=every_2,depth=4") == (1, 3)
    with pytest.raises(BadInputError, match="routes nothing"):
        blocks_of("vit_tiny")


def test_one_image_is_a_group_of_its_own(digits_run):
    trained = open_trained(str(digits_run))
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    routing = image_router(trained)(image)
    look = jax.jit(lambda x: token_routing(trained.model, trained.params, x)[1])
    expected = look(to_unit_range(np.stack([image] * 4)))  # in a group of four
    assert routing.expert_index.shape == (2, 1, 16, 2)
    # In the first block nothing was dropped before; later ones see what the group's capacity did.
    np.testing.assert_array_equal(routing.expert_index[0], expected.expert_index[0, :1])
    assert routing.dropped.sum() == expected_drops(routing.expert_index)


def expected_drops(expert_index: np.ndarray) -> int:
    """C = 1, K = 2, E = 4: an expert keeps 16 * 2 / 4 = 8 choices of one image's 32 in a block."""
    sent = [[(block == e).sum() for e in range(4)] for block in expert_index]
    return sum(max(0, count - 8) for block in sent for count in block)


def test_tokens_on_the_grid_of_patches(digits_run):
    trained = open_trained(str(digits_run))
    grid = patch_grid(trained, np.arange(16))
    np.testing.assert_array_equal(grid[1], [4, 5, 6, 7])
    with_cls = trained.config.copy_and_resolve_references()
    with_cls.model.cls_token = "zero"
    grid = patch_grid(type(trained)(**vars(trained) | {"config": with_cls}), np.arange(17))
    np.testing.assert_array_equal(grid[0], [1, 2, 3, 4])
