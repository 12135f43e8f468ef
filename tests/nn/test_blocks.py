"""The sharing loop: names of parameters, routing, norms, loops and recomputation."""

from functools import partial

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, equations_in

from widenet_jax.nn import blocks
from widenet_jax.nn.attention.full import MultiHeadAttention
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.loop_settings import LoopSettings, Tie
from widenet_jax.nn.mlp import Mlp
from widenet_jax.nn.stack_settings import block_indices
from widenet_jax.sharding import BATCH, build_mesh

DEPTH, D, T = 3, 8, 5
MOE = {
    "mlp_dim": 12,
    "num_experts": 3,
    "num_selected_experts": 2,
    "capacity_factor": 1.2,
    "capacity_factor_eval": 2.0,
    "examples_per_group": 2,
    "losses": {"load_balance": 0.01, "over": "group"},
}
X = jax.random.normal(jax.random.key(7), (4, T, D))


def encoder(depth: int = DEPTH, tied: str = "", **changes) -> Blocks:
    """Blocks that own all parts, or one block `depth` times with these parts tied."""
    tie = {"attention": "none", "experts": "none", "norms": "none"}
    tie |= dict.fromkeys(tied.split(), "loops")
    core = ((1, depth),) if tied else ((depth, 1),)
    fields = {"loop": LoopSettings(core, tie=Tie(**tie))}
    fields["attention"] = {"name": "full", "num_heads": 2}
    fields["feed_forwards"] = {"mlp": {"mlp_dim": 12}, "moe": MOE}
    return Blocks(**fields | changes)


def init(model: Blocks, x: jax.Array = X) -> dict:
    return compiled.init(model, x)


def shapes(model: Blocks) -> dict:
    return jax.eval_shape(partial(model.init, train=False), jax.random.key(0), X)["params"]


WIDENET = {"tied": "attention experts", "ffn": "moe"}


@pytest.mark.parametrize(
    ("tied", "ffn"),
    [("", "mlp"), ("attention", "mlp"), ("experts norms", "mlp"), ("attention experts", "moe")],
)
def test_what_each_block_owns(tied: str, ffn: str):
    """WideNet's blocks own their norms and share the rest."""
    names = {"norm_out"}
    kinds = {"attention": ["attention"], "experts": [ffn], "norms": ["norm_attention", "norm_ffn"]}
    for part, scopes in kinds.items():
        own = [f"block_0{i}_{scope}" for i in range(3) for scope in scopes]
        names |= set(scopes if part in tied.split() else own)
    assert set(shapes(encoder(tied=tied, ffn=ffn))) == names


@pytest.mark.parametrize(("groups", "operations"), [(3, 3), (1, 1)])
def test_routing_groups_route_once(groups: int, operations: int):
    """T = G routing operations enter the loss; a group's blocks follow its first."""
    model = encoder(**(WIDENET | {"routing_groups": groups}))
    params = init(encoder(**WIDENET))
    y, aux, _ = apply(model, params, X, train=True)
    assert aux["loss"].shape == (operations,)
    assert aux["sums"]["load"].shape == (operations, 3)
    own, _, _ = apply(encoder(**WIDENET), params, X, train=True)
    assert bool((y == own).all()) == (operations == 3)


def test_post_norm_normalises_the_output_of_a_block():
    """Every output vector has mean 0 and variance 1 (scale 1, bias 0), and no last norm exists."""
    model = encoder(norm_position="post")
    params = init(model)
    assert "norm_out" not in params
    y, *_ = apply(model, params, X, train=False)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(y.var(-1), 1, rtol=1e-3)


def test_pre_norm_by_parts():
    """One block written out with the modules' own parameters (eqs. 6 and 7)."""
    model = encoder(depth=1)
    params = init(model)
    bound = model.bind({"params": params})

    def norm(name: str, x: jax.Array) -> jax.Array:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        scaled = (x - mean) / jnp.sqrt(var + 1e-6)
        return scaled * params[name]["scale"] + params[name]["bias"]

    attention = MultiHeadAttention(2).bind({"params": params["block_00_attention"]})
    mlp = Mlp(12).bind({"params": params["block_00_mlp"]})
    x = X + attention(norm("block_00_norm_attention", X), train=False)[0]
    x = x + mlp(norm("block_00_norm_ffn", x), train=False).y
    y, *_ = bound(X, train=False)
    np.testing.assert_allclose(y, norm("norm_out", x), rtol=1e-4, atol=1e-5)


def test_padding_does_not_change_real_tokens():
    """Other values in masked tokens do not change the real ones."""
    model = encoder(**WIDENET)
    params = init(model)
    mask = jnp.arange(T) < 3
    mask = jnp.broadcast_to(mask, (4, T))
    noisy = jnp.where(mask[..., None], X, 100.0)
    clean, clean_aux, _ = apply(model, params, X, mask=mask, train=True)
    other, other_aux, _ = apply(model, params, noisy, mask=mask, train=True)
    np.testing.assert_allclose(clean[:, :3], other[:, :3], atol=1e-5)
    np.testing.assert_allclose(clean_aux["loss"], other_aux["loss"], rtol=1e-5)
    assert (clean_aux["sums"]["load"].sum(-1) == 2 * 4 * 3).all()  # K * images * tokens


def test_bfloat16_keeps_parameters_and_router_in_float32():
    model = encoder(**WIDENET, dtype="bfloat16")
    params = init(model)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
    y, aux, _ = apply(model, params, X.astype(jnp.bfloat16), train=True)
    assert y.dtype == jnp.bfloat16
    assert aux["losses"]["load_balance"].dtype == jnp.float32


