"""The mixture-of-experts layer agrees with loops, the dense layer, and values by hand."""

import inspect
from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from reference import moe_group

from widenet_jax.errors import BadInputError
from widenet_jax.extensions import parameters_of, try_parts
from widenet_jax.nn.moe.dispatch import ANYWHERE
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.nn.moe.routers.softmax import TopKRouter, route_softmax
from widenet_jax.nn.moe.slots import summarize
from widenet_jax.typing import Routing

D, F, T, GROUPS = 3, 4, 6, 8
CASES = [(E, K) for E in range(1, 9) for K in range(1, min(4, E) + 1)]  # 26, of 8 groups each


def layer(E: int, K: int, **changes) -> MoeLayer:
    fields = {
        "mlp_dim": F,
        "num_experts": E,
        "num_selected_experts": K,
        "capacity_factor": 1.2,
        "capacity_factor_eval": 2.0,
        "examples_per_group": 2,
        "losses": {"load_balance": 0.01, "over": "group"},
    }
    return MoeLayer(**(fields | changes))


def random_weights(rng: np.random.Generator, E: int) -> dict[str, np.ndarray]:
    """Draws weights; the router's are small whole numbers, so that exact ties are common."""
    return {
        "router": rng.integers(-1, 2, (D, E)).astype(float),
        "wi": rng.normal(size=(E, D, F)),
        "bi": rng.normal(size=(E, F)),
        "wo": rng.normal(size=(E, F, D)),
        "bo": rng.normal(size=(E, D)),
    }


def params_of(weights: dict[str, np.ndarray]) -> dict:
    w = {name: jnp.float32(value) for name, value in weights.items()}
    return {
        "router": {"kernel": w["router"]},
        "experts": {
            "wi": {"kernel": w["wi"], "bias": w["bi"]},
            "wo": {"kernel": w["wo"], "bias": w["bo"]},
        },
    }


@cache  # every dispatcher has the same cases
def case(E: int, K: int) -> tuple:
    """Draws groups with ties, drops and padding; returns what loops over their tokens compute."""
    rng = np.random.default_rng([E, K])
    capacity_factor = float(rng.choice([0.5, 1.0, 1.2, 2.0]))
    first = bool(rng.integers(2))
    weights = random_weights(rng, E)
    x = rng.integers(-2, 3, (2 * GROUPS, T, D)).astype(float)
    mask = rng.random((2 * GROUPS, T)) < rng.choice([0.5, 0.9, 1.0])
    mask[:2] = True  # one full group
    mask[-2:] = False  # one group of padding only
    cotangent = rng.normal(size=x.shape)
    settings = {
        "capacity_factor": capacity_factor,
        "priority": "first_choice_first" if first else "token_order",
        "losses": {"load_balance": 0.7, "over": "group"},
    }
    flat = {"x": x, "mask": mask, "cotangent": cotangent}
    flat = {k: v.reshape(GROUPS, 2 * T, *v.shape[2:]) for k, v in flat.items()}
    real_groups = flat["mask"].any(axis=1).sum()
    groups = [
        moe_group(
            flat["x"][g],
            flat["mask"][g],
            weights,
            flat["cotangent"][g],
            K=K,
            capacity_factor=capacity_factor,
            first_choice_first=first,
            balance_weight=0.7 / real_groups if flat["mask"][g].any() else 0.0,
        )
        for g in range(GROUPS)
    ]
    return settings, weights, x, mask, cotangent, real_groups, groups


# Every dispatcher has the usual case, and one of them the small and the large; the rest are slow.
SHORT = {*((4, 2, dispatch) for dispatch in ANYWHERE), (1, 1, "gather"), (8, 4, "masked")}
METHODS = [
    case if case in SHORT else pytest.param(*case, marks=pytest.mark.slow)
    for case in ((E, K, dispatch) for dispatch in ANYWHERE for E, K in CASES)
]


