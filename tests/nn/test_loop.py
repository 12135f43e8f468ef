"""The grammar of loops: order and names of steps, ties, counts; a loop is its steps in a row."""

from functools import partial

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from test_blocks import MOE, X, shapes

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.attention.full import MultiHeadAttention
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.build import build_model, count_parameters, parameter_shapes
from widenet_jax.nn.loop import Loop, stretches
from widenet_jax.nn.mlp import Mlp

TIED = {"attention": "loops", "experts": "loops", "router": "experts", "norms": "loops"}
# The grammar's table: a prelude, core and coda, and ties.
GRAMMAR = {
    "widenet": {"core": ((1, 3),), "tie": TIED | {"norms": "none"}},
    "moeut": {"core": ((2, 2),), "tie": TIED},
    "expert tying": {"prelude": 1, "core": ((1, 2), (1, 2)), "coda": 1,
                     "tie": TIED | {"attention": "none", "router": "none", "norms": "none"}},
    "sandwich": {"prelude": 1, "core": ((2, 2),), "coda": 1, "tie": TIED},
    "one of experts": {"core": ((2, 2),), "tie": TIED | {"experts": "core", "router": "loops"}},
    "ABCBA": {"core": (("ABCBA", 1),), "tie": TIED},
    "everything": {"prelude": 1, "core": ((2, 2),), "coda": 1, "tie": TIED, "inject": "linear",
                   "start": "zeros", "embed": True, "state_norm": True,
                   "residual_scale": "1/(loops*sqrt(layers))"},
}  # fmt: skip


def blocks(loop: dict, **changes) -> Blocks:
    fields = {"loop": loop, "attention": {"name": "full", "num_heads": 2}, "ffn": "moe"}
    return Blocks(**fields | {"feed_forwards": {"mlp": {"mlp_dim": 12}, "moe": MOE}} | changes)


def scopes(loop: dict, part: str) -> list[str]:
    found = Loop.of(loop)
    return [dict(step.scopes)[part] for step in found.steps(["mlp"] * found.depth, 1)]


def test_the_order_of_steps_and_the_names_of_their_weights():
    """A layer that runs once is its block's own; a lone layer's parts have their plain names."""
    assert scopes({"core": ((1, 3),)}, "attention") == ["attention"] * 3
    assert scopes({"core": ((1, 1),)}, "attention") == ["attention"]
    assert scopes({"core": ((2, 1),)}, "attention") == ["block_00_attention", "block_01_attention"]
    assert scopes({"prelude": 1, "core": ((2, 2), (1, 1))}, "ffn") == [
        "block_00_mlp", "core_0_0_mlp", "core_0_1_mlp", "core_0_0_mlp", "core_0_1_mlp",
        "block_05_mlp",
    ]  # fmt: skip
    assert scopes({"core": (("ABCBA", 1),)}, "ffn") == [
        "core_0_0_mlp", "core_0_1_mlp", "block_02_mlp", "core_0_1_mlp", "core_0_0_mlp",
    ]  # fmt: skip
    everywhere = {"core": ((2, 2),), "coda": 1, "tie": TIED | {"experts": "core"}}
    assert scopes(everywhere, "ffn") == ["mlp"] * 4 + ["block_04_mlp"]
    assert set(scopes({"core": ((2, 2),)}, "norm_ffn")) == {
        f"block_0{i}_norm_ffn" for i in range(4)
    }


IN_SHORT = ("one of experts",)  # the default suite's


@pytest.mark.parametrize(
    "name", [n if n in IN_SHORT else pytest.param(n, marks=pytest.mark.slow) for n in GRAMMAR]
)
def test_tied_equals_untied_with_copied_weights(name: str):
    """The output; and the gradient of a tied weight is the sum of its copies'."""
    tied = blocks(GRAMMAR[name])
    untied = blocks(GRAMMAR[name] | {"tie": dict.fromkeys(TIED, "none")})
    params = compiled.init(tied, X)
    steps = tied.steps()

    def copied(params: dict) -> dict:
        tied = {scope for step in steps for _, scope in step.scopes}
        found = {name: of for name, of in params.items() if name not in tied}
        for step in steps:
            for part, scope in step.scopes:
                own = f"block_{step.index:02d}_{step.ffn if part == 'ffn' else part}"
                if part == "router":
                    found[own.replace("router", "moe")] |= {"router": params[scope]}
                else:
                    found[own] = dict(params[scope])
        return found

    def loss(model: Blocks, params: dict) -> jax.Array:
        y, aux, _ = model.apply({"params": params}, X, train=True)
        return (y**3).sum() + aux["loss"].sum()

    value, grads = jax.jit(jax.value_and_grad(partial(loss, tied)))(params)
    through = jax.jit(jax.value_and_grad(lambda p: loss(untied, copied(p))))(params)
    assert jax.tree.structure(shapes(untied)) == jax.tree.structure(copied(params))
    np.testing.assert_allclose(value, through[0], rtol=2e-5)
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, grads, through[1])


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in GRAMMAR])
def test_a_compiled_loop_and_recomputation_change_nothing(name: str):
    plain = blocks(GRAMMAR[name])
    looped = blocks(GRAMMAR[name], unroll=False, remat="block")
    params = compiled.init(plain, X)

    def run(model: Blocks):
        def loss(params: dict):
            y, aux, _ = model.apply({"params": params}, X, train=True)
            return (y**3).sum() + aux["loss"].sum(), aux

        return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(params))

    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(compare, run(plain), run(looped))