@pytest.mark.parametrize(
    ("rule", "blocks"),
    [("all", (0, 1, 2, 3, 4, 5)), ("every_3", (2, 5)), ("last_2", (4, 5)), ("last", (5,))],
)
def test_which_blocks_have_experts(rule: str, blocks: tuple):
    assert block_indices(rule, 6) == blocks


# Two periods each; "the last block" is a single one, of unequal blocks.
STACKS = {
    "routing groups": WIDENET | {"depth": 4, "routing_groups": 2},
    "every second block": {"depth": 4, "ffn": "moe", "ffn_blocks": "every_2"},
    "the last block": {"ffn": "moe", "ffn_blocks": "last_1"},
}
# The default suite loops over one stack, whose blocks share their parts.
IN_SHORT = ("routing groups",)


@pytest.mark.parametrize(
    "stack", [s if s in IN_SHORT else pytest.param(s, marks=pytest.mark.slow) for s in STACKS]
)
def test_loop_and_recomputation_change_nothing(stack: str):
    """Parameters, output, statistics and gradients equal those of unrolled blocks."""
    fields = {"depth": 2} | STACKS[stack]
    plain, other = encoder(**fields), encoder(**fields, unroll=False, remat="block")
    params = init(plain)
    assert jax.tree.structure(shapes(other)) == jax.tree.structure(params)

    def run(model: Blocks) -> tuple:
        def loss(params: dict):
            y, aux, _ = model.apply({"params": params}, X, train=True)
            return (y**2).sum() + (aux["loss"].sum() if aux else 0), (y, aux)

        (_, out), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        return out, grads

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), run(plain), run(other)
    )


@pytest.mark.parametrize(
    ("stack", "unrolled", "looped"),
    # A loop over two blocks; over two routing groups of two blocks each; over all but the last.
    [("every second block", 4, 2), ("routing groups", 2, 1), ("the last block", 3, 2)],
)
def test_recomputation_is_of_single_blocks(stack: str, unrolled: int, looped: int):
    """A program has one recomputed part for each block, or for each routing: that saves memory."""
    recomputed = jax.make_jaxpr(jax.checkpoint(jnp.sin))(1.0).eqns[0].primitive
    for unroll, expected in ((True, unrolled), (False, looped)):
        model = encoder(**STACKS[stack], unroll=unroll, remat="block")
        program = jax.make_jaxpr(partial(model.apply, train=True))({"params": shapes(model)}, X)
        found = [equation.primitive for equation in equations_in(program.jaxpr)]
        assert found.count(recomputed) == expected


@pytest.mark.parametrize("unroll", [True, False], ids=["unrolled", "loop"])
def test_every_block_drops_by_its_own_random_numbers(unroll: bool):
    """Two blocks of equal weights, attention and norms idle: their dropout masks differ."""
    model = encoder(depth=2, tied="experts norms", dropout=0.5, unroll=unroll)
    rngs = {"dropout": jax.random.key(3)}
    params = jax.tree.map(jnp.zeros_like, init(model))
    params["mlp"]["wo"]["bias"] = jnp.ones(D)
    params["norm_out"]["scale"] = jnp.ones(D)
    y, *_ = apply(model.clone(last_norm=False), params, 0 * X, train=True, rngs=rngs)
    # Each block adds 0 or 2: equal masks would never add up to 2.
    assert set(np.unique(y)) == {0, 2, 4}


def test_every_block_routes_by_its_own_random_numbers():
    """Two blocks that share a router without weights: noise alone decides, a new one in each."""
    noisy = MOE | {"router": {"name": "top_k", "noise_std": 1.0}}
    model = encoder(
        depth=2,
        ffn="moe",
        tied="experts norms",
        feed_forwards={"mlp": {"mlp_dim": 12}, "moe": noisy},
    )
    rngs = {"router": jax.random.key(3)}
    params = jax.tree.map(jnp.zeros_like, init(model))
    _, aux, _ = apply(model, params, 0 * X, train=True, rngs=rngs)
    first, second = aux["sums"]["load"]
    assert first.sum() == second.sum() == X.shape[0] * T * 2
    assert (first != second).any()
    assert aux["sums"]["entropy"][0] != aux["sums"]["entropy"][1]


def test_on_gpus_the_stream_lies_by_rows(monkeypatch: pytest.MonkeyPatch):
    """After each branch, and its gradient; nothing without a mesh, as where a model is exported."""
    model = encoder(depth=1)
    params, x = init(model), jnp.tile(X, (2, 1, 1))

    def loss(params: dict, x: jax.Array) -> jax.Array:
        return (model.apply({"params": params}, x, train=True)[0] ** 2).sum()

    def gradient() -> tuple:
        lowered = jax.jit(jax.grad(loss, argnums=(0, 1)), in_shardings=(None, BATCH)).lower(
            params, x
        )
        return lowered.as_text().count("@LayoutConstraint"), lowered.compile()(params, x)

    with jax.set_mesh(build_mesh({"fsdp": -1, "expert": 1}, jax.devices())):
        constraints, elsewhere = gradient()
        assert constraints == 0
        monkeypatch.setattr(blocks, "platform", lambda: "gpu")
        constraints, ours = gradient()
        assert constraints == 4
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, elsewhere
    )
    assert blocks.by_examples(x) is x
