"""The grammar of loops: order and names of steps, ties, counts; a loop is its steps in a row."""

import json
import pickle
from functools import partial

import compiled
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, equations_in
from ml_collections import ConfigDict
from test_blocks import MOE, X, shapes

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.attention.full import MultiHeadAttention
from widenet_jax.nn.block_settings import BlockSettings
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.build import build_model, count_parameters, parameter_shapes, traced_once
from widenet_jax.nn.loop import steps_of
from widenet_jax.nn.loop_runs import stretches_of
from widenet_jax.nn.loop_settings import parse_loop
from widenet_jax.nn.mlp import Mlp
from widenet_jax.nn.module import build
from widenet_jax.nn.parts import NORMS

TIED = {"attention": "loops", "experts": "loops", "router": "experts", "norms": "loops"}
OWN_NORMS = TIED | {"norms": "none"}
FULL = {"name": "full", "num_heads": 2}
SWITCH_HEAD = {"name": "switch_head", "num_heads": 2, "num_experts": 3, "rope": 0.5}
SIGMOID = {"router": {"name": "sigmoid"}, "capacity_rule": "unlimited"}
TYING_PARTS = {
    "norm": "rms",
    "attention": FULL | {"qk_norm": True},
    "experts": {"activation": "swiglu"},
}
TYING = {"prelude": 1, "core": ((1, 2), (1, 2)), "coda": 1}
HUGINN = {"inject": "linear", "start": "noise", "state_norm": True}
# Models of docs/howto/loops.md at a small size: the weights of each step, a letter for each set, of
# all parts, or of attention, experts, router and norms; the loop; and what else their blocks have.
GRAMMAR = {
    "ViT, BERT": ("ABC", {"core": ((3, 1),), "tie": TIED}, {"ffn": "mlp"}),
    "ViT-MoE": ("ABC", {"core": ((3, 1),), "tie": TIED}, {"ffn_blocks": (1,)}),
    "WideNet": ("AAA AAA AAA ABC", {"core": ((1, 3),), "tie": OWN_NORMS}, {}),
    "ALBERT": ("AAA", {"core": ((1, 3),), "tie": TIED}, {"ffn": "mlp", "norm_position": "post"}),
    "bViT": ("AAA", {"core": ((1, 3),), "tie": TIED}, {"ffn": "mlp"}),
    "MoEUT": ("ABAB", {"core": ((2, 2),), "tie": TIED},
              {"norm_position": "peri", "attention": SWITCH_HEAD, "experts": SIGMOID}),
    "tying, all": ("ABBCCD ABBCCD ABBCCD ABCDEF", TYING | {"tie": OWN_NORMS}, TYING_PARTS),
    "tying, own routers": (
        "ABBCCD ABBCCD ABCDEF ABCDEF",
        TYING | {"tie": OWN_NORMS | {"router": "none"}}, TYING_PARTS),
    "tying, experts alone": (
        "ABCDEF ABBCCD ABCDEF ABCDEF",
        TYING | {"tie": OWN_NORMS | {"attention": "none", "router": "none"}}, TYING_PARTS),
    "Sparse Layers": ("ABCABC", {"core": ((3, 2),), "tie": TIED}, {}),
    "SMELT": ("ABCBCD", {"prelude": 1, "core": ((2, 2),), "coda": 1, "tie": TIED,
               "residual_scale": "1/loops"}, {}),
    "LoopMoE": ("ABBC", {"prelude": 1, "core": ((1, 2),), "coda": 1, "tie": TIED,
                 "condition": "index_state"}, {}),
    "Huginn": ("ABCBCD", {"prelude": 1, "core": ((2, 2),), "coda": 1, "tie": TIED} | HUGINN,
               {"ffn": "mlp", "norm": "rms", "norm_position": "sandwich"}),
    "3x3": ("ABCABCABC", {"core": ((3, 3),), "tie": TIED}, {"ffn": "mlp"}),
    "AABB": ("AABB", {"core": ((1, 2), (1, 2)), "tie": TIED}, {}),
    "ABCBA": ("ABCBA", {"core": (("ABCBA", 1),), "tie": TIED}, {}),
    "one set of experts": (
        "ABAB AAAA ABAB ABAB",
        {"core": ((2, 2),), "tie": TIED | {"experts": "core", "router": "loops"}}, {}),
    "all": ("ABCBCD", {"prelude": 1, "core": ((2, 2),), "coda": 1, "tie": TIED, "inject": "linear",
             "start": "zeros", "embed": True, "state_norm": True,
             "residual_scale": "1/(loops*sqrt(layers))"}, {}),
}  # fmt: skip


