"""Frozen parameters, and learning rates by layer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optimizers import build

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.nn.loop import places_of, steps_of
from widenet_jax.nn.loop_settings import LoopSettings, Tie
from widenet_jax.optim.build import (
    check_freeze,
    count_frozen,
    places_in,
    stop_frozen,
    update_factors,
)
from widenet_jax.param_names import path_names

PARAMS = {
    "embed": {"kernel": jnp.ones(3)},
    "encoder": {
        "attention": {"kernel": jnp.ones(2)},  # shared by both blocks
        "block_00_norm_ffn": {"scale": jnp.ones(2)},
        "block_01_norm_ffn": {"scale": jnp.ones(2)},
        "norm_out": {"scale": jnp.ones(2)},
    },
    "head": {"kernel": jnp.ones(2)},
}
FIELDS = {"name": "adamw", "weight_decay": 0.1, "grad_clip_norm": 1.0}


def updates(**changes: object) -> tuple[dict, dict]:
    """Returns the updates of a step whose gradients are all equal, and the optimizer's state."""
    tx, _ = build(PARAMS, **FIELDS | changes)
    gradients = jax.tree.map(jnp.ones_like, PARAMS)
    return tx.update(gradients, tx.init(PARAMS), PARAMS)


def layer_factors(params: dict, decay: float, **blocks: object) -> dict:
    section = {"layer_decay": decay, "tied_rate": "none"}
    return update_factors(params, section, **blocks)


def test_layer_factors_by_hand():
    factors = layer_factors(PARAMS, 0.5, depth=2)
    assert factors["head"]["kernel"] == factors["encoder"]["norm_out"]["scale"] == 1
    assert factors["encoder"]["block_01_norm_ffn"]["scale"] == 0.5
    assert factors["encoder"]["block_00_norm_ffn"]["scale"] == 0.25
    assert factors["encoder"]["attention"]["kernel"] == pytest.approx(0.5**1.5)
    assert factors["embed"]["kernel"] == 0.125


def test_layer_factors_of_a_model_that_shares_everything():
    """ALBERT's 12 blocks: no name counts them. Exponents 13 and, the mean of 1 to 12, 6.5."""
    shared = {name: jnp.ones(2) for name in ("attention", "mlp", "norm_attention", "norm_ffn")}
    params = {"embeddings": jnp.ones(2), "projection": jnp.ones(2), "encoder": shared,
              "pooler": jnp.ones(2)}  # fmt: skip
    factors = layer_factors(params, 0.75, depth=12)
    assert factors["embeddings"] == factors["projection"] == 0.75**13
    assert set(factors["encoder"].values()) == {0.75**6.5}
    assert factors["pooler"] == 1


def test_looped_layers_have_the_mean_exponent_of_their_places():
    """1+2x2+1: the layers of the core run at 1 and 3, and at 2 and 4, of the 6 blocks."""
    loop = LoopSettings(prelude=1, core=((2, 2),), coda=1)
    places = places_of(steps_of(loop, ["moe"] * 6))
    encoder = {f"{kind}_attention": jnp.ones(1) for kind in ("block_00", "core_0_0", "core_0_1")}
    encoder |= {"block_03_norm_ffn": jnp.ones(1), "block_05_moe": {"router": jnp.ones(1)}}
    adapters = {"adapter": {"core_0_1_attention": jnp.ones(1), "block_04_attention": jnp.ones(1)}}
    factors = layer_factors({"encoder": encoder}, 0.5, depth=6, places=places)["encoder"]
    exponents = {name: -np.log2(jax.tree.leaves(f)[0]) for name, f in factors.items()}
    assert exponents == {
        "block_00_attention": 6, "core_0_0_attention": 4, "core_0_1_attention": 3,
        "block_03_norm_ffn": 3, "block_05_moe": 1,
    }  # fmt: skip
    of_adapters = layer_factors({"encoder": adapters}, 0.5, depth=6, places=places)["encoder"]
    assert of_adapters["adapter"] == {"core_0_1_attention": 0.5**3, "block_04_attention": 0.5**2}


def test_a_router_runs_where_it_routes_and_what_begins_a_loop_in_each():
    """AAAA with a routing for each two blocks."""
    fields = {"inject": "linear", "embed": True, "state_norm": True}
    loop = LoopSettings(core=((1, 4),), tie=Tie(norms="loops"), **fields)
    places = places_of(steps_of(loop, ["moe"] * 4, 2))
    assert places == {
        "attention": [0, 1, 2, 3], "norm_attention": [0, 1, 2, 3], "norm_ffn": [0, 1, 2, 3],
        "moe": [0, 1, 2, 3], "moe/router": [0, 2], "core_0_start/inject": [0, 1, 2, 3],
        "core_0_norm_state": [0, 1, 2, 3],
    }  # fmt: skip
    apart = dataclasses.replace(loop, tie=Tie(router="none"))
    assert places_of(steps_of(apart, ["moe"] * 4, 2))["block_02_router"] == [2]
    first = places_of(steps_of(dataclasses.replace(loop, routing="first"), ["moe"] * 4))
    assert (first["moe"], first["moe/router"]) == ([0, 1, 2, 3], [0])
    knowing = places_of(steps_of(dataclasses.replace(loop, condition="index"), ["moe"] * 4))
    assert knowing["norm_ffn_condition/modulation"] == [0, 1, 2, 3]


