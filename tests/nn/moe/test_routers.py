"""Every router agrees with loops over tokens in float64, and with values by hand."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import router_reference as loops

from configs.sizes import experts_section
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.nn.moe.routers.noisy import route_hierarchical, route_noisy_top_k
from widenet_jax.nn.moe.routers.sigmoid import released_offset, route_sigmoid, sinkhorn_offset
from widenet_jax.nn.moe.routers.softmax import route_softmax
from widenet_jax.specs import resolve
from widenet_jax.typing import Routing

GROUPS, S = 50, 3
# Names of the loops and of `Routing.extra`.
EXTRA = {
    "load": "load_probability",
    "group_load": "group_load_probability",
    "group_chosen": "group_chosen",
}


def random_tokens(rng: np.random.Generator, columns: int, E: int) -> dict[str, np.ndarray]:
    """Draws small whole logits, so that ties are common; a third of the experts is dropped."""
    shape = (GROUPS, S, columns)
    return {
        "z": rng.integers(-2, 3, shape).astype(float),
        "std": rng.uniform(0.2, 1.5, shape),
        "noise": rng.normal(size=shape),
        "offset": np.broadcast_to(rng.integers(-1, 2, columns).astype(float), shape),
        "keep": rng.random((GROUPS, S, E)) < 0.67,
    }


def of_logits(route: Callable, **settings) -> Callable:
    def run(t: dict, mask: jax.Array, K: int) -> Routing:
        return route(t["z"], mask, t["keep"], K, **settings)

    return run


def with_offset(t: dict, mask: jax.Array, K: int) -> Routing:
    return route_sigmoid(t["z"], mask, t["keep"], K, t["offset"])


def noisy(t: dict, mask: jax.Array, K: int, route: Callable = route_noisy_top_k, **sizes):
    return route(t["z"], t["std"], t["noise"], mask, K, **sizes)


hierarchical = partial(noisy, route=route_hierarchical, groups=3, selected_groups=2)


class Case(NamedTuple):
    """A router, its loops, E, K, columns of the logits, and the inputs with a gradient."""

    ours: Callable
    loops: Callable
    E: int
    K: int
    columns: int
    inputs: tuple[str, ...] = ("z",)


NOISY = ("z", "std")
ROUTES = {
    "softmax": Case(of_logits(route_softmax, renormalized=False), loops.route_softmax, 5, 2, 5),
    "renormalized": Case(
        of_logits(route_softmax, renormalized=True), loops.route_renormalized, 5, 3, 5
    ),
    "sigmoid": Case(of_logits(route_sigmoid), loops.route_sigmoid, 5, 2, 5),
    "sinkhorn": Case(with_offset, loops.route_sinkhorn, 5, 2, 5),
    "noisy": Case(noisy, loops.route_noisy, 5, 2, 5, NOISY),
    "all experts, noisy": Case(noisy, loops.route_noisy, 3, 3, 3, NOISY),
    "noisy in evaluation": Case(noisy, loops.route_noisy, 5, 2, 5),
    "hierarchical": Case(hierarchical, loops.route_hierarchical, 6, 2, 9, NOISY),
    "hierarchical, four": Case(hierarchical, loops.route_hierarchical, 6, 4, 9, NOISY),
    "hierarchical in evaluation": Case(hierarchical, loops.route_hierarchical, 6, 2, 9),
}


def arrays(routing: Routing) -> dict[str, jax.Array]:
    extra = {key: routing.extra[name] for key, name in EXTRA.items() if name in routing.extra}
    return {"gate": routing.gate, "probs": routing.router_probs, **extra}


SLOW = pytest.mark.slow
LATER = ("noisy in evaluation", "hierarchical, four", "hierarchical in evaluation")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW) if name in LATER else name for name in ROUTES]
)
def test_equals_loops_over_tokens(name: str):
    """150 random tokens in 50 groups, with ties and padding.

    Compared are choices, gates, probabilities and loads; and the gradient of a random weighted sum
    of them, at fixed choices, with central differences.
    """
    case = ROUTES[name]
    rng = np.random.default_rng(len(name))
    tokens = random_tokens(rng, case.columns, case.E)
    if "evaluation" in name:
        tokens["noise"] = None
    mask = rng.random((GROUPS, S)) < 0.8
    ours = {k: v if v is None or v.dtype == bool else jnp.float32(v) for k, v in tokens.items()}
    shapes = jax.eval_shape(lambda: arrays(case.ours(ours, mask, case.K)))
    weights = {key: np.float32(rng.normal(size=array.shape)) for key, array in shapes.items()}

    @jax.jit
    def run(inputs: dict) -> tuple:
        def total(inputs: dict) -> tuple:
            routing = case.ours({**ours, **inputs}, jnp.asarray(mask), case.K)
            return sum((arrays(routing)[key] * weights[key]).sum() for key in weights), routing

        return jax.grad(total, has_aux=True)(inputs)

    gradients, routing = run({key: ours[key] for key in case.inputs})
    for place in np.ndindex(GROUPS, S):
        token = {key: None if array is None else array[place] for key, array in tokens.items()}
        chosen, expected = routing.expert_index[place].tolist(), case.loops(token, case.K)["index"]
        # The gates of a masked token are 0, so that its choices have no order.
        assert chosen == expected if mask[place] else set(chosen) == set(expected)

        def loop(token: dict, place=place, chosen=chosen) -> dict:
            made = case.loops(token, case.K, chosen)
            return made | {"gate": np.array(made["gate"]) * mask[place]}

        for key, array in arrays(routing).items():
            np.testing.assert_allclose(array[place], loop(token)[key], rtol=2e-5, atol=2e-6)
        for key in case.inputs:

            def total(x: np.ndarray, key=key, token=token, place=place, loop=loop) -> float:
                made = loop({**token, key: x})
                return sum(np.dot(weights[name][place], made[name]) for name in weights)

            expected = loops.differences(total, token[key])
            np.testing.assert_allclose(gradients[key][place], expected, rtol=2e-4, atol=2e-5)


# --- By hand ---------------------------------------------------------------------------------

ONE = jnp.ones((1, 1), bool)


def token(*values: float) -> jax.Array:
    return jnp.array([[values]])


def same(routing: Routing, index: list[int], gate: list[float]) -> None:
    assert routing.expert_index[0, 0].tolist() == index
    np.testing.assert_allclose(routing.gate[0, 0], gate, rtol=1e-5, atol=1e-7)


def test_sigmoid_by_hand():
    """sigmoid(0) = 1/2, sigmoid(ln 3) = 3/4, sigmoid(-ln 3) = 1/4: the gates sum to 5/4."""
    logits = token(0.0, math.log(3), -math.log(3))
    same(route_sigmoid(logits, ONE, None, 2), [1, 0], [3 / 4, 1 / 2])


def test_hierarchical_by_hand():
    """Groups ln 3, 0: gates 3/4, 1/4. Expert 1 of group 0 and expert 0 of group 1 have gate 1."""
    scores = token(math.log(3), 0.0, *(0.0, 5.0), *(5.0, 0.0))
    sizes = {"num_selected": 2, "groups": 2, "selected_groups": 2}
    routing = route_hierarchical(scores, jnp.ones_like(scores), None, ONE, **sizes)
    same(routing, [1, 2], [3 / 4, 1 / 4])


def test_sinkhorn_by_hand():
    """Both tokens prefer expert 0, by 2 and by 1: one place each, so that the second yields.

    In the plan [[p, 1-p], [1-p, p]] the odds (p / (1-p))^2 are e^(2-1), so p = sigmoid(1/2): the
    offset must turn the margin 2 into 1/2, and 1 into -1/2. The gates ignore it: sigmoid(2) and,
    of expert 1, sigmoid(0).
    """
    logits, mask = jnp.array([[[2.0, 0.0], [1.0, 0.0]]]), jnp.ones((1, 2), bool)
    h = jax.jit(sinkhorn_offset)(logits, mask)
    np.testing.assert_allclose(h[0, 0, 0] - h[0, 0, 1], -1.5, atol=1e-3)
    routing = route_sigmoid(logits, mask, None, 1, h)
    assert routing.expert_index.ravel().tolist() == [0, 1]
    np.testing.assert_allclose(routing.gate.ravel(), [0.8807971, 0.5], rtol=1e-5)


# --- Sinkhorn --------------------------------------------------------------------------------


def random_batch() -> tuple[jax.Array, jax.Array]:
    """Draws logits of 8 groups of 32 tokens for 8 experts, some of them popular; some padding."""
    keys = jax.random.split(jax.random.key(0), 3)
    logits = jax.random.normal(keys[0], (8, 32, 8)) + jax.random.normal(keys[1], (8,)) / 2
    return logits, jax.random.bernoulli(keys[2], 0.9, (8, 32))


def load_variation(logits: jax.Array, offset: jax.Array, mask: jax.Array) -> float:
    routing = route_sigmoid(logits, mask, None, 2, offset)
    counts = np.bincount(np.asarray(routing.expert_index[mask]).ravel(), minlength=8)
    return counts.std() / counts.mean()


def test_the_plan_of_sinkhorn_balances():
    """Rows are 1 by the softmax; columns n/E within 1%, for logits of standard deviation 1."""
    logits, mask = random_batch()
    h = jax.jit(sinkhorn_offset)(logits, mask)
    plan = np.asarray(jax.nn.softmax(logits + h), np.float64)[np.asarray(mask)]
    np.testing.assert_allclose(plan.sum(axis=0), int(mask.sum()) / 8, rtol=0.01)


def test_sinkhorn_evens_the_load_more_than_the_released_code():
    logits, mask = random_batch()
    plain = load_variation(logits, jnp.zeros((1, 1, 8)), mask)
    ours = load_variation(logits, jax.jit(sinkhorn_offset)(logits, mask), mask)
    joined = logits.reshape(1, 256, 8), mask.reshape(1, 256)
    released = load_variation(*(joined[0], jax.jit(released_offset)(*joined), joined[1]))
    assert ours < 0.15 < 0.3 < plain
    assert ours < released


def test_sinkhorn_equals_loops_over_tokens():
    """50 batches of two groups, with padding; the released iteration in each group."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(50, 2, 4, 3), scale=2)
    mask = rng.random((50, 2, 4)) < 0.8
    mask[:, 0, 0] = True
    ours = jax.vmap(lambda z, mask: (sinkhorn_offset(z, mask), released_offset(z, mask)))
    offsets, released = jax.jit(ours)(jnp.float32(z), jnp.asarray(mask))

    def logsumexp(values: list[float]) -> float:
        return math.log(sum(math.exp(value) for value in values))

    def loop(tokens: np.ndarray, sign: int) -> list[float]:
        """sign = 1: Sinkhorn; -1: with its duals subtracted, and with the released constants."""
        n, E = tokens.shape
        h = [0.0] * E
        for _ in range(3):
            f = [-logsumexp([z[e] + sign * h[e] for e in range(E)]) for z in tokens]
            f = f if sign > 0 else [value + math.log(n) for value in f]
            sums = [logsumexp([z[e] + sign * f[i] for i, z in enumerate(tokens)]) for e in range(E)]
            h = [math.log(n / E if sign > 0 else E) - total for total in sums]
        return h

    for case in range(50):
        np.testing.assert_allclose(offsets[case, 0, 0], loop(z[case][mask[case]], 1), atol=1e-4)
        for g in range(2):
            real = z[case, g][mask[case, g]]
            expected = loop(real, -1) if len(real) else [0.0] * 3
            np.testing.assert_allclose(released[case, g, 0], expected, atol=1e-4)


