"""The optimizer that `config.optimizer` describes, judged by its updates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimizers
import pytest
from optimizers import USUAL

from widenet_jax.config.imports import configs_module
from widenet_jax.errors import BadInputError
from widenet_jax.optim.build import OPTIMIZERS, decay_mask
from widenet_jax.param_names import named_leaves

PARAMS = {
    "moe": {"experts": {"wi": {"kernel": jnp.arange(1.0, 13).reshape(2, 2, 3)}}},
    "norm": {"scale": jnp.array([1.0, 2.0]), "bias": jnp.array([0.5, 0.5])},
    "head": {"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([3.0, 4.0])},
}


def build(name: str, **changes: object) -> tuple:
    return optimizers.build(jax.eval_shape(lambda: PARAMS), name=name, **changes)


def train(tx: optax.GradientTransformation, steps: list) -> dict:
    return optimizers.train(tx, PARAMS, steps)


def gradients(count: int, scale: float = 1.0) -> list:
    def draw(seed: int) -> dict:
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda p: jnp.float32(scale * rng.normal(size=p.shape)), PARAMS)

    return [draw(seed) for seed in range(count)]


def assert_close(a: dict, b: dict) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.01), (0.0, 0.0)])
def test_sgd_by_hand(momentum: float, decay: float):
    steps = gradients(3)

    def by_hand(p, *grads):
        v = np.zeros_like(p)
        for g in grads:
            v = momentum * v + (g + decay * p)
            p = p - 0.1 * v
        return p

    tx, _ = build("sgd", weight_decay=decay, momentum=momentum)
    assert_close(train(tx, steps), jax.tree.map(by_hand, PARAMS, *steps))


def test_adamw_is_optax_adamw():
    tx, _ = build("adamw", weight_decay=0.1, b2=0.98)
    theirs = optax.adamw(0.1, b2=0.98, eps=1e-6, weight_decay=0.1)
    assert_close(train(tx, gradients(3)), train(theirs, gradients(3)))


def test_lamb_scales_each_expert_alone():
    tx, _ = build("lamb")
    [gradient] = gradients(1)
    before, after = (t["moe"]["experts"]["wi"]["kernel"] for t in (PARAMS, train(tx, [gradient])))
    moved = jnp.sqrt(jnp.sum((after - before) ** 2, axis=(1, 2)))
    # |lr * ratio * u| = lr * |p| for each unit.
    np.testing.assert_allclose(moved, 0.1 * jnp.sqrt(jnp.sum(before**2, axis=(1, 2))), rtol=1e-4)


def test_lamb_moves_adapters_at_the_whole_rate():
    """They start at 0: what has a trust ratio would stay near it."""
    adapter = {"query": {"kernel": {"down": jnp.ones((2, 1)), "up": jnp.zeros((1, 2))}}}
    params = {"encoder": {"adapter": adapter, "query": {"kernel": jnp.full((2, 2), 0.5)}}}
    tx, _ = optimizers.build(params, name="lamb", weight_decay=0.0)
    after = optimizers.train(tx, params, [jax.tree.map(jnp.ones_like, params)] * 3)["encoder"]
    up = after["adapter"]["query"]["kernel"]["up"]
    np.testing.assert_allclose(up, -0.3, rtol=1e-4)
    np.testing.assert_allclose(after["query"]["kernel"], 0.5 * 0.9**3, rtol=1e-4)


@pytest.mark.parametrize(("scale", "clipped"), [(100.0, True), (1e-3, False)])
def test_the_global_norm_is_clipped_before_the_optimizer(scale: float, clipped: bool):
    [gradient] = gradients(1, scale)
    norm = np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(gradient)))
    factor = 1 / norm if clipped else 1.0
    tx, _ = build("sgd", grad_clip_norm=1.0)
    expected = jax.tree.map(lambda p, g: p - 0.1 * factor * g, PARAMS, gradient)
    assert_close(train(tx, [gradient]), expected)


def decayed(name: str, **changes: object) -> set[str]:
    """Returns the leaves that decay: those that change under a zero gradient."""
    tx, _ = build(name, **changes)
    after = named_leaves(train(tx, [jax.tree.map(jnp.zeros_like, PARAMS)]))
    pairs = zip(named_leaves(PARAMS), after, strict=True)
    return {path for (path, old), (_, new) in pairs if not np.array_equal(old, new)}


KERNELS = {"moe/experts/wi/kernel", "head/kernel"}
SMALL = {"norm/scale", "norm/bias", "head/bias"}


@pytest.mark.parametrize("name", ["lamb", "adamw", "sgd"])
def test_what_decays(name: str):
    decay = {"weight_decay": 0.1}
    assert decayed(name, **decay) == KERNELS | SMALL
    assert decayed(name, **decay, exclude_norm_and_bias=True) == KERNELS
    expert = {"moe/experts/wi/kernel"}
    decay["decay_exclude"] = "head/.*"
    assert decayed(name, **decay) == expert | {"norm/scale", "norm/bias"}
    assert decayed(name, **decay, exclude_norm_and_bias=True) == expert


def test_schedule_and_updates_agree():
    fields = {"end_learning_rate": 0.0, "warmup": "1 epoch", "momentum": 0.0}
    tx, schedule = build("sgd", schedule="linear", **fields, total_steps=4)  # an epoch is two
    np.testing.assert_allclose([float(schedule(s)) for s in range(5)], [0, 0.05, 0.1, 0.05, 0])
    ones = jax.tree.map(jnp.ones_like, PARAMS)
    moved = jax.tree.map(lambda p, q: q - p, PARAMS, train(tx, [ones] * 4))
    assert_close(moved, jax.tree.map(lambda p: jnp.full_like(p, -0.2), PARAMS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "lam"}, "--config.optimizer.name=lamb"),
        ({"schedule": "cosin"}, "--config.optimizer.schedule=cosine"),
        ({"decay_exclude": "head/kernl"}, "the nearest is head/kernel"),
        ({"decay_exclude": "("}, "config.optimizer.decay_exclude: '(' is not"),
        ({"schedule": "linear", "end_learning_rate": 0.2}, "above learning_rate=0.1"),
        ({"learning_rte": 0.1}, "learning_rte is unknown; did you mean learning_rate? config.opt"),
        ({"warmup": 3}, "config.optimizer.warmup=3 is not a duration"),
        ({"warmup": "6 epochs"}, "warmup='6 epochs' is 12 steps, longer than the run"),
        ({"layer_decay": 0.0}, "config.optimizer.layer_decay=0 must be above 0, and 1 (none) at"),
        ({"layer_decay": 1.5}, "config.optimizer.layer_decay=1.5 must be above 0"),
        ({"tied_rate": "visit"}, "--config.optimizer.tied_rate=visits"),
    ],
)
def test_mistakes_say_how_to_fix_them(changes: dict, message: str):
    with pytest.raises(BadInputError) as caught:
        build(**{"name": "lamb"} | changes)
    assert message in str(caught.value)


def test_a_field_that_a_config_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(USUAL, "momentum")
    with pytest.raises(BadInputError, match=r"config\.optimizer\.momentum is missing; set it in"):
        build("sgd")


def test_an_optimizer_of_the_users(monkeypatch: pytest.MonkeyPatch):
    """Lion's first update is -0.1 sign(gradient), and -0.1 0.5 p more where weights decay."""

    def lion(section, schedule, exclude):
        mask = decay_mask(exclude.decay)
        return optax.lion(schedule, weight_decay=section["weight_decay"], mask=mask)

    for make in (lion, functools.partial(lion)):
        monkeypatch.setitem(OPTIMIZERS, "lion", make)
        tx, _ = build("lion", weight_decay=0.5, exclude_norm_and_bias=True)
        found = train(tx, [jax.tree.map(jnp.ones_like, PARAMS)])
        np.testing.assert_allclose(found["head"]["kernel"], [[1 - 0.15, -2 - 0.1 + 0.1]], 1e-6)
        np.testing.assert_allclose(found["norm"]["scale"], [0.9, 1.9], 1e-6)


