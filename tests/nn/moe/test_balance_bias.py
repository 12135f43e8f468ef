"""Balancing biases: they choose, do not weigh, and move by the sign of their count of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import init
from gradients import assert_gradients
from moe_by_loops import ffn, sigmoid, softmax

from widenet_jax.config.imports import configs_module
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.loop_settings import parse_loop
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.optim.build import build_optimizer, gradient_norm

B, T, D, F, E, K = 2, 5, 3, 4, 4, 2
FIELDS = {"mlp_dim": F, "num_experts": E, "num_selected_experts": K, "examples_per_group": 1}
FIELDS |= {"capacity_factor": 0.5, "capacity_factor_eval": 0.5, "use_bias": False}
FIELDS |= {"activation": "silu", "losses": {"entropy": 0.1, "over": "batch"}}
MASK = np.arange(B * T).reshape(B, T) != 1  # one token is padding
SCORES = {"sigmoid": sigmoid, "softmax": softmax}


def by_loops(params: dict, x: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns outputs, (token, choice) pairs of each expert before drops, and the entropy loss."""
    y, counts, p = np.zeros_like(x), np.zeros(E, int), np.zeros(E)
    for b in range(B):
        filled, limit = np.zeros(E, int), np.ceil(0.5 * K * MASK[b].sum() / E)
        for t in range(T):
            if not MASK[b, t]:
                continue
            logits = x[b, t] @ params["router"]["kernel"]
            s = SCORES[name](logits)
            p += softmax(logits) / MASK.sum()
            for e in np.argsort(-(s + params["router"]["balance_bias"]))[:K]:
                counts[e] += 1
                filled[e] += 1
                if filled[e] <= limit:
                    y[b, t] += s[e] * ffn(x[b, t], params["experts"], lambda h: h * sigmoid(h), e)
    return y, counts, (p * np.log(p)).sum()


@pytest.mark.parametrize("name", ["sigmoid", pytest.param("softmax", marks=pytest.mark.slow)])
def test_a_bias_chooses_and_its_gradient_counts(name: str):
    layer = MoeLayer(**FIELDS, router={"name": name, "bias_balancing": True})
    rng = np.random.default_rng(0)
    x, cotangent = np.float32(rng.normal(size=(2, B, T, D)))
    params = init(layer, jnp.asarray(x))
    assert params["router"]["balance_bias"].shape == (E,)
    params["router"]["balance_bias"] = jnp.array([0.0, 0.6, -0.3, 0.1])

    def loss(params: dict, x: jax.Array):
        out = layer.apply({"params": params}, x, mask=jnp.asarray(MASK), train=True)
        return (out.y * cotangent).sum() + out.aux["loss"], out

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (value, out), gradients = run(params, jnp.asarray(x))
    wide = jax.tree.map(np.float64, params)
    y, counts, entropy = by_loops(wide, x, name)
    plain = by_loops(wide | {"router": wide["router"] | {"balance_bias": np.zeros(E)}}, x, name)
    assert out.aux["sums"]["dropped"] > 0 and (counts != plain[1]).any()
    np.testing.assert_allclose(out.y, y, atol=1e-5)
    np.testing.assert_allclose(value, (y * cotangent).sum() + 0.1 * entropy, rtol=1e-5)
    np.testing.assert_array_equal(out.aux["sums"]["load"], counts)
    found = gradients[0]["router"].pop("balance_bias")
    np.testing.assert_array_equal(found, E * counts - counts.sum())

    def reference(tree: tuple) -> float:
        router = tree[0]["router"] | {"balance_bias": wide["router"]["balance_bias"]}
        y, _, entropy = by_loops(tree[0] | {"router": router}, tree[1], name)
        return (y * cotangent).sum() + 0.1 * entropy

    del params["router"]["balance_bias"]
    assert_gradients(reference, (params, x), gradients)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"unroll": False}, {"remat": "block"}])
@pytest.mark.parametrize("tie", ["experts", "none"])
def test_a_tied_bias_has_the_counts_of_all_loops(tie: str, how: dict):
    loop = {"core": ((1, 3),), "tie": {"router": tie}}
    moe = FIELDS | {"losses": {"over": "group"}}
    moe |= {"router": {"name": "sigmoid", "bias_balancing": True}}
    model = Blocks(loop=parse_loop(loop), attention={"name": "full", "num_heads": 1}, ffn="moe",
                   feed_forwards={"moe": moe}, **how)  # fmt: skip
    x = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), jnp.float32)
    params = init(model.clone(unroll=True, remat="none"), x)

    def loss(params: dict) -> tuple:
        _, aux, _ = model.apply({"params": params}, x, train=True)
        return aux["loss"].sum(), aux["sums"]["load"]

    (value, load), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    expected = E * load - load.sum(axis=1, keepdims=True)  # of each loop
    assert value == 0 and load.shape == (3, E)
    if tie == "experts":
        found = gradients["moe"]["router"]["balance_bias"]
        np.testing.assert_array_equal(found, expected.sum(axis=0))
    else:
        own = [gradients[f"block_{k:02d}_router"]["balance_bias"] for k in range(3)]
        np.testing.assert_array_equal(own, expected)


USUAL = {name: row[0] for name, row in configs_module("defaults").RUN["optimizer"].items()}
PARAMS = {"moe": {"router": {"kernel": jnp.ones((2, 3)), "balance_bias": jnp.zeros(3)}}}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("adamw", "lamb")]


@pytest.mark.parametrize("name", ["sgd", *SLOW])
def test_a_bias_moves_by_the_sign_alone(name: str):
    """No warm-up, no decay, no part in the clipped norm, which is 2: the others move as without."""
    fields = USUAL | {"name": name, "schedule": "constant", "warmup": "5 steps", "sign_rate": 0.25}
    fields |= {"weight_decay": 0.5, "exclude_norm_and_bias": False, "grad_clip_norm": 1.0}
    fields |= {"layer_decay": 0.5, "ema_decay": 0.9}
    sizes = {"depth": 2, "total_steps": 9, "batch_size": 1, "num_examples": 9}

    def train(params: dict, gradients: dict) -> tuple:
        tx, _ = build_optimizer(fields, params_or_shapes=params, **sizes)
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
        return params, state.average

    kernel = jnp.full((2, 3), np.sqrt(4 / 6))
    gradients = {"moe": {"router": {"kernel": kernel, "balance_bias": jnp.array([9e3, 0.0, -2.0])}}}
    params, average = train(PARAMS, gradients)
    np.testing.assert_array_equal(params["moe"]["router"].pop("balance_bias"), [-0.5, 0, 0.5])
    np.testing.assert_array_equal(average["moe"]["router"].pop("balance_bias"), [-0.5, 0, 0.5])
    np.testing.assert_allclose(gradient_norm(gradients), 2, rtol=1e-6)
    frozen, _ = build_optimizer(fields | {"freeze": "backbone"}, params_or_shapes=PARAMS, **sizes)
    updates, _ = frozen.update(gradients, frozen.init(PARAMS), PARAMS)
    assert not any(leaf.any() for leaf in jax.tree.leaves(updates))
    alone = train({"moe": {"router": {"kernel": jnp.ones((2, 3))}}},
                  {"moe": {"router": {"kernel": kernel}}})  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, (params, average), alone)
