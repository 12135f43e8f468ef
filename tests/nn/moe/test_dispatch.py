"""Dispatch methods agree under every mesh and at full size; `auto` chooses the right one."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs import sizes
from widenet_jax.nn.build import build_model
from widenet_jax.nn.moe import experts
from widenet_jax.nn.moe.dispatch import ANYWHERE, DISPATCHERS, method_of
from widenet_jax.nn.moe.experts import ExpertFfn
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.slots import assign_slots
from widenet_jax.nn.settings import MoeSettings
from widenet_jax.sharding import BATCH, build_mesh, tree_shardings
from widenet_jax.typing import Routing

B = 32


def loss_and_gradients(dispatch: str, mesh=None):
    """Returns the loss of a WideNet with all its losses, and every parameter's gradient."""
    tight = {"capacity_factor": 0.8, "examples_per_group": 2, "loop": {"core": ((1, 1),)}}
    fields = sizes.vision_model("widenet", "tiny", "moe", tight)
    fields |= {"dropout": 0.0, "dtype": "float32"}
    fields["moe"]["dispatch"] = dispatch
    fields["moe"]["router"]["noise_std"] = 0.0
    model = build_model(fields, num_classes=10)
    images = jax.random.normal(jax.random.key(0), (B, 8, 8, 3))
    mask = jnp.arange(B) != 1  # one image is padding
    params = init(model, {"image": images[:1]}, seed=1)

    def loss(params: dict, images: jax.Array, mask: jax.Array):
        inputs = {"image": images, "mask": mask}
        logits, aux = model.apply({"params": params}, inputs, train=True)
        log_probs = jax.nn.log_softmax(logits)[:, 0]
        return -(log_probs * mask).sum() + aux["loss"].sum(), aux["sums"]["dropped"]

    grad = jax.value_and_grad(loss, has_aux=True)
    if mesh is None:
        return jax.device_get(jax.jit(grad)(params, images, mask))
    with jax.set_mesh(mesh):
        places = (tree_shardings(params, mesh), NamedSharding(mesh, BATCH))
        run = jax.jit(grad, in_shardings=(*places, NamedSharding(mesh, P())))
        return jax.device_get(run(params, images, mask))


def assert_same(ours: tuple, theirs: tuple, tolerance: float) -> None:
    """Compares losses, drops, and gradients, each relative to the largest entry of its leaf.

    The absolute floor is for the bias of the keys, whose gradient is zero up to rounding.
    """
    (loss, dropped), grads = ours
    (their_loss, their_dropped), their_grads = theirs
    np.testing.assert_allclose(loss, their_loss, rtol=1e-5)
    np.testing.assert_array_equal(dropped, their_dropped)

    def close(path: tuple, a: np.ndarray, b: np.ndarray) -> None:
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max() + 1e-6, err_msg=name)

    jax.tree.map_with_path(close, grads, their_grads)


@pytest.fixture(scope="module")
def on_one_device() -> tuple:
    return loss_and_gradients("einsum")


SLOW = pytest.mark.slow
MESHES = [(2, 2), *(pytest.param(*m, marks=SLOW) for m in ((4, 1), (1, 4)))]  # fsdp, expert
METHODS = ["gather", *(pytest.param(d, marks=SLOW) for d in ("ragged", "einsum", "masked"))]


@pytest.mark.parametrize("dispatch", METHODS)
@pytest.mark.parametrize(("fsdp", "expert"), MESHES)
def test_any_mesh_of_eight_devices_is_one_device(
    on_one_device: tuple, fsdp: int, expert: int, dispatch: str
):
    """Tight capacity, so that tokens are dropped; two groups per device in two of the meshes."""
    mesh = build_mesh({"fsdp": fsdp, "expert": expert}, jax.devices())
    assert (on_one_device[0][1] > 0).all()
    assert_same(loss_and_gradients(dispatch, mesh), on_one_device, 1e-4)


