"""Vision models as a whole."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init, initial
from untrained import image_spec

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.nn.mlp import ACTIVATIONS
from widenet_jax.nn.moe.dispatch import dispatch_methods, dispatch_text
from widenet_jax.nn.stack_settings import parse_model

IMAGES = jax.random.normal(jax.random.key(1), (4, 8, 8, 1))


def tiny(variant: str = "widenet_tiny", **changes):
    fields = model_section(variant) | {"dtype": "float32"} | changes
    return build_model(fields, num_classes=10)


def logits(model, params: dict, images: jax.Array, **inputs) -> jax.Array:
    return apply(model, params, {"image": images, **inputs}, train=False)[0]


def test_padding_images_change_nothing_for_the_real_ones():
    """A short last batch is padded with masked images; experts with and without spare capacity."""
    model = tiny()
    params = init(model, {"image": IMAGES})
    mask = jnp.array([True, True, True, False])
    noisy = IMAGES.at[3].set(100.0)
    real = logits(model, params, IMAGES, mask=mask)[:3]
    np.testing.assert_allclose(real, logits(model, params, noisy, mask=mask)[:3], atol=1e-5)


def test_authors_code_has_one_token_more_and_no_parameter_for_it():
    """A constant zero CLS token under average pooling: 17 position rows for 16 patches."""
    shapes = parameter_shapes(tiny("widenet_tiny,preset=authors_code"), image_spec((8, 8, 1)))
    assert shapes["position"]["position_embedding"].shape == (1, 17, 64)
    assert "cls_token" not in shapes["position"]
    ours = parameter_shapes(tiny(), image_spec((8, 8, 1)))
    assert ours["position"]["position_embedding"].shape == (1, 16, 64)


def test_shapes_of_equal_layers_are_traced_once(monkeypatch):
    """They are the shapes of a whole trace; only the first of three feed-forwards runs."""
    ran = []
    monkeypatch.setitem(ACTIVATIONS, "noted", lambda x: ran.append(x.shape) or x)
    model, spec = tiny("vit_tiny", activation="noted"), image_spec((8, 8, 1))
    shapes = parameter_shapes(model, spec)
    assert ran == [(1, 17, 64)]
    whole = jax.eval_shape(partial(model.init, train=False), jax.random.key(0), spec)["params"]
    assert shapes == whole and len(ran) == 4


def test_shapes_of_layers_with_routers_apart_are_traced_once(monkeypatch):
    """Five blocks share experts, not routers: the first block runs, and one of those after it."""
    ran = []
    monkeypatch.setitem(ACTIVATIONS, "noted", lambda x: ran.append(x.shape) or x)
    fields = model_section("widenet_tiny")
    loop = {"core": ((1, 5),), "tie": {"attention": "none", "experts": "loops", "router": "none"}}
    fields |= {"loop": loop, "moe": fields["moe"] | {"activation": "noted"}}
    model, spec = build_model(fields, num_classes=10), image_spec((8, 8, 1))
    shapes = parameter_shapes(model, spec)
    assert len(ran) == 2
    whole = jax.eval_shape(partial(model.init, train=False), jax.random.key(0), spec)["params"]
    assert shapes == whole and len(ran) == 7
    assert sum(name.endswith("_router") for name in shapes["encoder"]) == 5


def test_vit_reads_its_cls_token():
    """Moving one patch and its position to another place changes nothing: attention is a set."""
    model = tiny("vit_tiny")
    params = init(model, {"image": IMAGES})
    swapped = IMAGES.at[:, :2, :2].set(IMAGES[:, 6:, 6:]).at[:, 6:, 6:].set(IMAGES[:, :2, :2])
    rows = params["position"]["position_embedding"]
    rows = rows.at[:, 1].set(rows[:, 16]).at[:, 16].set(rows[:, 1])  # row 0 is the CLS token's
    moved = params | {"position": params["position"] | {"position_embedding": rows}}
    np.testing.assert_allclose(
        logits(model, params, IMAGES), logits(model, moved, swapped), atol=1e-5
    )


def test_dispatch_is_said_for_training_and_evaluation():
    """16 images of 196 tokens are a group of WideNet; in evaluation nothing is dropped."""

    def methods(variant: str) -> dict[str, str]:
        fields = model_section(variant)
        tokens = build_model(fields, num_classes=10).num_tokens(image_spec((224, 224, 3)))
        return dispatch_methods(parse_model(fields), tokens, platform="tpu")

    assert methods("widenet_b") == {"training": "gather", "evaluation": "ragged"}
    assert dispatch_text(methods("widenet_b")) == "gather in training, ragged in evaluation"
    assert methods("widenet_b,examples_per_group=1")["training"] == "einsum"
    assert methods("vit_b") == {}
    dense = model_section("widenet_b") | {"ffn": "mlp"}  # `moe` is unused
    assert dispatch_methods(parse_model(dense), 196, platform="tpu") == {}


def test_initial_kernels_are_glorot_per_expert():
    """Uniform in +-sqrt(6 / (D + F)): bounds of one expert's kernel, and its variance."""
    model = tiny()
    experts = initial(model, {"image": IMAGES})["encoder"]["moe"]["experts"]
    kernel = np.asarray(experts["wi"]["kernel"])  # [4, 64, 64]
    bound = np.sqrt(6 / (64 + 64))
    assert 0.99 * bound < np.abs(kernel).max() <= bound
    np.testing.assert_allclose(kernel.var(axis=(1, 2)), bound**2 / 3, rtol=0.05)
    assert len({k.tobytes() for k in kernel}) == 4  # each expert has a separate draw
    np.testing.assert_allclose(np.asarray(experts["wi"]["bias"]).std(), 1e-6, rtol=0.2)