def module(name: str, K: int = 2, E: int = 4, **fields) -> nn.Module:
    return resolve(ROUTERS[name].module)(num_experts=E, num_selected_experts=K, **fields)


def init_router(router: nn.Module, x: jax.Array) -> dict:
    mask = jnp.ones(x.shape[:2], bool)
    run = lambda: router.init(jax.random.key(1), x, mask, key=None, train=False)  # noqa: E731
    return jax.jit(run)().get("params")


@partial(jax.jit, static_argnames=("router", "train"))
def routed(
    router: nn.Module, params: dict, x: jax.Array, mask, key=None, *, train: bool
) -> Routing:
    return router.apply({"params": params}, x, mask, key=key, train=train)


def test_padding_takes_no_part_and_evaluation_is_plain():
    router = module("sinkhorn", K=1)
    x, mask = (
        jax.random.normal(jax.random.key(0), (2, 16, 3)),
        jnp.arange(16) < jnp.array([[9], [16]]),
    )
    params = init_router(router, x)
    other = jnp.where(mask[..., None], x, 100 * x[:, ::-1])
    balanced, again = (routed(router, params, tokens, mask, train=True) for tokens in (x, other))
    real = np.asarray(mask)
    chosen = np.asarray(balanced.expert_index)
    np.testing.assert_array_equal(chosen[real], np.asarray(again.expert_index)[real])
    plain = routed(router, params, x, mask, train=False)
    best = np.asarray(plain.router_logits).argmax(-1)
    np.testing.assert_array_equal(plain.expert_index[..., 0], best)
    assert (chosen[..., 0] != best).any()


