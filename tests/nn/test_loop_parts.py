"""What a loop may have: other norms, norms that know the loop, a noisy start, random counts."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from test_blocks import X
from test_loop import TIED, blocks

from widenet_jax.nn.attention.full import MultiHeadAttention
from widenet_jax.nn.loop import draw_loops
from widenet_jax.nn.loop_runs import PieceInputs, run_counted
from widenet_jax.nn.loop_settings import parse_loop
from widenet_jax.nn.mlp import Mlp
from widenet_jax.nn.parts import begin_core

LOOPED = {"prelude": 1, "core": ((2, 2), (1, 3)), "coda": 1, "tie": TIED, "inject": "linear"}


def noisy(params: dict) -> dict:
    """Parameters none of which is 0 or 1 as at first."""
    return jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), params
    )


def test_an_injection_keeps_the_states_scale():
    """W [s; e] of unit states: 2 D terms of variance 2 / (5 D) are 0.8, at any depth."""
    loop = {"prelude": 1, "core": ((1, 30),), "tie": TIED, "inject": "linear"}
    model = blocks(loop, ffn="mlp", kernel_init="pre_norm")
    params = compiled.initial(model, jnp.ones((1, 2, 64)))
    W = params["core_0_start"]["inject"]["kernel"]
    np.testing.assert_allclose(2 * 64 * np.var(W), 0.8, rtol=0.05)


def test_a_sandwich_of_root_mean_square_norms():
    """x = n2(x + A(n1 x)), x = n4(x + F(n3 x)), then the last norm; each a scale alone."""
    model = blocks({"core": ((1, 1),)}, ffn="mlp", norm="rms", norm_position="sandwich")
    params = noisy(compiled.init(model, X))

    def norm(name: str, x: jax.Array) -> jax.Array:
        (scale,) = params[name].values()
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    attention = MultiHeadAttention(2).bind({"params": params["attention"]})
    mlp = Mlp(12).bind({"params": params["mlp"]})
    names = [f"block_00_norm_{part}" for part in ("attention", "attention_out", "ffn", "ffn_out")]
    n1, n2, n3, n4 = names
    x = norm(n2, X + attention(norm(n1, X), train=False)[0])
    x = norm("norm_out", norm(n4, x + mlp(norm(n3, x), train=False).y))
    np.testing.assert_allclose(apply(model, params, X, train=False)[0], x, rtol=2e-5, atol=1e-5)
    assert params.keys() == {"attention", "mlp", "norm_out", *names}


@pytest.mark.parametrize(
    "condition", ["index_state", pytest.param("index", marks=pytest.mark.slow)]
)
def test_norms_that_know_their_loop(condition: str):
    """At first as norms that do not; then n(x) (1 + g) + b, (g, b) = W2 silu(c_k [+ W1 n(x)])."""
    loop = {"core": ((1, 3),), "tie": TIED}
    plain, model = blocks(loop, ffn="mlp"), blocks(loop | {"condition": condition}, ffn="mlp")
    params = compiled.init(model, X)
    for name in ("norm_attention_condition", "norm_ffn_condition"):
        first = model.init(jax.random.key(0), X, train=False)["params"][name]["modulation"]
        assert not first["kernel"].any()
        params[name]["modulation"] = first
    without = {k: v for k, v in params.items() if not k.endswith("condition")}
    y = apply(plain, without, X, train=False)[0]
    np.testing.assert_array_equal(apply(model, params, X, train=False)[0], y)
    assert set(params) - set(without) == {"norm_attention_condition", "norm_ffn_condition"}

    params = noisy(params)
    attention = MultiHeadAttention(2).bind({"params": params["attention"]})
    mlp = Mlp(12).bind({"params": params["mlp"]})

    def norm(name: str, x: jax.Array, k: int | None = None) -> jax.Array:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        y = (x - mean) / jnp.sqrt(variance + 1e-6) * params[name]["scale"] + params[name]["bias"]
        if k is None:
            return y
        of = params[f"{name}_condition"]
        state = y @ of["state"]["kernel"] if condition == "index_state" else 0
        g, b = jnp.split(
            jax.nn.silu(of["embedding"][k] + state) @ of["modulation"]["kernel"], 2, axis=-1
        )
        return y * (1 + g) + b

    x = X
    for k in range(3):
        x = x + attention(norm("norm_attention", x, k), train=False)[0]
        x = x + mlp(norm("norm_ffn", x, k), train=False).y
    y = apply(model, params, X, train=False)[0]
    np.testing.assert_allclose(y, norm("norm_out", x), rtol=1e-4, atol=1e-4)


def test_a_core_that_begins_with_noise():
    """The same in each evaluation, another with each key of training; std sqrt(2/5)."""
    model = blocks(LOOPED | {"start": "noise"}, ffn="mlp")
    noise = begin_core(model, jnp.zeros((4, 50, 64)), train=False)
    np.testing.assert_allclose(float(noise.std()), 0.6325 * 0.9866, rtol=0.02)  # cut at 3 std
    np.testing.assert_array_equal(noise[0], noise[3])  # of an example alike in all batches
    params = compiled.init(model, X)
    two = [apply(model, params, X, train=False)[0] for _ in range(2)]
    np.testing.assert_array_equal(*two)
    rngs = [{"router": jax.random.key(i)} for i in range(2)]
    two = [model.apply({"params": params}, X, train=True, rngs=of)[0] for of in rngs]
    assert not np.allclose(*two)


@pytest.mark.parametrize(
    ("train", "loops"),
    [
        pytest.param("poisson", 3, marks=pytest.mark.slow),
        pytest.param("poisson", 1, marks=pytest.mark.slow),
        pytest.param("grow", 3, marks=pytest.mark.slow),
        pytest.param("grow", 1, marks=pytest.mark.slow),
    ],
)
def test_as_many_loops_as_the_step_says(train: str, loops: int):
    """Output, losses and gradient are those of a model with so many loops."""
    counts = {"train": train, "backprop_last": 4}
    ffn = "mlp" if loops == 3 and train == "poisson" else "moe"
    looped = LOOPED
    if (train, loops) == ("grow", 3):  # all loops, whose numbers norms and vectors know
        looped = LOOPED | {"condition": "index", "embed": True}
    model = blocks(looped | {"counts": counts}, norm_position="sandwich", ffn=ffn)
    params = compiled.init(model, X)

    def value(model, params: dict, loops: int | None) -> jax.Array:
        loops = None if loops is None else jnp.int32(loops)
        y, aux, _ = model.apply({"params": params}, X, loops=loops, train=True)
        return (y**3).sum() + 100 * (aux["loss"].sum() if aux else 0)

    def both(model, params: dict, loops: int | None) -> tuple:
        of = jax.value_and_grad(lambda params: value(model, params, loops))
        return jax.jit(of)(params)

    core = ((2, loops if train == "poisson" else min(loops, 2)), (1, loops))
    same = blocks(looped | {"core": core}, norm_position="sandwich", ffn=ffn)
    last, end = f"block_{same.depth - 1:02d}_", f"block_{model.depth - 1:02d}_"
    names = {name: name.replace(last, end) for name in compiled.init(same, X)}
    if loops == 1:  # a group of one loop has its blocks' names
        ends = ("core_0_0_", "core_0_1_", "core_1_0_")
        for index, scope in enumerate(ends, start=1):
            names |= {n: n.replace(f"block_0{index}_", scope) for n in names if f"0{index}_" in n}
        names |= {n: n.replace("block_04_", end) for n in names if "block_04_" in n}
    own = {name: params[ours] for name, ours in names.items()}
    expected, grads = both(same, own, None)
    found, found_grads = both(model, params, loops)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for name, ours in names.items():
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3),
            found_grads[ours],
            grads[name],
        )


def test_gradients_of_the_last_loops_alone():
    """Five loops, the last two with a gradient: e and the weights are constants before."""
    loop = {"prelude": 1, "core": ((1, 2),), "coda": 0, "tie": TIED, "inject": "linear"}
    model = blocks(loop | {"counts": {"train": "poisson", "backprop_last": 2}}, ffn="mlp")
    params = noisy(compiled.init(model, X))
    first, step, _ = model.steps()

    def run(params: dict, step, x: jax.Array, entry: jax.Array | None) -> jax.Array:
        piece = model.clone(some_steps=(step.within(step.index),), last_norm=False)
        variables = {"params": params}
        return piece.apply(variables, x, entry=entry, loop_numbers=jnp.zeros(1, int), train=True)[0]

    def expected(params: dict) -> jax.Array:
        entry = run(params, first, X, None)
        stop = jax.lax.stop_gradient
        x = entry
        for k in range(5):
            silent = k < 3
            x = (
                run(stop(params), step, stop(x), stop(entry))
                if silent
                else run(params, step, x, entry)
            )
        norm = params["norm_out"]
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return ((x * norm["scale"] + norm["bias"]) ** 3).sum()

    def found(params: dict) -> jax.Array:
        return (model.apply({"params": params}, X, loops=jnp.int32(5), train=True)[0] ** 3).sum()

    two = [jax.jit(jax.value_and_grad(f))(params) for f in (expected, found)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3), *two)


def test_no_two_pieces_draw_the_same_noise():
    """Two groups of one piece, 3 loops each; 5 are drawn, with gradients through all."""

    def run(x, inputs, *, learns=True):
        return x, jnp.array([[row.index for row in inputs]])

    def indices(first: int) -> list[int]:
        row = [PieceInputs({}, None, first, jnp.zeros(1, jnp.int32))]
        beyond = (3, (first + 1) << 16)
        return run_counted(run, jnp.zeros(1), row, jnp.int32(5), 6, beyond)[1][0].ravel().tolist()

    found = [indices(first)[:5] for first in (0, 3)]
    assert [row[:3] for row in found] == [[0, 1, 2], [3, 4, 5]]
    assert len({index for row in found for index in row}) == 10


def test_how_many_loops_are_drawn():
    """Poisson(e^tau) + 1 has the mean m + 1; growing goes through 1 to 4 in equal stages."""
    loop = {"core": ((1, 4),), "tie": TIED}
    poisson = parse_loop(loop | {"counts": {"train": "poisson", "mean": 6}})
    drawn = jax.vmap(lambda key: draw_loops(poisson, key, 0.0))(
        jax.random.split(jax.random.key(0), 4000)
    )
    np.testing.assert_allclose(drawn.mean(), 7, atol=0.25)
    assert drawn.min() >= 1
    grow = parse_loop(loop | {"counts": {"train": "grow"}})
    key, steps = jax.random.key(0), np.arange(100) / 100
    assert [int(draw_loops(grow, key, p)) for p in steps[::20]] == [1, 1, 2, 3, 4]
    counts = np.bincount([int(draw_loops(grow, key, p)) for p in steps])
    assert counts.tolist() == [0, 25, 25, 25, 25]


def test_loops_that_take_the_experts_of_the_first():
    """A core of one layer: as one routing group; of two layers each follows its own first loop."""
    loop = {"core": ((1, 3),), "tie": TIED}
    forced, grouped = blocks(loop | {"routing": "first"}), blocks(loop, routing_groups=1)
    params = compiled.init(grouped, X)
    y, aux, _ = apply(forced, params, X, train=False)
    expected, aux_of_group, _ = apply(grouped, params, X, train=False)
    np.testing.assert_array_equal(y, expected)
    assert aux["loss"].shape == aux_of_group["loss"].shape == (1,)
    steps = blocks({"prelude": 1, "core": ((2, 3),), "tie": TIED, "routing": "first"}).steps()
    assert [step.follows for step in steps] == [None, None, None, 1, 2, 1, 2]