def test_positions_begin_at_a_fiftieth():
    """N(0, 0.02), as ViT: of 1,024 values the deviation is off by 2%."""
    positions = initial(tiny(), {"image": IMAGES})["position"]["position_embedding"]
    np.testing.assert_allclose(np.asarray(positions).std(), 0.02, rtol=0.1)


def test_embedded_tokens_are_dropped():
    """Between blocks without kernels, which add nothing, only the embedding's dropout is left."""
    model = tiny("vit_tiny", dropout=0.5)
    params, rngs = init(model, {"image": IMAGES}), {"dropout": jax.random.key(0)}
    params["encoder"] = jax.tree.map(lambda x: x * (x.ndim == 1), params["encoder"])
    alike = {"image": jnp.broadcast_to(IMAGES[0], IMAGES.shape)}
    found = apply(model, params, alike, train=True, rngs=rngs)[0]
    assert len(np.unique(found, axis=0)) == len(IMAGES)
    found = apply(model, params, alike, train=False)[0]
    assert len(np.unique(found, axis=0)) == 1


@pytest.mark.slow
def test_epsilon_activation_and_initialiser_reach_every_part():
    """Each changes the output; with `truncated_normal` no kernel exceeds two deviations of 0.02."""
    model = tiny("vit_moe_tiny", kernel_init="truncated_normal")
    params = initial(model, {"image": IMAGES})
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(params)):
        if "kernel" in jax.tree_util.keystr(path):
            largest = float(np.abs(leaf).max())
            assert 0.03 < largest < 0.0401, jax.tree_util.keystr(path)
    base = logits(model, params, IMAGES)
    for change in ({"norm_epsilon": 0.1}, {"activation": "relu"}, {"activation": "gelu"}):
        assert (logits(model.clone(**change), params, IMAGES) != base).any(), change


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "resnet"}, "--config.model.name=vision_transformer"),
        ({"dtype": "float16"}, "config.model.dtype='float16'"),
        ({"pool": "token"}, "config.model.cls_token=learned"),
        ({"attention": {"name": "full", "num_heads": 7}}, "must divide"),
        (
            {"loops": 3},
            "config.model.loops is unknown; did you mean loop? config.model may have loop",
        ),
        ({"moe": {"mlp_dim": 64, "blocks": "all"}}, "config.model.moe.blocks is unknown"),
    ],
)
def test_mistakes(changes: dict, message: str):
    with pytest.raises(BadInputError) as caught:
        tiny(**changes)
    assert message in str(caught.value)