# --- Modules ---------------------------------------------------------------------------------


OTHERS = ("softmax", "sinkhorn", "sinkhorn_released")


@pytest.mark.parametrize(
    "name", ["sigmoid", "softmax_renormalized", *(pytest.param(n, marks=SLOW) for n in OTHERS)]
)
def test_expert_dropout(name: str):
    """At 1/2, K = 2 of 8: no dropped expert has a gate, and none is chosen while two are kept."""
    router = module(name, E=8, expert_dropout=0.5)
    x = jax.random.normal(jax.random.key(0), (4, 64, 5))
    params, mask, key = init_router(router, x), jnp.ones((4, 64), bool), jax.random.key(7)
    routing = routed(router, params, x, mask, key, train=True)
    keep = np.asarray(jax.random.bernoulli(key, 0.5, (4, 64, 8)))
    kept = np.take_along_axis(keep, np.asarray(routing.expert_index), axis=-1)
    enough = keep.sum(-1) >= 2
    assert (~enough).any() and kept[enough].all() and not kept[~enough].all()
    np.testing.assert_array_equal(np.asarray(routing.gate) > 0, kept)
    quiet = routed(router, params, x, mask, train=False)
    assert (np.asarray(quiet.expert_index) != np.asarray(routing.expert_index)).any()