@pytest.mark.slow
def test_ragged_without_drops_is_dropless():
    """Under `capacity_rule=literal` no choice is dropped, and results do not depend on groups."""
    x = jax.random.normal(jax.random.key(0), (4, 6, 3))
    fields = {"mlp_dim": 4, "num_experts": 4, "num_selected_experts": 2, "examples_per_group": 2}
    fields |= {"capacity_factor": 1.0, "capacity_factor_eval": 1.0, "dispatch": "ragged"}
    loose = MoeLayer(**fields, capacity_rule="literal")
    params = init(loose, x, seed=1, train=True)
    params["router"]["kernel"] = jnp.zeros((3, 4)).at[:, 2].set(1.0)  # all to one
    out = apply(loose, params, x, train=True)
    assert int(out.aux["sums"]["dropped"]) == 0
    tight = apply(MoeLayer(**fields), params, x, train=True)
    assert int(tight.aux["sums"]["dropped"]) > 0
    apart = loose.clone(examples_per_group=1)
    alone = jnp.concatenate([apply(apart, params, x[i : i + 1], train=True).y for i in range(4)])
    np.testing.assert_allclose(out.y, alone, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masked_spreads_gates_on_a_tpu_as_elsewhere(monkeypatch: pytest.MonkeyPatch, dtype: str):
    """By a product with zeros and ones, which a CPU computes exactly."""
    x = jax.random.normal(jax.random.key(0), (4, 6, 3))
    fields = {"mlp_dim": 4, "num_experts": 4, "num_selected_experts": 2, "examples_per_group": 2}
    fields |= {"capacity_factor": 1.0, "capacity_factor_eval": 1.0, "capacity_rule": "unlimited"}
    layer = MoeLayer(**fields, dispatch="masked", dtype=dtype)
    params = init(layer, x, seed=1, train=True)

    def gradients(platform: str) -> tuple:
        monkeypatch.setattr(experts, "platform", lambda: platform)

        def loss(params: dict, x: jax.Array) -> jax.Array:
            y = layer.apply({"params": params}, x, train=True).y
            return (y.astype(jnp.float32) ** 2).sum()

        lowered = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(params, x)
        return lowered.compile()(params, x), lowered.as_text().count("dot_general")

    (ours, products), (theirs, fewer) = gradients("tpu"), gradients("cpu")
    assert products == fewer + 2  # the gates, and their gradient
    tolerance = 1e-5 if dtype == "float32" else 0.02
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max() + 1e-6)


def test_padding_rows_of_a_ragged_product_have_no_effect(monkeypatch: pytest.MonkeyPatch):
    """A kernel may leave any value in them, in its result and in its gradient: here NaN."""
    ragged_dot = jax.lax.ragged_dot

    def owned(x: jax.Array, sizes: jax.Array) -> jax.Array:
        return (jnp.arange(x.shape[0]) < sizes.sum())[:, None]

    @jax.custom_vjp
    def spoilt(x, kernel, sizes):
        return jnp.where(owned(x, sizes), ragged_dot(x, kernel, sizes), jnp.nan)

    def backward(saved, dy):
        _, pull = jax.vjp(lambda x, kernel: ragged_dot(x, kernel, saved[2]), *saved[:2])
        dx, d_kernel = pull(dy)
        return jnp.where(owned(dx, saved[2]), dx, jnp.nan), d_kernel, None

    spoilt.defvjp(lambda *inputs: (spoilt(*inputs), inputs), backward)
    x = jax.random.normal(jax.random.key(0), (4, 6, 3))
    fields = {"mlp_dim": 4, "num_experts": 4, "num_selected_experts": 2, "examples_per_group": 2}
    fields |= {"capacity_factor": 0.6, "capacity_factor_eval": 0.6, "dispatch": "ragged"}
    layer = MoeLayer(**fields, dtype="bfloat16")
    params = init(layer, x, seed=1, train=True)

    def gradients() -> tuple:
        def loss(params: dict, x: jax.Array):
            out = layer.apply({"params": params}, x, train=True)
            return (out.y.astype(jnp.float32) ** 2).sum(), out.aux["sums"]["dropped"]

        run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        (_, dropped), grads = run(params, x)
        assert dropped > 0
        return grads

    clean = gradients()
    monkeypatch.setattr(jax.lax, "ragged_dot", spoilt)
    jax.tree.map(np.testing.assert_array_equal, gradients(), clean)


