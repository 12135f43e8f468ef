"""Balance losses by hand and against loops in float64; over groups and over the batch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from router_reference import differences

from widenet_jax.nn.moe.losses import LOSSES, balance_losses
from widenet_jax.nn.moe.routers.softmax import route_top_k
from widenet_jax.typing import Routing


def routing(logits: jax.Array, mask: jax.Array) -> Routing:
    return route_top_k(logits, mask, None, num_selected=1, noise_std=0.0)


# Group 0 sends both tokens to expert 0, group 1 to expert 1, each with probability 1.
SURE = 50.0 * jnp.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
ALL = jnp.ones((2, 2), bool)


@pytest.mark.parametrize(("over", "expected"), [("group", 2.0), ("batch", 1.0)])
def test_each_group_collapses_and_the_batch_is_even(over: str, expected: float):
    """E = 2: collapsed groups have loss 2 each; over all four tokens m = P = 1/2 gives 1."""
    settings = {"load_balance": 0.25, "over": over}
    losses, total = balance_losses(routing(SURE, ALL), ALL, settings)
    np.testing.assert_allclose(losses["load_balance"], expected, rtol=1e-6)
    np.testing.assert_allclose(total, 0.25 * expected, rtol=1e-6)


def test_router_logits_are_without_noise_and_gates_of_padding_zero():
    mask = jnp.array([[True, False]])
    logits = jnp.array([[[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]])
    key = jax.random.key(0)
    noisy = route_top_k(logits, mask, key, num_selected=2, noise_std=1.0)
    np.testing.assert_array_equal(noisy.router_logits, logits)
    assert (noisy.router_probs != jax.nn.softmax(logits)).all()
    np.testing.assert_array_equal(noisy.gate[0, 1], 0)


# --- Against loops in float64 ----------------------------------------------------------------

GROUPS, S, E, K, GROUPS_OF_EXPERTS = 50, 4, 4, 2, 2


def random_routing(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draws the arrays of a routing, with ties among the choices' experts and gates above 1."""
    logits = rng.integers(-2, 3, (GROUPS, S, E)).astype(float)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    order = rng.permuted(np.broadcast_to(np.arange(E), (GROUPS, S, E)), axis=-1)
    return {
        "expert_index": order[..., :K],
        "gate": rng.uniform(0.1, 1.5, (GROUPS, S, K)),
        "router_probs": probs,
        "router_logits": logits,
        "load_probability": rng.random((GROUPS, S, E)),
        "group_load_probability": rng.random((GROUPS, S, GROUPS_OF_EXPERTS)),
        "group_chosen": (rng.random((GROUPS, S, GROUPS_OF_EXPERTS)) < 0.6).astype(float),
    }


def squared_variation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values) / len(values) / (mean**2 + 1e-10)


def loop_load_balance(r: dict, tokens: list[int]) -> float:
    total = 0.0
    for e in range(E):
        share = sum(list(r["expert_index"][s]).count(e) for s in tokens) / (K * len(tokens))
        total += E * share * sum(r["router_probs"][s, e] for s in tokens) / len(tokens)
    return total


def loop_importance(r: dict, tokens: list[int]) -> float:
    sums = [0.0] * E
    for s in tokens:
        for expert, gate in zip(r["expert_index"][s], r["gate"][s], strict=True):
            sums[expert] += gate
    return squared_variation(sums)


def loop_first_choice(r: dict, tokens: list[int]) -> float:
    first = [sum(r["expert_index"][s, 0] == e for s in tokens) / len(tokens) for e in range(E)]
    mean = [sum(r["router_probs"][s, e] for s in tokens) / len(tokens) for e in range(E)]
    return E * sum(f * p for f, p in zip(first, mean, strict=True))


def loop_load(r: dict, tokens: list[int]) -> float:
    return squared_variation([sum(r["load_probability"][s, e] for s in tokens) for e in range(E)])


def loop_load_of_two_levels(r: dict, tokens: list[int]) -> float:
    """Sums over all tokens: P of an expert is 0 where its group is not chosen."""
    loads = []
    for e in range(E):
        group = e // (E // GROUPS_OF_EXPERTS)
        chose = sum(r["group_chosen"][s, group] for s in tokens)
        of_group = sum(r["group_load_probability"][s, group] for s in tokens)
        within = sum(r["load_probability"][s, e] for s in tokens)
        loads.append(of_group * within / max(chose, 1))
    return squared_variation(loads)


def loop_entropy(r: dict, tokens: list[int]) -> float:
    p = [0.0] * E
    for s in tokens:
        total = sum(math.exp(z) for z in r["router_logits"][s])
        for e in range(E):
            p[e] += math.exp(r["router_logits"][s, e]) / total / len(tokens)
    return sum(share * math.log(share) for share in p)


def loop_entropy_of_chosen(r: dict, tokens: list[int]) -> float:
    """The entropy of the positions: p of the best choice, of the second, ..."""
    p = [0.0] * K
    for s in tokens:
        exponentials = [math.exp(r["router_logits"][s, e]) for e in r["expert_index"][s]]
        for k in range(K):
            p[k] += exponentials[k] / sum(exponentials) / len(tokens)
    return sum(share * math.log(share) for share in p)