@pytest.mark.parametrize(("E", "K", "dispatch"), METHODS)
def test_equals_a_loop_over_tokens(E: int, K: int, dispatch: str):
    """208 random groups: outputs, gradients, losses and counts."""
    settings, weights, x, mask, cotangent, real_groups, groups = case(E, K)
    moe = layer(E, K, **settings, dispatch=dispatch)

    @jax.jit
    def loss_and_grads(params: dict, x: jax.Array):
        def loss(params: dict, x: jax.Array):
            out = moe.apply({"params": params}, x, mask=jnp.asarray(mask), train=True)
            return (out.y * cotangent).sum() + out.aux["loss"], out

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    (_, out), (grads, x_grad) = loss_and_grads(params_of(weights), jnp.float32(x))

    def close(ours: jax.Array, theirs: np.ndarray) -> None:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * (1 + np.abs(theirs).max()))

    close(out.y.reshape(GROUPS, 2 * T, D), np.stack([g.y for g in groups]))
    close(out.aux["losses"]["load_balance"], sum(g.balance for g in groups) / real_groups)
    assert int(out.aux["sums"]["dropped"]) == sum(g.dropped for g in groups)
    np.testing.assert_array_equal(out.aux["sums"]["load"], sum(g.load for g in groups))
    expected = {name: sum(g.gradients[name] for g in groups) for name in weights}
    ours = {"router": grads["router"]["kernel"]}
    for w, b in (("wi", "bi"), ("wo", "bo")):
        ours |= {w: grads["experts"][w]["kernel"], b: grads["experts"][w]["bias"]}
    for name, grad in ours.items():
        close(grad, expected[name])
    close(x_grad.reshape(GROUPS, 2 * T, D), np.stack([g.gradients["x"] for g in groups]))


def test_three_tokens_by_hand():
    """Three tokens, two experts, K=1, C=1: ceil(1 * 1 * 3 / 2) = 2 slots an expert.

    The router scores x by (x, -x): tokens 2, 1, 3 all choose expert 0, and the third finds it
    full. Expert 0 computes x -> GELU(x), so with sigma the logistic function and p(x) =
    e^x / (e^x + e^-x) = sigma(2x), the outputs are p(2) GELU(2), p(1) GELU(1) and 0.
    """
    moe = layer(2, 1, mlp_dim=1, capacity_factor=1.0, examples_per_group=1)
    one = jnp.ones((2, 1, 1))
    zero = jnp.zeros((2, 1))
    params = {
        "router": {"kernel": jnp.array([[1.0, -1.0]])},
        "experts": {"wi": {"kernel": one, "bias": zero}, "wo": {"kernel": one, "bias": zero}},
    }
    x = jnp.array([[[2.0], [1.0], [3.0]]])
    out = apply(moe, params, x, train=True)
    gelu_2, gelu_1 = 1.95459769, 0.84119199  # 0.5x(1 + tanh(0.79788(x + 0.0447x^3)))
    p_2, p_1 = 0.98201379, 0.88079708  # sigma(4), sigma(2)
    np.testing.assert_allclose(out.y[0, :, 0], [p_2 * gelu_2, p_1 * gelu_1, 0], rtol=1e-5)
    assert out.routing.slot.ravel().tolist() == [0, 1, 2]  # 2 is one past the last slot: dropped
    assert out.aux["sums"]["load"].tolist() == [3, 0]
    assert int(out.aux["sums"]["dropped"]) == 1
    # Only expert 0 is sent tokens: 2 * (1 * mean p + 0) with p(3) = sigma(6) = 0.99752738.
    expected = 2 * (p_2 + p_1 + 0.99752738) / 3
    np.testing.assert_allclose(out.aux["losses"]["load_balance"], expected, rtol=1e-5)


def test_padding_changes_nothing_for_real_tokens():
    """Half the tokens masked: the real ones have the outputs of a group without the others."""
    rng = np.random.default_rng(0)
    x = jnp.float32(rng.normal(size=(2, T, D)))
    moe = layer(4, 2)
    params = init(moe, x)
    real = jnp.arange(T) % 2 == 0
    mask = jnp.broadcast_to(real, (2, T))
    padded = apply(moe, params, x, mask=mask, train=True)
    alone = apply(moe, params, x[:, ::2], train=True)
    np.testing.assert_allclose(padded.y[:, ::2], alone.y, atol=1e-6)
    np.testing.assert_array_equal(padded.y[:, 1::2], 0)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5),
        padded.aux,
        alone.aux,
    )


def test_a_given_routing_is_followed_and_not_counted_again():
    x = jax.random.normal(jax.random.key(0), (2, T, D))
    moe = layer(4, 2)
    params = init(moe, x, seed=1)
    first = apply(moe, params, x, train=True)
    follows = apply(moe, params, -x, train=True, routing=first.routing)
    routes = apply(moe, params, -x, train=True)
    assert follows.aux == {}
    np.testing.assert_array_equal(follows.routing.expert_index, first.routing.expert_index)
    assert (routes.routing.expert_index != first.routing.expert_index).any()