@pytest.mark.slow
def test_every_parameter_of_a_looped_model_has_places():
    """But the vectors of each loop, which run once, and the last norm."""
    section = model_section("widenet_tiny,loop=1+2x2+1")
    section["loop"] |= {"inject": "linear", "embed": True, "state_norm": True}
    section["loop"] |= {"condition": "index_state", "tie": {"router": "none", "norms": "loops"}}
    model = build_model(section | {"norm_position": "sandwich"}, num_classes=10)
    image = {"image": jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)}
    places = places_of(model.steps())
    for path in path_names({"encoder": parameter_shapes(model, image)["encoder"]}):
        without = path.endswith("/embedding") or "/norm_out/" in path
        assert bool(places_in(places, path)) != without, path
        if "block_" in path:
            assert len(places_in(places, path)) == 1, path
        elif not without:
            assert len(places_in(places, path)) in (2, 4), path


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("adamw", "lamb", "muon")]


@pytest.mark.parametrize("name", ["sgd", *SLOW])
def test_updates_of_tied_parameters_are_divided_by_their_visits(name: str):
    """Weight decay included; beside them layer decay, and the balancing bias at its own rate."""
    places = {"attention": [0, 1], "attention/router": [0, 1, 2, 3]}
    encoder = {"attention": {"kernel": jnp.ones((2, 2)), "router": {"balance_bias": jnp.ones(2)}}}
    params = {"encoder": encoder | {"block_01_norm_ffn": {"scale": jnp.ones(2)}}}
    gradients = jax.tree.map(jnp.ones_like, params)

    def move(**changes: object) -> dict:
        fields = FIELDS | {"name": name, "sign_rate": 0.25, "places": places} | changes
        tx, _ = build(params, **fields)
        return tx.update(gradients, tx.init(params), params)[0]["encoder"]

    plain = move()
    for rate, divisor in (("visits", 2), ("sqrt", np.sqrt(2))):
        tied = move(tied_rate=rate, layer_decay=0.5)
        kernels = [found["attention"]["kernel"] for found in (tied, plain)]
        np.testing.assert_allclose(kernels[0], kernels[1] / divisor * 0.5**1.5, rtol=1e-5)
        scales = [found["block_01_norm_ffn"]["scale"] for found in (tied, plain)]
        np.testing.assert_allclose(scales[0], scales[1] / 2, rtol=1e-5)
        np.testing.assert_array_equal(tied["attention"]["router"]["balance_bias"], -0.25)


def test_layer_decay_scales_the_updates():
    plain, decayed = updates()[0], updates(layer_decay=0.5)[0]
    ratio = jax.tree.map(lambda a, b: a / b, decayed, plain)
    factors = layer_factors(PARAMS, 0.5, depth=2)
    expected = jax.tree.map(lambda p, f: np.full(p.shape, f), PARAMS, factors)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ratio, expected)


def test_a_frozen_backbone_has_neither_updates_nor_moments():
    frozen, state = updates(freeze="backbone")
    moved = [jax.tree_util.keystr(k) for k, x in jax.tree_util.tree_leaves_with_path(frozen)
             if x.any()]  # fmt: skip
    assert moved == ["['head']['kernel']"]
    assert max(x.size for x in jax.tree.leaves(state)) == 2
    every = sum(x.size for x in jax.tree.leaves(PARAMS))
    assert count_frozen(PARAMS, "backbone") == every - 2 and count_frozen(PARAMS, "none") == 0


def test_frozen_parameters_have_no_gradient():
    loss = lambda params: sum(x.sum() for x in jax.tree.leaves(stop_frozen(params, "backbone")))  # noqa: E731
    found = jax.grad(loss)(PARAMS)
    assert found["head"]["kernel"].tolist() == [1, 1]
    assert not any(x.any() for x in jax.tree.leaves((found["embed"], found["encoder"])))


def test_freezing_needs_a_trained_model():
    with pytest.raises(BadInputError, match="would freeze random parameters"):
        check_freeze({"freeze": "backbone"}, PARAMS, "")
    with pytest.raises(BadInputError, match="freeze='backbones' is unknown"):
        check_freeze({"freeze": "backbones"}, PARAMS, "runs/mine")
    check_freeze({"freeze": "backbone"}, PARAMS, "runs/mine")
    check_freeze({"freeze": "none"}, PARAMS, "")