def blocks(loop: dict, *, experts: dict | None = None, **changes) -> Blocks:
    fields = {"loop": parse_loop(loop), "attention": FULL, "ffn": "moe"}
    sections = {"mlp": {"mlp_dim": 12}, "moe": MOE | (experts or {})}
    return Blocks(**fields | {"feed_forwards": sections} | changes)


def in_table(name: str, loop: dict | None = None, **changes) -> Blocks:
    """Returns a model of the table, with its loop or its blocks changed."""
    _, its_loop, its_blocks = GRAMMAR[name]
    return blocks(its_loop | (loop or {}), **its_blocks | changes)


def vision_model(changes: dict) -> nn.Module:
    """Builds a small WideNet of three loops, with other fields."""
    section = ConfigDict(model_section("widenet_tiny"), type_safe=False)
    section.update_from_flattened_dict(changes)
    return build_model(section, num_classes=10)


def scopes(loop: dict, part: str) -> list[str]:
    settings = parse_loop(loop)
    return [dict(step.scopes)[part] for step in steps_of(settings, ["mlp"] * settings.depth)]


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


@pytest.mark.parametrize("name", GRAMMAR)
def test_which_steps_share_weights(name: str):
    """By hand, in letters; a router without a tie of its own goes with its experts."""
    letters = GRAMMAR[name][0].split()
    attention, experts, router, norms = letters * (4 // len(letters))
    expected = {"attention": attention, "ffn": experts, "router": router}
    steps = [dict(step.scopes) for step in in_table(name).steps()]
    expected |= {part: norms for part in steps[0] if part.startswith("norm")}
    for part, letters in expected.items():
        found = [step.get(part, step["ffn"]) for step in steps]
        order = list(dict.fromkeys(found))
        assert "".join("ABCDEF"[order.index(scope)] for scope in found) == letters, part


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in GRAMMAR]
SOME = [
    n if n == "one set of experts" else pytest.param(n, marks=pytest.mark.slow) for n in GRAMMAR
]


ALL_DIFFERENT = ("ViT-MoE", "ABCBA")  # no block is as the one before, no two as the two before


def loss_of(model: Blocks, params: dict) -> jax.Array:
    y, aux, _ = model.apply({"params": params}, X, train=True)
    return (y**3).sum() + (aux["loss"].sum() if aux else 0)


@pytest.mark.parametrize("name", SOME)
def test_tied_equals_untied_with_copied_weights(name: str):
    """The output; and the gradient of a tied weight is the sum of its copies'.

    Norms that know their loop stay tied: without, they know none.
    """
    tied, loop = in_table(name), GRAMMAR[name][1]
    ties = dict.fromkeys(TIED, "none") | ({"norms": "loops"} if "condition" in loop else {})
    untied = in_table(name, loop={"tie": ties})
    params = compiled.init(tied, X)
    pairs = [
        (part, scope, dict(own.scopes).get(part))
        for step, own in zip(tied.steps(), untied.steps(), strict=True)
        for part, scope in step.scopes
    ]

    def copied(params: dict) -> dict:
        """A router of its own moves into its step's experts."""
        found = {name: of for name, of in params.items() if name not in {s for _, s, _ in pairs}}
        found |= {own: dict(params[scope]) for _, scope, own in pairs if own}
        for step, own in zip(tied.steps(), untied.steps(), strict=True):
            if "router" in dict(step.scopes):
                router = {"router": params[dict(step.scopes)["router"]]}
                found[dict(own.scopes)["ffn"]] |= router
        return found

    value, grads = jax.jit(jax.value_and_grad(partial(loss_of, tied)))(params)
    through = jax.jit(jax.value_and_grad(lambda p: loss_of(untied, copied(p))))(params)
    assert jax.tree.structure(shapes(untied)) == jax.tree.structure(copied(params))
    np.testing.assert_allclose(value, through[0], rtol=2e-5)
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(compare, grads, through[1])