def test_noise_only_in_training_and_of_the_stated_size():
    """Zero logits plus noise of std 1/E: log-probabilities differ by N(0, 2/E^2)."""
    E = 4
    moe = layer(E, 1, router={"name": "top_k", "noise_std": 1.0})
    x = jnp.zeros((2000, 2, D))
    params = init(moe, x[:1])
    quiet = apply(moe, params, x, train=False).routing.router_probs
    np.testing.assert_array_equal(quiet, 1 / E)
    noisy = apply(moe, params, x, train=True, rngs={"router": jax.random.key(1)})
    logs = jnp.log(noisy.routing.router_probs)
    std = float((logs[..., 0] - logs[..., 1]).std())
    np.testing.assert_allclose(std, np.sqrt(2) / E, rtol=0.05)


def test_the_router_multiplies_in_full_float32():
    """Checks dtype and precision of its product in a bfloat16 layer, as given to the compiler."""
    moe = layer(4, 2, dtype="bfloat16")
    x = jnp.ones((2, T, D), jnp.bfloat16)
    params = init(moe, x)
    trace = jax.make_jaxpr(lambda p: moe.apply({"params": p}, x, train=True).y)(params)
    products = [eqn for eqn in trace.eqns if eqn.primitive.name == "dot_general"]
    [router] = [eqn for eqn in products if eqn.invars[1].aval.shape == (D, 4)]
    assert {str(v.aval.dtype) for v in router.invars} == {"float32"}
    assert set(router.params["precision"]) == {jax.lax.Precision.HIGHEST}


def test_evaluation_has_its_own_capacity():
    """Six tokens for one of two experts: C = 0.5 keeps ceil(0.5 * 6 / 2) = 2, C = 1 keeps 3."""
    moe = layer(2, 1, capacity_factor=0.5, capacity_factor_eval=1.0, examples_per_group=1)
    x = jnp.ones((2, T, D))
    params = init(moe, x)
    dropped = [int(apply(moe, params, x, train=t).aux["sums"]["dropped"]) for t in (True, False)]
    assert dropped == [2 * (6 - 2), 2 * (6 - 3)]


def test_dropout_after_both_layers_of_an_expert():
    """E = K = 1, identity-like weights: outputs are 0 or scaled by 1/keep or 1/keep^2.

    wi and wo map D = 1 to F = 1 with weight 1 and no bias; the hidden value is GELU(x), dropped
    or doubled at rate 0.5, and so is the output: a quarter of the tokens survive, times 4.
    """
    moe = layer(1, 1, mlp_dim=1, capacity_factor=1.0, examples_per_group=1, dropout=0.5)
    one, zero = jnp.ones((1, 1, 1)), jnp.zeros((1, 1))
    dense = {"kernel": one, "bias": zero}
    params = {"router": {"kernel": jnp.ones((1, 1))}, "experts": {"wi": dense, "wo": dense}}
    x = jnp.ones((1, 4000, 1))
    y = apply(moe, params, x, train=True, rngs={"dropout": jax.random.key(0)}).y
    values = np.asarray(y).ravel() / 0.84119199  # GELU(1)
    np.testing.assert_allclose(np.unique(values.round(4)), [0, 4])
    np.testing.assert_allclose((values > 0).mean(), 0.25, atol=0.03)


def test_a_single_image_is_one_group_in_evaluation_only():
    x = jnp.ones((1, T, D))
    moe = layer(4, 2, examples_per_group=16)
    params = init(moe, x)
    assert apply(moe, params, x, train=False).y.shape == x.shape


@pytest.mark.parametrize(
    ("shape", "train", "line"),
    [((3, T, D), False, "x has 3 examples; must be a multiple of examples_per_group=2"),
     ((1, T, D), True, "x has 1 examples; must be a multiple of examples_per_group=2"),
     ((2, D), False, r"x is \[2, 3\]; a layer of experts takes \[B, T, D\]")],
)  # fmt: skip
def test_examples_come_in_whole_groups(shape: tuple[int, ...], train: bool, line: str):
    moe = layer(4, 2)
    params = init(moe, jnp.ones((2, T, D)))
    with pytest.raises(BadInputError, match=line):
        apply(moe, params, jnp.ones(shape), train=train)


def test_dropout_after_the_sum_takes_the_place_of_that_after_each_output():
    """One expert, all weights and the gate 1: hidden units 2 or 0, then 2.5 or 0."""
    layer = MoeLayer(1, 1, 1, 1.0, 1.0, 1, activation="relu", dropout=0.5, output_dropout=0.2)
    x = jnp.ones((1, 3000, 1))
    params = jax.tree.map(jnp.ones_like, init(layer, x))
    params["experts"] = jax.tree.map_with_path(
        lambda path, leaf: leaf * ("bias" not in jax.tree_util.keystr(path)), params["experts"]
    )
    y = apply(layer, params, x, train=True, rngs={"dropout": jax.random.key(0)}).y
    np.testing.assert_allclose(np.unique(y), [0, 2.5])
    np.testing.assert_allclose((y > 0).mean(), 0.5 * 0.8, atol=0.04)