@pytest.mark.parametrize("name", [pytest.param("noisy_top_k", marks=SLOW), "hierarchical"])
def test_gates_with_learned_noise_start_even(name: str):
    """Kernels are 0, so that h = n (softplus(0) + 0.01): differences have std sqrt(2) 0.70315."""
    router = module(name, K=4 if name == "hierarchical" else 2)
    x = jnp.ones((1, 4000, 3))
    params = init_router(router, x)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(params)) and len(params) == 2
    mask = jnp.ones((1, 4000), bool)
    routing = routed(router, params, x, mask, jax.random.key(0), train=True)
    logs = np.log(routing.router_probs)
    np.testing.assert_allclose((logs[..., 0] - logs[..., 1]).std(), 2**0.5 * 0.70315, rtol=0.05)


@pytest.mark.parametrize(
    ("name", "fields"),
    [("noisy_top_k", {}), ("top_k", {"noise_std": 1.0}), ("sigmoid", {"expert_dropout": 0.1})],
)
def test_randomness_needs_its_stream(name: str, fields: dict):
    router, x, mask = module(name, **fields), jnp.ones((1, 2, 3)), jnp.ones((1, 2), bool)
    params = init_router(router, x)
    with pytest.raises(AssertionError, match="stream 'router'"):
        routed(router, params, x, mask, train=True)


@pytest.mark.parametrize("name", ROUTERS)
def test_the_variants_of_every_router_build(name: str):
    """A layer from the section of `router=NAME` routes and computes the losses of its paper."""
    section = experts_section({"router": name, "mlp_dim": 4, "examples_per_group": 2})
    layer = MoeLayer(**section)
    keys = {"params": jax.random.key(0), "router": jax.random.key(1)}
    x = jnp.ones((2, 3, 4))
    output, _ = jax.eval_shape(lambda: layer.init_with_output(keys, x, train=True))
    own = {key for key, weight in section["losses"].items() if key != "over" and weight}
    assert set(output.aux["losses"]) == own and bool(own) != layer.router.experts_choose