def loop_z(r: dict, tokens: list[int]) -> float:
    each = [math.log(sum(math.exp(z) for z in r["router_logits"][s])) ** 2 for s in tokens]
    return sum(each) / len(tokens)


# name -> the loss, its loop, and the arrays that have a gradient
LOOPS = {
    "load_balance": ("load_balance", loop_load_balance, ["router_probs"]),
    "switch": ("switch", lambda r, tokens: K * loop_load_balance(r, tokens), ["router_probs"]),
    "first_choice": ("first_choice", loop_first_choice, ["router_probs"]),
    "importance": ("importance", loop_importance, ["gate"]),
    "load": ("load", loop_load, ["load_probability"]),
    "load of two levels": (
        *("load", loop_load_of_two_levels),
        ["load_probability", "group_load_probability"],
    ),
    "entropy": ("entropy", loop_entropy, ["router_logits"]),
    "entropy_of_chosen": ("entropy_of_chosen", loop_entropy_of_chosen, ["router_logits"]),
    "z": ("z", loop_z, ["router_logits"]),
}


@pytest.mark.parametrize("name", LOOPS)
def test_equals_loops_over_tokens(name: str):
    """50 random groups with padding: losses, and gradients against central differences."""
    loss, loop, differentiable = LOOPS[name]
    rng = np.random.default_rng(3)
    drawn = random_routing(rng)
    if name == "load":
        del drawn["group_chosen"]
    mask = rng.random((GROUPS, S)) < 0.8
    mask[:, 0] = True
    cotangent = rng.normal(size=GROUPS)
    fields = ("expert_index", "gate", "router_probs", "router_logits")
    ours = {
        k: jnp.asarray(v, jnp.int32 if v.dtype == int else jnp.float32) for k, v in drawn.items()
    }

    @jax.jit
    def run(inputs: dict) -> tuple:
        arrays = ours | inputs
        extra = {key: array for key, array in arrays.items() if key not in fields}
        routing = Routing(**{key: arrays[key] for key in fields}, extra=extra)
        losses = LOSSES[loss](routing, jnp.asarray(mask))
        return (losses * jnp.float32(cotangent)).sum(), losses

    gradient, losses = jax.grad(run, has_aux=True)({key: ours[key] for key in differentiable})
    for g in range(GROUPS):
        group = {key: array[g] for key, array in drawn.items()}
        tokens = [s for s in range(S) if mask[g, s]]
        np.testing.assert_allclose(losses[g], loop(group, tokens), rtol=1e-4, atol=1e-6)
        for key in differentiable:

            def total(x: np.ndarray, key=key, g=g, group=group, tokens=tokens) -> float:
                return cotangent[g] * loop({**group, key: x}, tokens)

            expected = differences(total, group[key])
            np.testing.assert_allclose(gradient[key][g], expected, rtol=1e-3, atol=1e-5)


# --- By hand ---------------------------------------------------------------------------------


def gates_routing(gate: list, index: list, E: int, **arrays: jax.Array) -> Routing:
    zeros = jnp.zeros((1, len(gate), E))
    fields = {"router_probs": zeros + 1 / E, "router_logits": zeros, **arrays}
    index = jnp.array(index)[None, :, None]
    return Routing(expert_index=index, gate=jnp.float32(gate)[None, :, None], **fields)


def test_importance_and_its_gradient_by_hand():
    """Gates 1, 2 of expert 0 and 1 of expert 1: I = (3, 1), mean 2, variance 1, CV^2 = 1/4.

    dL/dI_j = 2 (I_j - mean) / (N mean^2) - 2 variance / (N mean^3), N = 2: for expert 0
    2/8 - 2/16 = 1/8, for expert 1 -2/8 - 2/16 = -3/8.
    """
    mask = jnp.ones((1, 3), bool)

    def loss(gate: jax.Array) -> jax.Array:
        return LOSSES["importance"](gates_routing(gate, [0, 0, 1], 2), mask)[0]

    value, gradient = jax.value_and_grad(loss)(jnp.array([1.0, 2.0, 1.0]))
    np.testing.assert_allclose(value, 1 / 4, rtol=1e-6)
    np.testing.assert_allclose(gradient, [1 / 8, 1 / 8, -3 / 8], rtol=1e-6)


def test_least_entropy_is_minus_log_of_the_experts():
    """Each token sure of another expert: p is even, -log 4. All sure of one: 0, the most."""
    sure = 50.0 * jnp.eye(4)[None]
    mask = jnp.ones((1, 4), bool)
    for logits, expected in ((sure, -math.log(4)), (sure[:, :1].repeat(4, 1), 0.0)):
        routed = gates_routing([1.0] * 4, [0] * 4, 4, router_logits=logits)
        np.testing.assert_allclose(LOSSES["entropy"](routed, mask), expected, atol=1e-6)


# --- Weights ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_losses_of_weight_zero_are_not_computed():
    weights = {"load_balance": 0.0, "z": 2.0, "load": 0.0, "over": "batch"}
    losses, total = balance_losses(routing(SURE, ALL), ALL, weights)
    assert set(losses) == {"z"}
    np.testing.assert_allclose(total, 2 * losses["z"])