class Even(nn.Module):
    """A user's router, that sends every token to expert 0; its arrays are changed by `wrong`."""

    num_experts: int
    num_selected_experts: int
    kernel_init: str
    wrong: tuple = ()

    def __call__(self, x, mask, *, key, train):
        probs = jnp.full((*mask.shape, self.num_experts), 1 / self.num_experts)
        chosen = (*mask.shape, self.num_selected_experts)
        gate = jnp.ones(chosen) * mask[..., None]
        arrays = {"expert_index": jnp.zeros(chosen, int), "gate": gate}
        arrays |= {"router_probs": probs, "router_logits": probs} | dict(self.wrong)
        return Routing(**arrays) if arrays["gate"] is not None else None


def first_line(router: type) -> int:
    """Returns the line of this file with which a router's `__call__` begins."""
    return inspect.unwrap(router.__call__).__code__.co_firstlineno


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("gate", jnp.ones((1, 4))), r"gate is \[1, 4\]; must be \[G, S, K\], here \[1, 4, 2\]"),
        (
            ("router_probs", jnp.ones((1, 4, 2))),
            r"router_probs is .* \[G, S, E\], here \[1, 4, 3\]",
        ),
        (("expert_index", jnp.ones((1, 4, 2))), "expert_index is float32; must be int32"),
        (("gate", None), "returns NoneType; return a Routing"),
        (("router_probs", jnp.ones((1, 4, 3), int)), "router_probs is int32; must be float32"),
        (("gate", jnp.ones((1, 4, 2), bool)), "gate is bool; must be float32"),
    ],
)
def test_a_router_of_the_users_is_checked(wrong, words, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ROUTERS, "even", Even)
    model = layer(3, 2, router={"name": "even", "wrong": (wrong,)})
    where = rf"router even \(\S*test_layer\.py, line {first_line(Even)}\):? "
    with pytest.raises(BadInputError, match=where + words):
        init(model, jnp.ones((2, 2, D)))


class Scores(Even):
    """Its router_probs are `scale` thirds, in training with `noise`."""

    scale: float = 1.0
    noise: float = 0.0

    @nn.compact
    def __call__(self, x, mask, *, key, train):
        self.param("kernel", nn.initializers.zeros, (x.shape[-1], 3))
        routing = super().__call__(x, mask, key=key, train=train)
        scale = self.scale + (self.noise if train else 0.0)
        return routing.replace(router_probs=scale * routing.router_probs)


def tried(name: str = "scores", *, causal: bool = False, **fields: float) -> None:
    moe = layer(3, 2, router={"name": name, **fields}, priority="token_order")
    with try_parts(causal=causal):
        init(moe, jnp.ones((2, 2, D)))


@pytest.mark.parametrize(
    "fields", [{"scale": -1.0}, {"scale": 1.1}, {"scale": float("nan")}, {"noise": 0.1}]
)
def test_probabilities_of_an_own_router_are_tried(fields, monkeypatch: pytest.MonkeyPatch):
    """In evaluation and, with noise, in training."""
    monkeypatch.setitem(ROUTERS, "scores", Scores)
    words = rf"line {first_line(Scores)}\): router_probs of a token must be a distribution over the"
    with pytest.raises(BadInputError, match=words):
        tried(**fields)
    tried()


class Centred(TopKRouter):
    """The router with scores from which `mean` of their mean over all tokens is subtracted."""

    mean: float = 0.0
    masks: bool = True
    noise: float = 0.0

    @nn.compact
    def __call__(self, x, mask, *, key, train):
        scores = nn.Dense(3)(x)
        share = self.mean + (self.noise if train else 0.0)
        mask = mask if self.masks else jnp.ones_like(mask)
        scores -= share * scores.mean(axis=1, keepdims=True)
        return route_softmax(scores, mask, None, self.num_selected_experts, False)


def test_an_own_router_gives_masked_tokens_the_gate_0(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ROUTERS, "centred", Centred)
    tried("centred", mean=0.5)
    words = r"router centred \(\S*, line \d+\): masked tokens must have gate 0"
    with pytest.raises(BadInputError, match=words):
        tried("centred", masks=False)


def test_routing_by_later_tokens_is_refused_where_the_next_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
):
    """In evaluation: `sinkhorn`, too, balances all tokens in training."""
    monkeypatch.setitem(ROUTERS, "centred", Centred)
    tried("centred", causal=True, noise=1.0)
    words = r"router centred \(\S*, line \d+\): a token's output or routing changes with later tok"
    with pytest.raises(BadInputError, match=words):
        tried("centred", causal=True, mean=1.0)