@pytest.mark.parametrize("inject", ["linear", pytest.param("add", marks=pytest.mark.slow)])
def test_a_loop_by_parts(inject: str):
    """P, then A B twice, then Q, written out with the modules' own parameters."""
    loop = {"prelude": 1, "core": ((2, 2),), "coda": 1, "tie": TIED, "inject": inject}
    loop |= {"start": "zeros", "embed": True, "state_norm": True, "residual_scale": "1/loops"}
    model = blocks(loop, ffn="mlp", last_norm=False)
    # Vectors of the loops and scales of norms that are not 0 and 1.
    noisy = lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)  # noqa: E731
    params = jax.tree.map(noisy, compiled.init(model, X))

    def norm(of: dict, x: jax.Array) -> jax.Array:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-6) * of["scale"] + of["bias"]

    def block(name: str, x: jax.Array, scale: float) -> jax.Array:
        of = {k.removeprefix(name): v for k, v in params.items() if k.startswith(name)}
        attention = MultiHeadAttention(2).bind({"params": of["attention"]})
        x = x + scale * attention(norm(of["norm_attention"], x), train=False)[0]
        mlp = Mlp(12).bind({"params": of["mlp"]})
        return x + scale * mlp(norm(of["norm_ffn"], x), train=False).y

    e = block("block_00_", X, 1)
    s = jnp.zeros_like(X)
    start = params["core_0_start"]
    for k in range(2):
        if inject == "add":
            s = s + e
        else:
            s = jnp.concatenate([s, e], axis=-1) @ start["inject"]["kernel"]
        s = s + start["embedding"][k]
        s = block("core_0_1_", block("core_0_0_", s, 0.5), 0.5)
        s = norm(params["core_0_norm_state"], s)
    y, *_ = apply(model, params, X, train=False)
    np.testing.assert_allclose(y, block("block_05_", s, 1), rtol=1e-4, atol=1e-4)


def test_what_repeats_itself_is_compiled_once():
    """(first, period, repeats): the longest stretch, with the shortest period."""
    assert list(stretches("OOABABABC")) == [(0, 1, 2), (2, 2, 3), (8, 1, 1)]
    assert list(stretches("MMMMMEMMMMME")) == [(0, 6, 2)]
    assert list(stretches("AAABBB")) == [(0, 1, 3), (3, 1, 3)]


