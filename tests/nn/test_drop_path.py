"""Stochastic depth: rates by depth, and the same draws however the blocks run."""

from functools import partial

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, equations_in
from test_blocks import D, X, encoder
from test_loop import GRAMMAR, TIED, blocks, in_table

from configs.sizes import FFNS, IMAGE_FAMILIES, TEXT_FAMILIES
from configs.variants import model_section
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.build import build_model
from widenet_jax.nn.loop import run_order
from widenet_jax.nn.loop_settings import parse_loop
from widenet_jax.nn.parts import DropPath
from widenet_jax.sharding import BATCH, build_mesh

N, DEPTH, RATE = 4096, 4, 0.3
RATES = np.array([0.0, 0.1, 0.2, 0.3])  # t / (L - 1) of RATE
RNGS = {"dropout": jax.random.key(5)}


def ones(rate: float, **changes) -> np.ndarray:
    """Runs 4,096 equal examples through 4 blocks whose branches add 1, each to its own channel.

    Returns:
      [N, 2, 4]: what the attention and the feed-forward of each block add to an example.
    """
    model = encoder(depth=DEPTH, drop_path=rate, last_norm=False, **changes)
    params = jax.tree.map(jnp.zeros_like, compiled.init(model, X))
    for t in range(DEPTH):
        out = params[f"block_0{t}_attention"]["out"]["bias"]
        params[f"block_0{t}_attention"]["out"]["bias"] = out.at[t].set(1)
        wo = params[f"block_0{t}_mlp"]["wo"]["bias"]
        params[f"block_0{t}_mlp"]["wo"]["bias"] = wo.at[DEPTH + t].set(1)
    y, *_ = apply(model, params, jnp.zeros((N, 1, D)), train=True, rngs=RNGS)
    return np.asarray(y).reshape(N, 2, DEPTH)


@pytest.fixture(scope="module")
def added() -> np.ndarray:
    return ones(RATE)


def test_the_share_of_dropped_branches_grows_linearly_with_depth(added: np.ndarray):
    """Each is left out or scaled; a share of 4,096 has the variance p (1 - p) / 4,096."""
    for t, rate in enumerate(RATES):
        share = (added[:, :, t] == 0).mean(axis=0)
        assert np.abs(share - rate).max() <= 5 * np.sqrt(rate * (1 - rate) / N)
        kept = added[:, :, t][added[:, :, t] != 0]
        np.testing.assert_allclose(kept, 1 / (1 - rate), rtol=1e-6)


def test_the_mean_is_the_whole_branch(added: np.ndarray):
    """The mean of 4,096 draws is 1; a draw has the variance p / (1 - p)."""
    bound = 5 * np.sqrt(RATES / (1 - RATES) / N) + 1e-5
    assert (np.abs(added.mean(axis=0, dtype=np.float64) - 1) < bound).all()


def test_no_two_branches_and_no_two_examples_drop_together(added: np.ndarray):
    """Correlations of 4,096 draws have the variance 1 / 4,096, and so has each with the next's."""
    dropped = (added[:, :, 1:] == 0).reshape(N, -1).T
    of_pairs = np.corrcoef(dropped)[np.triu_indices(len(dropped), 1)]
    of_neighbours = [np.corrcoef(one[1:], one[:-1])[0, 1] for one in dropped]
    assert np.abs([*of_pairs, *of_neighbours]).max() < 5 / np.sqrt(N)


@pytest.mark.parametrize("unroll", [pytest.param(True, marks=pytest.mark.slow), False])
def test_dropout_draws_as_without(added: np.ndarray, unroll: bool):
    """With both, an entry is the product of what dropout and skipping alone make of 1."""
    alone, both = (ones(rate, dropout=0.5, unroll=unroll) for rate in (0.0, RATE))
    assert set(np.unique(alone)) == {0, 2}
    np.testing.assert_allclose(both, alone * added, rtol=1e-6)


def test_a_sharded_batch_drops_the_same_examples():
    mesh = build_mesh({"fsdp": 2, "expert": 2}, jax.devices()[:8])
    model = encoder(depth=DEPTH, drop_path=RATE)
    y = jnp.ones((N, 1, D))
    drops = partial(DropPath(RATE).apply, {}, *run_order(model.loop, None), rngs=RNGS)

    @jax.jit
    def drawn(y: jax.Array) -> jax.Array:
        return jnp.stack([drops()(y, t, branch) for t in range(DEPTH) for branch in range(2)])

    one = drawn(y)
    with jax.set_mesh(mesh):
        place = jax.NamedSharding(mesh, BATCH)
        eight = drawn(jax.device_put(y, place))
    assert len(eight.sharding.device_set) == 8 and (np.asarray(one) == 0).any()
    np.testing.assert_array_equal(one, eight)


