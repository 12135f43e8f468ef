"""Low-rank adapters: the function of a stack that stores the sums, whatever it shares."""

from functools import partial

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from test_blocks import X, shapes
from test_drop_path import close
from test_loop import in_table

from widenet_jax.nn import adapters
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.settings import AdapterSettings
from widenet_jax.param_names import named_leaves

OWN = {"tie": {"attention": "none", "experts": "none", "router": "experts", "norms": "none"}}
NAMES = ("ViT-MoE", "WideNet", "ALBERT", "MoEUT", "tying, all", "Sparse Layers", "Huginn", "AABB")
FAST = {("WideNet", "none"), ("MoEUT", "weights")}
CASES = [
    pytest.param(name, tie, marks=[] if (name, tie) in FAST else pytest.mark.slow)
    for name in NAMES
    for tie in ("weights", "none")
]


def adapted(name: str, tie: str = "weights", **changes) -> Blocks:
    return in_table(name, adapter=AdapterSettings(rank=2, tie=tie, alpha=3.0), **changes)


def summed(tree: dict, adapter: dict) -> dict:
    """Adds 3 / 2 down up to each kernel that has an adapter, in float64."""
    if "down" in adapter:
        down, up = (np.asarray(adapter[name], np.float64) for name in ("down", "up"))
        return jnp.asarray(tree + 1.5 * np.einsum("...ir,...ro->...io", down, up), jnp.float32)
    inside = {name: summed(tree[name], pair) for name, pair in adapter.items()}
    return {**tree, **inside}


def unshared(name: str, model: Blocks, params: dict) -> tuple[Blocks, dict]:
    """Returns a stack whose blocks own all they run, and each block's parameters."""
    own, found = in_table(name, OWN), {}
    for stored, alone in zip(model.steps(), own.steps(), strict=True):
        for part, scope in alone.scopes:
            there = dict(stored.scopes)[part]
            adapter = params["adapter"].get(scope if model.adapter.tie == "none" else there, {})
            found[scope] = summed(params[there], adapter)
    rest = {scope: params[scope] for scope in shapes(own) if scope not in found}
    return own, found | rest


@pytest.mark.parametrize(("name", "tie"), CASES)
def test_the_function_is_of_a_stack_that_stores_the_sums(name: str, tie: str):
    model = adapted(name, tie)
    params = compiled.init(model, X)
    run = partial(apply, train=True)
    y, aux, _ = run(model, params, X)
    wanted, theirs, _ = run(*unshared(name, model, params), X)
    close(y, wanted)
    jax.tree.map(close, aux, theirs)
    without = {scope: tree for scope, tree in params.items() if scope != "adapter"}
    assert float(jnp.abs(y - run(in_table(name), without, X)[0]).max()) > 0.1


@pytest.mark.parametrize("tie", ["weights", pytest.param("none", marks=pytest.mark.slow)])
def test_a_new_adapter_changes_nothing(tie: str):
    model = adapted("WideNet", tie)
    params = compiled.initial(model, X)
    without = {scope: tree for scope, tree in params.items() if scope != "adapter"}
    y = apply(model, params, X, train=False)[0]
    np.testing.assert_allclose(y, apply(in_table("WideNet"), without, X, train=False)[0], atol=1e-6)
    assert all(bool(leaf.any()) != path.endswith("/up") for path, leaf in named_leaves(params)
               if path.startswith("adapter/"))  # fmt: skip


def test_at_rank_0_the_program_is_the_same_to_the_letter():
    def text(model: Blocks) -> str:
        run = lambda params: model.apply({"params": params}, X, train=False)  # noqa: E731
        return jax.jit(run).lower(shapes(model)).as_text()

    none = in_table("WideNet", adapter={"rank": 0, "tie": "none", "alpha": 1.0})
    assert text(none) == text(in_table("WideNet")) != text(adapted("WideNet"))


def test_which_kernels_have_adapters_and_how_many_numbers():
    """Rank 2. Attention: 4 [8, 8], 4 (16 + 16). Experts: 3 of [8, 12], [12, 8]: 3 2 (16 + 24)."""
    for tie, sets in (("weights", 1), ("none", 3)):
        found = shapes(adapted("WideNet", tie))["adapter"]
        paths = {path.rpartition("/")[0] for path, _ in named_leaves(found)}
        layers = ["attention"] if tie == "weights" else [f"block_0{t}_attention" for t in range(3)]
        kernels = [f"{layer}/{name}/kernel" for layer in layers for name in ("query", "out")]
        assert paths.issuperset(kernels) and not any("router" in path for path in paths)
        assert sum(leaf.size for leaf in jax.tree.leaves(found)) == sets * (128 + 240)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"unroll": False}, {"remat": "block"}])
def test_gradients_of_looped_and_recomputed_blocks(how: dict):
    """As of blocks in a row: of each step's own adapter, too."""
    plain = adapted("WideNet", "none")
    params = compiled.init(plain, X)

    def run(model: Blocks) -> dict:
        def loss(params: dict) -> jax.Array:
            y, aux, _ = model.apply({"params": params}, X, train=True)
            return (y**3).sum() + aux["loss"].sum()

        return jax.jit(jax.grad(loss))(params)

    jax.tree.map(close, run(plain.clone(**how)), run(plain))


def test_merged_parameters_have_the_places_of_a_stack_without():
    for name in NAMES:
        for tie in ("weights", "none"):
            model = adapted(name, tie)
            there = jax.eval_shape(partial(adapters.merged, model.settings), shapes(model))
            here = shapes(model.clone(**adapters.without(model.settings)))
            assert jax.tree.map(jnp.shape, there) == jax.tree.map(jnp.shape, here), (name, tie)