@pytest.mark.parametrize("dispatch", METHODS)
def test_dropout_does_not_depend_on_the_devices(dispatch: str):
    """Eight devices draw the masks of one; equal examples come out with different masks."""
    moe = MoeLayer(
        mlp_dim=8, num_experts=2, num_selected_experts=2, capacity_factor=1.0,
        capacity_factor_eval=1.0, examples_per_group=1, dispatch=dispatch, dropout=0.5,
    )  # fmt: skip
    x = jnp.ones((8, 6, 16))
    params = init(moe, x)

    def run(x: jax.Array) -> jax.Array:
        return moe.apply({"params": params}, x, train=True, rngs={"dropout": jax.random.key(1)}).y

    one = np.asarray(jax.jit(run)(x))
    mesh = build_mesh({"fsdp": 1, "expert": 1}, jax.devices())
    with jax.set_mesh(mesh):
        y = np.asarray(jax.jit(run)(jax.device_put(x, NamedSharding(mesh, BATCH))))
    np.testing.assert_allclose(y, one, atol=1e-6)
    assert len({tuple((example == 0).ravel()) for example in y}) == 8


def random_experts(E: int, D: int, F: int, **fields) -> ExpertFfn:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"wi": (E, D, F), "wi_bias": (E, F), "wo": (E, F, D), "wo_bias": (E, D)}
    arrays = {
        n: jax.random.normal(key, s) for key, (n, s) in zip(keys, shapes.items(), strict=True)
    }
    flags = dict.fromkeys(("drops_hidden", "drops_output", "output_activation"), False)
    usual = {"key": None, "dropout": 0.0, "activation": "relu", **flags}
    return ExpertFfn(**(arrays | usual | fields))


def random_routing(G: int, S: int, E: int, K: int, capacity: int) -> Routing:
    """Draws a routing whose gates are of any sign and sum; some tokens are padding."""
    keys = jax.random.split(jax.random.key(1), 3)
    order = jax.random.permutation(keys[0], jnp.broadcast_to(jnp.arange(E), (G, S, E)), -1, True)
    zeros = jnp.zeros((G, S, E))
    mask = jax.random.bernoulli(keys[2], 0.8, (G, S))
    gate = 2 * jax.random.normal(keys[1], (G, S, K)) * mask[..., None]
    routing = Routing(order[..., :K], gate, router_probs=zeros, router_logits=zeros)
    limit = jnp.full(G, capacity)
    return assign_slots(routing, mask, capacity=capacity, limit=limit, priority="token_order")


@pytest.mark.parametrize(
    ("K", "capacity", "fields"),
    [
        # Every expert, no bias, nothing dropped.
        pytest.param(4, 10, {"wi_bias": None, "wo_bias": None}, marks=SLOW),
        (2, 3, {"activation": "gelu_tanh"}),  # biases, drops
        (2, 3, {"output_activation": True, "wo_bias": None}),
    ],
)
def test_methods_agree_for_any_gates(K: int, capacity: int, fields: dict):
    """F < D, so that ragged has its gates within the experts: outputs and all gradients."""
    G, S, E, D, F = 3, 10, 4, 6, 5
    experts, routing = random_experts(E, D, F, **fields), random_routing(G, S, E, K, capacity)
    x = jax.random.normal(jax.random.key(2), (G, S, D))

    @jax.jit
    def run(x: jax.Array, gate: jax.Array, experts: ExpertFfn) -> dict:
        def loss(x: jax.Array, gate: jax.Array, experts: ExpertFfn, method: str) -> jax.Array:
            routed = routing.replace(gate=gate)
            return (DISPATCHERS[method](x, routed, experts, capacity=capacity) ** 3).sum()

        grad = jax.value_and_grad(loss, argnums=(0, 1, 2))
        return {method: grad(x, gate, experts, method) for method in ANYWHERE}

    results = run(x, routing.gate, experts)
    dropped = (routing.slot == capacity) & (routing.gate != 0)
    assert dropped.any() == (capacity < S)
    expected = results.pop("einsum")
    for result in results.values():
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max()),
            *(result, expected),
        )


