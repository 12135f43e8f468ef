"""The grammar of loops: order and names of steps, ties, counts; a loop is its steps in a row."""

from functools import partial

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_blocks import MOE, X, shapes

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.build import build_model, count_parameters, parameter_shapes
from widenet_jax.nn.loop import Loop, stretches

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
}  # fmt: skip


def blocks(loop: dict, **changes) -> Blocks:
    fields = {"loop": loop, "attention": {"name": "full", "num_heads": 2}, "ffn": "moe"}
    return Blocks(**fields | {"feed_forwards": {"mlp": {"mlp_dim": 12}, "moe": MOE}} | changes)


def scopes(loop: dict, part: str) -> list[str]:
    found = Loop.of(loop)
    return [dict(step.scopes)[part] for step in found.steps(["mlp"] * found.depth, 1)]


def test_the_order_of_steps_and_the_names_of_their_weights():
    """A layer that runs once is its block's own; of a lone layer the name is the part's."""
    assert scopes({"core": ((1, 3),)}, "attention") == ["attention"] * 3
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


@pytest.mark.parametrize("name", GRAMMAR)
def test_tied_equals_untied_with_copied_weights(name: str):
    """The output; and the gradient of a tied weight is the sum of its copies'."""
    tied = blocks(GRAMMAR[name])
    untied = blocks(GRAMMAR[name] | {"tie": dict.fromkeys(TIED, "none")})
    params = compiled.init(tied, X)
    steps = tied.steps()

    def copied(params: dict) -> dict:
        found = {"norm_out": params["norm_out"]}
        for step in steps:
            for part, scope in step.scopes:
                own = f"block_{step.index:02d}_{step.ffn if part == 'ffn' else part}"
                if part == "router":
                    found[own.replace("router", "moe")] |= {"router": params[scope]}
                else:
                    found[own] = params[scope]
        return found

    def loss(model: Blocks, params: dict) -> jax.Array:
        y, aux, _ = model.apply({"params": params}, X, train=True)
        return (y**2).sum() + aux["loss"].sum()

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
            return (y**2).sum() + aux["loss"].sum(), aux

        return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(params))

    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(compare, run(plain), run(looped))


def test_what_repeats_itself_is_compiled_once():
    """(first, period, repeats): the longest stretch, with the shortest period."""
    assert list(stretches("OOABABABC")) == [(0, 1, 2), (2, 2, 3), (8, 1, 1)]
    assert list(stretches("MMMMMEMMMMME")) == [(0, 6, 2)]
    assert list(stretches("AAABBB")) == [(0, 1, 3), (3, 1, 3)]


def test_options_write_loops():
    def found(text: str) -> dict:
        return model_section(f"vit_tiny,loop={text}")["loop"]

    assert found("2+8x2+3") | {"tie": 0} == {"prelude": 2, "core": ((8, 2),), "coda": 3, "tie": 0}
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
    ],
)
def test_what_is_no_loop_is_refused(changes: dict, words: str):
    with pytest.raises(BadInputError, match=words):
        blocks({"core": ((1, 2),)} | changes).check()


def test_a_router_of_its_own_needs_experts():
    loop = {"core": ((1, 2),), "tie": TIED | {"router": "none"}}
    blocks(loop).check()
    with pytest.raises(BadInputError, match=r"tie\.router=none has no effect on .*ffn=mlp"):
        blocks(loop, ffn="mlp").check()


def test_own_routers_are_counted():
    """Three steps with one set of experts: the routers alone are three, 3 x 64 x 4 weights."""

    def count(router: str) -> int:
        fields = model_section("widenet_tiny")
        fields["loop"]["tie"] = fields["loop"]["tie"] | {"router": router}
        model = build_model(fields, num_classes=10)
        image = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
        return count_parameters(parameter_shapes(model, {"image": image}))

    assert count("none") - count("experts") == 2 * 64 * 4
