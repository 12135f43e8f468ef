"""Active units of dense layers: counted by hand, and against a loop over tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from configs.variants import model_section
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.ops.analysis.captured import active_counts, dense_blocks
from widenet_jax.ops.analysis.usage import ActiveUnits
from widenet_jax.param_names import ENCODER

IMAGES = {"image": jax.random.normal(jax.random.key(1), (2, 8, 8, 1))}


def relu_model(variant: str) -> nn.Module:
    return build_model(
        model_section(variant) | {"activation": "relu", "dtype": "float32"}, num_classes=10
    )


def test_by_hand():
    """F = 3; of ten tokens of block 0 one has no active unit, five have 1, four have 3."""
    active = ActiveUnits((0, 2), np.array([[1, 5, 0, 4], [0, 0, 10, 0]]))
    assert active.width == 3
    np.testing.assert_allclose(active.mean, [1.7, 2.0])
    np.testing.assert_array_equal(active.quantile(0.1), [0, 2])
    np.testing.assert_array_equal(active.quantile(0.5), [1, 2])
    np.testing.assert_array_equal(active.quantile(0.9), [3, 2])
    assert active.as_json()["mean"] == [1.7, 2.0]


def test_against_a_loop_over_tokens():
    """Each unit is computed from the norm's output, which Linen captures."""
    model = relu_model("vit_tiny,depth=2")
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(model, IMAGES)
    params = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.3), shapes)
    outputs, counts, width = active_counts(model.clone(unroll=False), params, IMAGES)
    captured = model.apply(
        {"params": params}, IMAGES, train=False, capture_intermediates=True,
        mutable=["intermediates"],
    )  # fmt: skip
    np.testing.assert_allclose(outputs, captured[0][0], atol=1e-5)
    layers, own = captured[1]["intermediates"][ENCODER], params[ENCODER]
    assert counts.shape[:2] == (2, 2) and width == 64
    for block in range(2):
        (x,) = layers[f"block_{block:02d}_norm_ffn"]["__call__"]
        layer = own[f"block_{block:02d}_mlp"]
        for b in range(2):
            for t in range(x.shape[1]):
                z = np.asarray(x)[b, t] @ layer["wi"]["kernel"] + layer["wi"]["bias"]
                assert counts[block, b, t] == sum(unit > 0 for unit in z)
    assert 0 < jnp.min(counts) < jnp.max(counts) < 64


@pytest.mark.slow
def test_which_blocks_count():
    """The first of two blocks of the last model is dense, the second keeps its largest units."""
    assert dense_blocks(relu_model("vit_tiny,depth=2")) == (0, 1)
    assert dense_blocks(relu_model("vit_moe_tiny,depth=3")) == (0, 1)
    assert dense_blocks(build_model(model_section("vit_tiny"), num_classes=10)) == ()  # GELU
    model = relu_model("vit_tiny,depth=2,ffn=top_k,ffn_blocks=last_1")
    params = jax.tree.map(lambda s: jnp.zeros(s.shape), parameter_shapes(model, IMAGES))
    assert dense_blocks(model) == (0,) and len(active_counts(model, params, IMAGES)[1]) == 1