def test_all_experts_with_gates_of_one_are_the_dense_layer():
    """E experts of width F without biases, K = E: one layer of width E * F, in float64 NumPy."""
    E, D, F, S = 3, 5, 4, 7
    experts = random_experts(E, D, F, wi_bias=None, wo_bias=None)
    routing = random_routing(2, S, E, E, S)
    routing = routing.replace(gate=jnp.ones_like(routing.gate))
    full = jnp.ones((2, S), bool)
    unlimited = {"capacity": S, "limit": jnp.full(2, S), "priority": "token_order"}
    routing = assign_slots(routing, full, **unlimited)
    x = np.random.default_rng(0).normal(size=(2, S, D))
    wi = np.concatenate(np.float64(experts.wi), axis=1)  # [D, E * F]
    expected = np.maximum(x @ wi, 0) @ np.float64(experts.wo).reshape(E * F, D)
    for method in ANYWHERE:
        y = jax.jit(partial(DISPATCHERS[method], capacity=S))(jnp.float32(x), routing, experts)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4, err_msg=method)


@pytest.mark.parametrize("router", ["sinkhorn", pytest.param("noisy_top_k", marks=SLOW)])
@pytest.mark.slow
def test_statistics_over_the_batch_do_not_depend_on_the_devices(router: str):
    """Batch-wide losses, Sinkhorn's assignment and gradients: eight devices equal one."""
    section = sizes.experts_section(
        {"router": router, "experts": 8, "mlp_dim": 4, "examples_per_group": 1}
    )
    weights = dict.fromkeys(("load_balance", "importance", "entropy", "z"), 0.5)
    section["losses"] = weights | {"over": "batch", "load": 0.5 * (router == "noisy_top_k")}
    moe = MoeLayer(**{**section, "capacity_rule": "unlimited"})
    x = jax.random.normal(jax.random.key(0), (16, 6, 8))
    mask = jnp.arange(16)[:, None] + jnp.arange(6) < 18
    params = init(moe, x[:1], seed=1)
    draw = lambda leaf: leaf + jax.random.normal(jax.random.key(2), leaf.shape)  # noqa: E731
    params = jax.jit(partial(jax.tree.map, draw))(params)

    def loss(params: dict, x: jax.Array, mask: jax.Array) -> tuple:
        rngs = {"router": jax.random.key(3)}
        out = moe.apply({"params": params}, x, mask=mask, train=True, rngs=rngs)
        return (out.y**2).mean() + out.aux["loss"], out

    run = jax.value_and_grad(loss, has_aux=True)
    (_, one), one_grads = jax.jit(run)(params, x, mask)
    mesh = build_mesh({"fsdp": 2, "expert": 2}, jax.devices())
    with jax.set_mesh(mesh):
        batch = NamedSharding(mesh, BATCH)
        places = (tree_shardings(params, mesh), batch, batch)
        (_, all_eight), grads = jax.device_get(jax.jit(run, in_shardings=places)(params, x, mask))
    np.testing.assert_array_equal(all_eight.routing.expert_index, one.routing.expert_index)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, (all_eight.y, grads), (one.y, one_grads))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), all_eight.aux, dict(one.aux))


@pytest.mark.parametrize(
    ("platform", "tokens", "factor", "experts", "method"),
    [
        ("tpu", 196, 1.2, 4, "einsum"),
        ("tpu", 3136, 1.2, 4, "gather"),
        ("tpu", 3136, 2.0, 4, "ragged"),  # evaluation: C is the whole group
        ("cpu", 196, 1.2, 4, "gather"),
        ("gpu", 3136, 2.0, 4, "gather"),
        ("tpu", 512, None, 8, "masked"),
        ("tpu", 512, None, 16, "ragged"),
        ("gpu", 512, None, 18, "masked"),  # ragged_dot computes every expert there
        ("cpu", 512, None, 18, "masked"),
    ],
)
def test_auto_chooses(platform: str, tokens: int, factor: float | None, experts: int, method: str):
    """K = 2; without a factor no token is dropped."""
    rule = "paper" if factor else "unlimited"
    moe = MoeSettings(1, experts, 2, factor or 1.0, 1.0, 1, capacity_rule=rule)
    facts = {"platform": platform, "group_tokens": tokens, "train": True}
    assert method_of(moe, **facts) == method
    assert method_of(dataclasses.replace(moe, dispatch="einsum"), **facts) == "einsum"
