"""Experts that choose tokens, and soft mixtures, equal loops over tokens; padding is left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from gradients import assert_gradients
from moe_by_loops import ffn, softmax

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.build import build_model
from widenet_jax.nn.moe.dispatch import ANYWHERE
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.soft import SoftMoe

B, T, D, F, E = 4, 5, 3, 4, 3
MASK = np.ones((B, T), bool)
MASK[0, 3:] = MASK[2] = False  # padding within a group, and an example of padding alone
FIELDS = {"mlp_dim": F, "num_experts": E, "num_selected_experts": 2, "examples_per_group": 2}
FIELDS |= {"capacity_factor": 0.5, "capacity_factor_eval": 0.5, "activation": "relu"}
FIELDS |= {"router": {"name": "expert_choice"}}


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def experts_choose(params: dict, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns outputs [B, T, D], and how many experts took each token."""
    y, taken = np.zeros_like(x), np.zeros((B, T), int)
    for pair in ((0, 1), (2, 3)):
        real = [(b, t) for b in pair for t in range(T) if MASK[b, t]]
        limit = int(np.ceil(0.5 * 2 * len(real) / E))  # c = 1
        scores = {at: softmax(x[at] @ params["router"]["kernel"]) for at in real}
        for e in range(E):
            for at in sorted(real, key=lambda at, e=e: -scores[at][e])[:limit]:
                y[at] += scores[at][e] * ffn(x[at], params["experts"], relu, e)
                taken[at] += 1
    return y, taken


def soft(params: dict, x: np.ndarray) -> np.ndarray:
    y, p = np.zeros_like(x), params["mu"].shape[-1]
    unit = lambda v: v / np.sqrt(v @ v + 1e-6)  # noqa: E731
    for b in range(B):
        slots = [(e, i) for e in range(E) for i in range(p)]
        logits = np.array([
            [params["scale"] * unit(x[b, t]) @ unit(params["mu"][:, e, i]) for e, i in slots]
            for t in range(T)
        ])  # fmt: skip
        real = [t for t in range(T) if MASK[b, t]]
        for s, (e, _) in enumerate(slots):
            weights = softmax(logits[real, s]) if real else []
            mean = sum(w * x[b, t] for w, t in zip(weights, real, strict=True))
            output = ffn(mean, params["experts"], relu, e) if real else 0
            for t in real:
                y[b, t] += softmax(logits[t])[s] * output
    return y


def check(layer: MoeLayer | SoftMoe, by_loops) -> tuple:
    """Compares real tokens' outputs and all gradients; returns parameters and our output."""
    rng = np.random.default_rng(2)
    x, cotangent = np.float32(rng.normal(size=(2, B, T, D)))
    cotangent = cotangent * MASK[..., None]
    params = init(layer, jnp.asarray(x))

    def loss(params: dict, x: jax.Array):
        out = layer.apply({"params": params}, x, mask=jnp.asarray(MASK), train=True)
        return (out.y * cotangent).sum() + out.aux.get("loss", 0), out

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, out), gradients = run(params, jnp.asarray(x))
    y = by_loops(jax.tree.map(np.float64, params), x)
    np.testing.assert_allclose(out.y[MASK], y[MASK], atol=1e-5)
    assert np.isfinite(out.y).all()
    assert_gradients(lambda a: (by_loops(*a) * cotangent).sum(), (params, x), gradients)
    return params, x, out


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ANYWHERE if name != "einsum"]


@pytest.mark.parametrize("dispatch", ["einsum", *OTHERS])
def test_experts_choose_their_best_tokens(dispatch: str):
    """ceil(n/3) of the 8 and the 5 real tokens for each expert, c = 1: 3 and 2."""
    layer = MoeLayer(**FIELDS, dispatch=dispatch)
    params, x, out = check(layer, lambda *a: experts_choose(*a)[0])
    _, taken = experts_choose(jax.tree.map(np.float64, params), x)
    sums = out.aux["sums"]
    assert sums["load"].tolist() == [3 + 2] * E and sums["dropped"] == 0 and sums["tokens"] == 13
    assert sums["no_expert"] == (taken[MASK] == 0).sum() > 0
    found = (np.asarray(out.routing.expert_index) < E).sum(-1).reshape(B, T)
    np.testing.assert_array_equal(found, taken)
    metrics = layer.summarize({name: np.asarray(value)[None] for name, value in sums.items()})
    np.testing.assert_allclose(metrics["no_expert_rate"], (taken[MASK] == 0).mean())
    assert layer.forward_flops(B, T, D) == B * T * 4 * D * F * 2


def test_soft_experts_see_means_of_an_example_s_tokens():
    """p = round(c T / E) = round(1.2 * 5 / 3) = 2 slots for each expert."""
    layer = SoftMoe(F, E, capacity_factor=1.2, activation="relu")
    params, _, _ = check(layer, soft)
    assert params["mu"].shape == (D, E, 2) and params["scale"] == 1
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert numbers == D * E * 2 + 1 + E * (2 * D * F + F + D)
    slots = E * 2
    assert layer.forward_flops(B, T, D) == B * (slots * 4 * D * F + 3 * 2 * T * D * slots)


@pytest.mark.slow
def test_a_longer_example_has_as_many_slots():
    """Twice the same tokens: each mean is the same."""
    layer, rng = SoftMoe(F, E, capacity_factor=1.2), np.random.default_rng(0)
    x = jnp.float32(rng.normal(size=(B, T, D)))
    params, longer = init(layer, x), jnp.concatenate([x, x], axis=1)
    y = apply(layer, params, longer, train=False).y[:, :T]
    np.testing.assert_allclose(y, apply(layer, params, x, train=False).y, atol=1e-6)


@pytest.mark.parametrize("option", ["ffn=moe,router=expert_choice", "ffn=soft_moe"])
def test_a_language_model_refuses_what_mixes_unless_asked_for(option: str):
    section = model_section(f"tiny,{option}")
    with pytest.raises(BadInputError, match=r"set config\.model\.allow_mixing=true"):
        build_model(section, vocab_size=9)
    assert build_model(section | {"allow_mixing": True}, vocab_size=9).allow_mixing