def own(init, update):
    return lambda *_: optax.GradientTransformation(init, update)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda *_: None, "function returns NoneType; return an optax.GradientTransformation"),
        (lambda section: optax.sgd(1.0), "function fails: TypeError: .*takes 1 positional"),
        (lambda section, *_: section["beta3"], r"function fails: .*, line \d+: KeyError: .*beta3"),
        (own(lambda p: {"name": "mine"}, None), "init fails: .*TypeError: .*type <class 'str'>"),
        (own(lambda p: (), lambda g, s, p: None), r"update must return \(updates, state\)"),
        (own(lambda p: (), lambda g, s, p, *, value: (g, s)), "update fails: .*'value'"),
        (
            own(lambda p: (), lambda g, s, p: (g["head"], s)),
            "update returns updates of another str",
        ),
        (
            own(lambda p: {"n": jnp.int32(0)}, lambda g, s, p: (g, {"n": s["n"] + 0.5})),
            r"update changes state\['n'\] from int32\[\] to float32\[\]",
        ),
    ],
)
def test_an_optimizer_that_no_step_can_run(make, words, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(OPTIMIZERS, "mine", make)
    with pytest.raises(BadInputError, match=f"name=mine: its {words}"):
        build("mine")


IDLE = configs_module("defaults").WITHOUT_EFFECT
OF_NAME = [(k, name) for k, others in IDLE for name in others.get("optimizer.name", ())]


@pytest.mark.slow
@pytest.mark.parametrize(("field", "name"), OF_NAME)
def test_fields_said_to_have_no_effect_have_none(field: str, name: str):
    """Beside the optimizers that the table names; another has one, so that the test can fail."""
    field = field.removeprefix("optimizer.")
    other = "sgd" if field == "momentum" else "muon"
    same = {}
    for of in (name, other):
        made = (build(of, **{field: value})[0] for value in (0.5, 0.25))
        same[of] = jax.tree.map(np.array_equal, *(train(tx, gradients(2)) for tx in made))
    assert all(jax.tree.leaves(same[name])) and not all(jax.tree.leaves(same[other]))