class Row(BlockSettings):
    """Blocks in a row, each with parts of its own: the plain stack, without steps and scopes."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        def norm(name: str, x: jax.Array) -> jax.Array:
            return NORMS[self.norm](epsilon=self.norm_epsilon, name=name)(x)

        place = self.norm_position
        before, after = place != "post", {"post": "", "sandwich": "_out"}.get(place)
        for i, kind in enumerate(self.ffn_names()):
            block = f"block_{i:02d}_"
            y = norm(f"{block}norm_attention", x) if before else x
            others = {"values": x} if place == "peri" else {}
            x = x + build(self.attention, name=f"{block}attention")(y, **others, train=train)[0]
            x = x if after is None else norm(f"{block}norm_attention{after}", x)
            y = norm(f"{block}norm_ffn", x) if before else x
            y, others = (x, {"selection": y}) if place == "peri" else (y, {})
            x = (
                x
                + build(self.feed_forwards[kind], name=f"{block}{kind}")(y, **others, train=train).y
            )
            x = x if after is None else norm(f"{block}norm_ffn{after}", x)
        return norm("norm_out", x) if before else x


@pytest.mark.parametrize("name", SLOW)
def test_a_core_that_runs_once_is_the_plain_stack(name: str):
    """Weights and output are those of blocks in a row, to the bit, where nothing is added.

    What is added to loops and does not depend on their number (injection, state norms, conditioned
    norms, the factor by layers) is taken away; so are weights tied over layers.
    """
    loop = GRAMMAR[name][1]
    off = {"inject": "none", "start": "prelude", "embed": False, "state_norm": False}
    off |= {"condition": "none", "tie": loop["tie"] | {"experts": "loops"}}
    off |= {"residual_scale": "1"} if "sqrt" in loop.get("residual_scale", "") else {}
    orders = [len(set(n)) if isinstance(n, str) else n for n, _ in loop["core"]]
    once = in_table(name, loop=off | {"core": tuple((n, 1) for n in orders)})
    row = Row(once.settings)
    rng = np.random.default_rng(1)  # no two norms are alike

    def noisy(x: jax.Array) -> jax.Array:
        return x + jnp.asarray(rng.normal(scale=0.3, size=x.shape), x.dtype)

    params = jax.tree.map(noisy, compiled.init(row, X))
    ours = {"norm_out": params["norm_out"]} if "norm_out" in params else {}
    for step in once.steps():  # a lone layer's parts have their plain names
        of, block = dict(step.scopes), f"block_{step.index:02d}_"
        router = of.pop("router", None)
        found = {part: params[block + (step.ffn if part == "ffn" else part)] for part in of}
        if router:  # of its own: in a row it is its experts'
            found["ffn"] = dict(found["ffn"])
            ours[router] = found["ffn"].pop("router")
        ours |= {of[part]: weights for part, weights in found.items()}
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, compiled.init(once, X))
    y, *_ = apply(once, ours, X, train=False)
    np.testing.assert_array_equal(y, apply(row, params, X, train=False))


@pytest.mark.parametrize("name", SLOW)
def test_a_compiled_loop_and_recomputation_change_nothing(name: str):
    """Every model but those of `ALL_DIFFERENT` has a loop in its program."""
    plain, looped = in_table(name), in_table(name, unroll=False, remat="block")
    params = compiled.init(plain, X)
    for model, compact in ((plain, False), (looped, True)):
        program = jax.make_jaxpr(partial(loss_of, model))(params)
        found = {eqn.primitive.name for eqn in equations_in(program.jaxpr)}
        assert ("scan" in found) == (compact and name not in ALL_DIFFERENT)
        assert "remat2" in found or not compact
    two = [
        jax.jit(jax.value_and_grad(partial(loss_of, model)))(params) for model in (plain, looped)
    ]

    def compare(actual: jax.Array, desired: jax.Array) -> None:
        # Sums round by their largest entries; processors differ in the order.
        atol = max(1e-4, 1e-5 * float(jnp.abs(desired).max()))
        np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=atol)

    jax.tree.map(compare, *two)


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
    assert list(stretches_of("OOABABABC")) == [(0, 1, 2), (2, 2, 3), (8, 1, 1)]
    assert list(stretches_of("MMMMMEMMMMME")) == [(0, 6, 2)]
    assert list(stretches_of("AAABBB")) == [(0, 1, 3), (3, 1, 3)]


@pytest.mark.parametrize(
    ("core", "coda", "groups", "routers"),
    [
        (((2, 3),), 0, 2, ["core_0_0_moe", "core_0_1_moe"]),  # of A B A | B A B both route
        (((3, 4),), 0, 3, ["core_0_0_moe", "core_0_1_moe", "core_0_2_moe"]),
        (((1, 4),), 2, 2, ["moe"]),  # the coda follows the last of the core
    ],
)
def test_layers_have_a_router_where_one_of_their_steps_routes(core, coda, groups, routers):
    model = blocks({"core": core, "coda": coda}, routing_groups=groups)
    init = partial(model.init, jax.random.key(0), X, train=False)
    with nn.intercept_methods(traced_once()):
        shared = jax.eval_shape(init)
    for made in (jax.eval_shape(init), shared):
        assert sorted(k for k, of in made["params"].items() if "router" in of) == routers
        jax.eval_shape(partial(model.apply, train=False), made, X)


def test_options_write_loops():
    def found(text: str) -> dict:
        return model_section(f"vit_tiny,loop={text}")["loop"]

    assert found("2+8x2+3").items() >= {"prelude": 2, "core": ((8, 2),), "coda": 3}.items()
    assert found("1x6+1x6")["core"] == ((1, 6), (1, 6))
    assert found("ABCBAx1")["core"] == (("ABCBA", 1),)
    for text in ("3", "1x2+3+1x2", "Ax", "x3", "0x3", "3x0"):
        with pytest.raises(BadInputError, match=r"PRELUDE\+LAYERSxLOOPS\+CODA"):
            found(text)
        with pytest.raises(BadInputError, match=r"PRELUDE\+LAYERSxLOOPS\+CODA"):
            model_section(f"moeut_44m,loop={text}")  # whose losses are divided by the steps
    with pytest.raises(BadInputError, match="option depth has no effect beside loop"):
        model_section("vit_tiny,loop=3x3,depth=2")


GROW = {"loop.counts.train": "grow", "loop.tie.norms": "loops"}
FIRST = {"loop.routing": "first"}
MORE = {"loop.counts.eval": 4, "loop.tie.norms": "loops"}
TWICE = {"loop.core": ((2, 2),)}
ALIKE = "needs the same feed-forwards in each loop of a group; config.model.ffn_blocks=last_1 gives"
# Changes of a WideNet of three loops, and what is told of them.
REFUSED = (
    ({"loop.core": ()}, "loop.core=(): give (layers, loops) of each group, both from 1 to 1024"),
    ({"loop.core": None}, "loop.core=None: give (layers, loops)"),
    ({"loop.core": ((0, 3),)}, "loop.core=((0, 3),): give"),
    ({"loop.core": (("A1", 3),)}, "loop.core=(('A1', 3),): give"),
    ({"loop.core": ((True, 1),)}, "loop.core=((True, 1),): give"),
    ({"loop.core": ((10**9, 1),)}, 'or letters for layers: (("ABCBA", 1),)'),
    ({"loop.core": ((2, 2000),)}, "loop.core=((2, 2000),): give"),
    ({"loop.core": ((1000, 1000),)}, "the number of steps=1000000 must be between 1 and 1024"),
    ({"loop.prelude": -1}, "loop.prelude=-1 must be between 0 and 1024"),
    ({"loop.counts.sigma": 5.0}, "loop.counts.sigma=5.0 must be between 0 and 4"),
    ({"loop.loops": 3}, "loop.loops is unknown"),
    ({"loop.tie.head": "none"}, "loop.tie.head is unknown; config.model.loop.tie may have att"),
    ({"loop.counts.max": 3}, "loop.counts.max is unknown"),
    ({"loop.tie.attention": "all"}, "loop.tie.attention='all' is unknown; choose one of none"),
    ({"loop.tie.router": "all"}, "choose one of none, loops, core, experts"),
    ({"loop.counts.train": "all"}, "loop.counts.train='all' is unknown"),
    ({"loop.inject": "mix"}, "loop.inject='mix' is unknown"),
    ({"loop.residual_scale": "2"}, "loop.residual_scale='2' is unknown"),
    ({"loop.exit.loss": "first"}, "loop.exit.loss='first' is unknown"),
    ({"loop.start": "noise"}, "loop.start=noise needs config.model.loop.inject=add or linear; wi"),
    ({"loop.start": "zeros"}, "loop.start=zeros needs config.model.loop.inject=add or linear"),
    ({"loop.condition": "index"}, "loop.condition=index needs config.model.loop.tie.norms=loops"),
    (FIRST | {"loop.tie.router": "none"}, "loop.routing=first uses the first loop's router alone; "
     "set config.model.loop.tie.router=loops"),
    *((MORE | {f"loop.tie.{part}": "none"}, "counts.eval=4 needs the same weights in each loop, "
       f"and config.model.loop.tie.{part} is none; train with loops or core") for part in TIED),
    (GROW | {"loop.tie.norms": "none"}, "loop.counts.train=grow needs the same weights in each"),
    (GROW | {"loop.core": ((2, 1),)}, "loop.counts.train=grow has no effect: no group of the core"),
    (MORE | {"loop.embed": True}, "loop.counts.eval=4: config.model.loop.embed=True knows 3 loops"),
    (GROW | {"loop.counts.train": "poisson", "loop.condition": "index"},
     "loop.counts.train=poisson: config.model.loop.condition=index knows 3 loops and no more"),
    ({"loop.exit.rule": "gate"}, "loop.exit.rule=gate needs config.model.loop.exit.loss=expec"),
    ({"loop.exit.loss": "mean", "loop.core": ((2, 1),)}, "loop.exit needs one group that loops, "
     "and config.model.loop.core=((2, 1),) has 0"),
    (GROW | {"loop.exit.loss": "mean"}, "exit needs config.model.loop.counts.train=fixed and rou"),
    ({"loop.exit.loss": "mean"}, "loop.exit needs a language model without a memory (config.mode"),
    ({"loop.tie.router": "none", "ffn": "mlp"}, "loop.tie.router=none has no effect on "
     "config.model.ffn=mlp, which routes nothing; give experts, or choose a model with experts"),
    (FIRST | {"loop.core": ((2, 1),)}, "loop.routing=first has no effect: no group of the core lo"),
    (FIRST | {"ffn": "mlp"}, "loop.routing=first needs config.model.ffn=moe"),
    (FIRST | {"routing_groups": 1}, "loop.routing=first needs config.model.routing_groups=0"),
    (FIRST | {"unroll": False}, "loop.routing=first needs config.model.unroll=true"),
    (FIRST | {"remat": "block"}, "loop.routing=first needs config.model.remat=none"),
    (FIRST | GROW, "loop.routing=first needs config.model.loop.counts.train=fixed"),
    (MORE | {"routing_groups": 1}, "loop.counts.eval=4 needs config.model.routing_groups=0"),
    (MORE | TWICE | {"ffn_blocks": "last_1"}, f"loop.counts.eval=4 {ALIKE}"),
    (GROW | TWICE | {"ffn_blocks": "last_1"}, f"loop.counts.train=grow {ALIKE}"),
    (FIRST | TWICE | {"ffn_blocks": "last_1"}, f"loop.routing=first {ALIKE}"),
    ({"loop.prelude": 1, "routing_groups": 2}, "routing_groups=2 shares a routing between the "
     "prelude of 1 and the core; choose a config.model.loop.prelude that 2 divides"),
    ({"routing_groups": 3, "ffn": "mlp"}, "routing_groups=3 has no effect on config.model.ffn=mlp"),
    ({"ffn_blocks": "every_²"}, "config.model.ffn_blocks"),
    ({"ffn_blocks": (0, 6)}, "ffn_blocks=[0, 6]: there is no block 6 in a depth of 3"),
    ({"ffn": "mlp", "norm_position": "peri"}, "norm_position=peri normalises what routers read"),
)  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_what_is_no_loop_is_refused(changes: dict, line: str):
    with pytest.raises(BadInputError) as error:
        vision_model(changes)
    assert line in str(error.value)


@pytest.mark.parametrize("changes", [MORE, GROW, FIRST])
def test_loops_with_the_same_feed_forwards_stand_for_others(changes: dict):
    """In each loop the second of two blocks has experts."""
    vision_model(changes | TWICE | {"ffn_blocks": "every_2"})


def test_settings_are_plain_data():
    """Of one section alike: they hash and pickle, and lists of a JSON file are tuples."""
    section = {"core": ((2, 3), ("ABA", 1)), "tie": TIED, "counts": {"eval": 2}}
    loop, read = parse_loop(section), parse_loop(json.loads(json.dumps(section)))
    assert pickle.loads(pickle.dumps(loop)) == read and hash(loop) == hash(read)


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


def test_dense_blocks_have_no_router():
    loop = {"core": ((2, 2),), "tie": TIED | {"router": "none"}}
    steps = blocks(loop, ffn_blocks=(1, 3)).steps()
    assert ["router" in dict(step.scopes) for step in steps] == [False, True, False, True]


def test_own_routers_are_counted():
    """Three steps with one set of experts: the routers alone are three, 3 x 64 x 4 weights."""

    def count(router: str) -> int:
        model = vision_model({"loop.tie.router": router})
        image = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
        return count_parameters(parameter_shapes(model, {"image": image}))

    assert count("none") - count("experts") == 2 * 64 * 4