def test_options_write_loops():
    def found(text: str) -> dict:
        return model_section(f"vit_tiny,loop={text}")["loop"]

    assert found("2+8x2+3").items() >= {"prelude": 2, "core": ((8, 2),), "coda": 3}.items()
    assert found("1x6+1x6")["core"] == ((1, 6), (1, 6))
    assert found("ABCBAx1")["core"] == (("ABCBA", 1),)
    for text in ("3", "1x2+3+1x2", "Ax", "x3"):
        with pytest.raises(BadInputError, match=r"PRELUDE\+LAYERSxLOOPS\+CODA"):
            found(text)
    with pytest.raises(BadInputError, match="option depth has no effect beside loop"):
        model_section("vit_tiny,loop=3x3,depth=2")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"core": ()}, r"core=\(\): give \(layers, loops\) of each group"),
        ({"core": ((0, 3),)}, r"core=\(\(0, 3\),\): give"),
        ({"core": (("A1", 3),)}, "or letters for layers"),
        ({"core": ((10**9, 1),)}, "give"),
        ({"core": ((1000, 1000),)}, "the number of steps=1000000 must be between 1 and 1024"),
        ({"prelude": -1}, "prelude=-1 must be between 0 and"),
        ({"tie": {"attention": "all"}}, "loop.tie.attention='all' is unknown; choose one of none"),
        ({"tie": {"head": "none"}}, "loop.tie.head is unknown"),
        ({"loops": 3}, "loop.loops is unknown"),
        ({"counts": {"eval": 3}}, "counts.eval=3 needs the same weights .*tie.norms is none"),
        ({"counts": {"eval": 3}, "tie": TIED, "embed": True}, "embed=True knows 2 loops and no"),
        ({"counts": {"train": "grow"}}, "counts.train=grow needs the same weights"),
        ({"counts": {"train": "grow"}, "tie": TIED, "core": ((2, 1),)}, "no group of the core"),
        ({"counts": {"train": "poisson"}, "tie": TIED, "condition": "index"}, "knows 2 loops"),
        ({"counts": {"train": "all"}}, "counts.train='all' is unknown"),
        ({"counts": {"max": 3}}, "loop.counts.max is unknown"),
        ({"condition": "index"}, "condition=index needs config.model.loop.tie.norms=loops or core"),
        ({"start": "noise"}, "start=noise needs config.model.loop.inject=add or linear"),
        ({"inject": "mix"}, "loop.inject='mix' is unknown"),
        ({"start": "zeros"}, "start=zeros needs config.model.loop.inject=add or linear"),
        ({"residual_scale": "2"}, "loop.residual_scale='2' is unknown"),
    ],
)
def test_what_is_no_loop_is_refused(changes: dict, words: str):
    with pytest.raises(BadInputError, match=words):
        blocks({"core": ((1, 2),)} | changes).check()


def test_evaluation_with_other_loops():
    """Trained with two loops, evaluated with four: as a model of four loops with these weights."""
    loop = {"prelude": 1, "core": ((2, 2), (1, 1)), "coda": 1, "tie": TIED, "inject": "add"}
    trained = blocks(loop, ffn="mlp")
    params = compiled.init(trained, X)
    four = blocks(loop | {"core": ((2, 4), (1, 1))}, ffn="mlp")
    moved = {"block_05_": "block_09_", "block_06_": "block_10_"}  # after the core's loops
    renamed = {moved.get(name[:9], name[:9]) + name[9:]: of for name, of in params.items()}
    y, *_ = apply(four, renamed, X, train=False)
    for more in ({}, {"unroll": False, "remat": "block"}):
        other = blocks(loop | {"counts": {"eval": 4}}, ffn="mlp", **more)
        np.testing.assert_allclose(apply(other, params, X, train=False)[0], y, rtol=1e-5)
        two = [apply(model, params, X, train=True)[0] for model in (other, trained)]
        np.testing.assert_allclose(*two, rtol=1e-4, atol=1e-5)


def test_the_entry_must_be_whole():
    with pytest.raises(BadInputError, match="between the prelude of 1 and the core; choose"):
        blocks({"prelude": 1, "core": ((1, 2),), "coda": 1}, routing_groups=2).check()


def test_a_router_of_its_own_needs_experts():
    loop = {"core": ((1, 2),), "tie": TIED | {"router": "none"}}
    blocks(loop).check()
    with pytest.raises(BadInputError, match=r"tie\.router=none has no effect on .*ffn=mlp"):
        blocks(loop, ffn="mlp").check()


def test_dense_blocks_have_no_router():
    loop = {"core": ((2, 2),), "tie": TIED | {"router": "none"}}
    steps = blocks(loop, ffn_blocks=(1, 3)).steps()
    assert ["router" in dict(step.scopes) for step in steps] == [False, True, False, True]


@pytest.mark.parametrize(
    ("name", "loop"),
    [
        ("counts.eval=2", {"counts": {"eval": 2}}),
        ("counts.train=grow", {"counts": {"train": "grow"}}),
        ("routing=first", {"routing": "first"}),
    ],
)
def test_loops_with_other_feed_forwards_stand_for_no_others(name: str, loop: dict):
    loop = {"core": ((2, 2),), "tie": TIED} | loop
    blocks(loop, ffn_blocks="every_2").check()  # in each loop the second of two
    with pytest.raises(BadInputError, match=f"{name} needs the same feed-forwards in each loop"):
        blocks(loop, ffn_blocks="last_1").check()


def test_own_routers_are_counted():
    """Three steps with one set of experts: the routers alone are three, 3 x 64 x 4 weights."""

    def count(router: str) -> int:
        fields = model_section("widenet_tiny")
        fields["loop"]["tie"] = fields["loop"]["tie"] | {"router": router}
        model = build_model(fields, num_classes=10)
        image = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
        return count_parameters(parameter_shapes(model, {"image": image}))

    assert count("none") - count("experts") == 2 * 64 * 4