class WithoutSelected(nn.Module):
    num_experts: int
    kernel_init: str


class WithoutKey(Even):
    def __call__(self, x, mask):
        return super().__call__(x, mask, key=None, train=False)


class NotReturned(Even):
    @nn.compact
    def __call__(self, x, mask, *, key, train):
        self.param("balance_bias", nn.initializers.zeros, (3,))
        return super().__call__(x, mask, key=key, train=train)


class OfAnotherName(Even):
    @nn.compact
    def __call__(self, x, mask, *, key, train):
        shift = self.param("shift", nn.initializers.zeros, (3,))
        return super().__call__(x, mask, key=key, train=train).replace(balance_bias=shift)


class Counting(Even):
    @nn.compact
    def __call__(self, x, mask, *, key, train):
        self.sow("losses", "mine", jnp.ones(()))  # ignored, as in evaluation
        self.variable("statistics", "seen", jnp.zeros, ())
        return super().__call__(x, mask, key=key, train=train)


@pytest.mark.parametrize(
    ("router", "words"),
    [
        (lambda x: x, "function.*is not the class of a Linen module"),
        (WithoutSelected, "router mine lacks the field num_selected_experts"),
        (WithoutKey, r"called as router\(x, mask, \*, key, train\): .*unexpected.*'key'"),
        (NotReturned, "the parameter balance_bias must be what it returns as Routing.balance_bias"),
        (OfAnotherName, "the parameter balance_bias must be what it returns"),
        (Counting, "router/seen is a variable of the collection 'statistics'"),
    ],
)
def test_a_router_of_another_form_is_refused(router, words, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ROUTERS, "mine", router)
    model = layer(3, 2, router={"name": "mine"})
    with pytest.raises(BadInputError, match=words):
        parameters_of(model.init(jax.random.key(0), jnp.ones((2, 2, D)), train=False))


class OnTheHost(Even):
    @nn.compact
    def __call__(self, x, mask, *, key, train):
        return np.asarray(x)


def test_an_own_router_whose_code_fails_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ROUTERS, "mine", OnTheHost)
    model = layer(3, 2, router={"name": "mine"})
    words = r"router mine fails: \S*test_layer\.py, line \d+: TracerArrayConversionError: The numpy"
    with pytest.raises(BadInputError, match=words):
        init(model, jnp.ones((2, 2, D)))


@pytest.mark.parametrize("dispatch", ANYWHERE)
def test_choices_that_an_own_router_gets_wrong_are_dropped(
    dispatch: str, monkeypatch: pytest.MonkeyPatch
):
    """Experts 1 and 1, -1 and 1, 1 and 3 of three: as if the token had chosen expert 1 alone.

    The loss, too, counts one choice.
    """
    monkeypatch.setitem(ROUTERS, "even", Even)
    choices = [[1, 1], [-1, 1], [1, 3]]
    x = jax.random.normal(jax.random.key(0), (1, 3, D))
    fields = {"dispatch": dispatch, "capacity_rule": "unlimited"}

    def gradients(*wrong, selected: int) -> tuple:
        router = {"name": "even", "wrong": wrong}
        model = layer(3, selected, router=router, **fields)
        params = init(model, x)
        loss = lambda p, x: (apply(model, p, x, train=False).y ** 2).sum()  # noqa: E731
        sums = apply(model, params, x, train=False).aux["sums"]
        return jax.grad(loss, argnums=(0, 1))(params, x), summarize(sums)

    wrong, metrics = gradients(("expert_index", jnp.array([choices])), selected=2)
    right, _ = gradients(("expert_index", jnp.ones((1, 3, 1), int)), selected=1)
    for got, want in zip(jax.tree.leaves(wrong), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert metrics["drop_rate"] == 0.5 and metrics["load"].tolist() == [0, 1, 0]


def test_an_expert_that_does_not_exist_drops_its_tokens(monkeypatch: pytest.MonkeyPatch):
    """Indices that begin at 1: of 3 experts the last is number 3; all choices count as dropped."""
    monkeypatch.setitem(ROUTERS, "even", Even)
    wrong = ("expert_index", jnp.full((1, 4, 1), 3))
    model = layer(3, 1, router={"name": "even", "wrong": (wrong,)}, capacity_rule="unlimited")
    x = jnp.ones((2, 2, D))
    out = apply(model, init(model, x), x, train=False)
    assert out.aux["sums"]["dropped"] == 4 and out.aux["sums"]["load"].tolist() == [0, 0, 0]