def test_without_a_rate_training_draws_nothing():
    """Training is evaluation's program, to the letter; with a rate training alone is another."""

    def text(rate: float, *, train: bool, **how) -> str:
        model = encoder(drop_path=rate, **how)
        run = lambda params, rngs: model.apply(params, X, train=train, rngs=rngs)  # noqa: E731
        shapes = jax.eval_shape(partial(model.init, train=False), jax.random.key(0), X)
        return jax.jit(run).lower(shapes, RNGS).as_text()

    for how in ({}, {"unroll": False, "remat": "block"}):
        whole = text(0.0, train=False, **how)
        assert text(0.0, train=True, **how) == text(0.1, train=False, **how) == whole
        assert text(0.1, train=True, **how) != whole


def close(a: jax.Array, b: jax.Array) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=max(1e-4, 1e-5 * float(jnp.abs(b).max())))


@pytest.mark.parametrize(
    "name", [n if n == "ALBERT" else pytest.param(n, marks=pytest.mark.slow) for n in GRAMMAR]
)
def test_recomputed_and_looped_blocks_drop_the_same(name: str):
    """The output, and the gradient of the skipped branches."""
    plain = in_table(name, drop_path=0.5)
    params = compiled.init(plain, X)

    def run(model: Blocks) -> tuple:
        def loss(params: dict) -> tuple:
            y, aux, _ = model.apply({"params": params}, X, train=True, rngs=RNGS)
            return (y**3).sum() + (aux["loss"].sum() if aux else 0), y

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    jax.tree.map(close, run(plain.clone(unroll=False, remat="block")), run(plain))


@pytest.mark.slow
@pytest.mark.parametrize(("train", "loops"), [("poisson", 4), ("grow", 2)])
def test_rates_follow_the_loops_that_run(train: str, loops: int):
    """A model that loops as often as the step draws drops as one whose core says so."""
    loop = {"prelude": 1, "core": ((1, 3), (1, 2)), "coda": 1, "tie": TIED}
    drawn = blocks(loop | {"counts": {"train": train}}, ffn="mlp", drop_path=0.5)
    fixed = blocks(loop | {"core": ((1, loops), (1, loops))}, ffn="mlp", drop_path=0.5)
    params = compiled.init(drawn, X)
    ends = [f"block_{model.depth - 1:02d}_" for model in (drawn, fixed)]
    renamed = {name.replace(*ends): of for name, of in params.items()}
    y, *_ = apply(drawn, params, X, loops=jnp.int32(loops), train=True, rngs=RNGS)
    close(y, apply(fixed, renamed, X, train=True, rngs=RNGS)[0])


def test_places_of_drawn_loops_by_hand():
    """P, A B thrice, C, D twice, Q: 11 blocks; with 4 loops drawn P, 8, C, 4, Q are 15."""
    loop = {"prelude": 1, "core": ((2, 3), (1, 1), (1, 2)), "coda": 1, "tie": TIED}
    assert run_order(parse_loop(loop), None) == (list(range(11)), 11)
    poisson = parse_loop(loop | {"counts": {"train": "poisson"}})
    places, number = run_order(poisson, 4)
    assert places == [*range(7), 9, 10, 11, 14] and number == 15
    grow = parse_loop(loop | {"counts": {"train": "grow"}})
    places, number = run_order(grow, jnp.int32(1))
    assert [*map(int, places)] == [*range(7), 3, 4, 5, 5] and number == 6


FAMILIES = [f"{family}_tiny" for family in (*IMAGE_FAMILIES, *TEXT_FAMILIES)]
FAMILIES += [f"tiny,ffn={ffn}" for ffn in FFNS if ffn != "soft_moe"]
FAMILIES += ["tiny,ffn=moe,attention=switch_head", "tying,loop=1+2x2+1", "moeut_44m,loop=2x2"]


@pytest.mark.parametrize("name", FAMILIES)
def test_both_branches_of_each_block_of_each_family(name: str):
    """A draw of a number for each example, twice a block."""
    section = model_section(name) | {"drop_path": 0.2, "dropout": 0.0}
    stack = build_model(section).stack
    model, B, shape = Blocks(stack), 4, (4, 6, stack.embed_dim)
    memory = {"memory": jnp.zeros((B, stack.depth, 6, shape[-1])), "memory_length": jnp.zeros(B)}
    run = partial(model.apply, **(memory if stack.has_memory else {}), train=True)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    init = partial(model.init, **(memory if stack.has_memory else {}), train=False)
    params = jax.eval_shape(init, jax.random.key(0), x)
    rngs = {"router": jax.random.key(1), **RNGS}
    program = jax.make_jaxpr(lambda params, x: run(params, x, rngs=rngs))(params, x)
    drawn = [eqn.outvars[0].aval.shape for eqn in equations_in(program.jaxpr)
             if eqn.primitive.name == "random_bits"]  # fmt: skip
    assert drawn.count((B, 1, 1)) == 2 * stack.depth
