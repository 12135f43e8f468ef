"""Frozen parameters, and learning rates by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.config.files import configs_module
from widenet_jax.errors import BadInputError
from widenet_jax.optim.build import (
    build_optimizer,
    check_freeze,
    count_frozen,
    layer_factors,
    stop_frozen,
)

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
OPTIMIZER = {name: row[0] for name, row in configs_module("defaults").RUN["optimizer"].items()} | {
    "name": "adamw", "schedule": "constant", "learning_rate": 0.1, "warmup": "0 steps",
    "weight_decay": 0.1, "grad_clip_norm": 1.0, "exclude_norm_and_bias": False,
}  # fmt: skip


def updates(**changes: object) -> tuple[dict, dict]:
    """Returns the updates of a step whose gradients are all equal, and the optimizer's state."""
    tx, _ = build_optimizer(
        {**OPTIMIZER, **changes}, params_or_shapes=PARAMS, depth=2, total_steps=9, batch_size=1,
        num_examples=9,
    )  # fmt: skip
    gradients = jax.tree.map(jnp.ones_like, PARAMS)
    return tx.update(gradients, tx.init(PARAMS), PARAMS)


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


def test_layer_decay_scales_the_updates():
    plain, decayed = updates()[0], updates(layer_decay=0.5)[0]
    ratio = jax.tree.map(lambda a, b: a / b, decayed, plain)
    factors = layer_factors(PARAMS, 0.5, depth=2)
    expected = jax.tree.map(lambda p, f: np.full(p.shape, f), PARAMS, factors)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ratio, expected)
    for bad in (0.0, 1.5):
        with pytest.raises(BadInputError, match=r"layer_decay=.* must be above 0"):
            updates(layer_decay=bad)


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
