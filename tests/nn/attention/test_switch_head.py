"""Attention within a window: rotary positions, norms of queries and keys, SwitchHead's experts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_by_loops import by_loops
from compiled import draw

from configs.variants import model_section
from widenet_jax.nn.attention.full import MultiHeadAttention, SelfAttention
from widenet_jax.nn.attention.rotary import rotate
from widenet_jax.nn.attention.switch_head import SwitchHead
from widenet_jax.nn.build import build_model, count_parameters, parameter_shapes

B, T, D, N, H = 2, 4, 6, 2, 5
X, VALUES = (np.random.default_rng(i).normal(size=(B, T, D)) for i in (0, 1))
WEIGHTS = np.random.default_rng(2).normal(size=(B, T, D))  # of the outputs in the loss
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)
PLACED = {"rope": 0.8, "qk_norm": True, "head_dim": H}
EXPERTS = {"num_experts": 4, "num_selected_experts": 2, "entropy": 0.7, "head_dim": H}
LAYERS = {
    "full": MultiHeadAttention(N, causal=True, **PLACED),
    "experts": SwitchHead(N, causal=True, **PLACED | EXPERTS),
    "masked": MultiHeadAttention(N, rope=1.0, head_dim=H),
    "masked experts": SwitchHead(N, **EXPERTS),
    "gate": SwitchHead(N, causal=True, rope=0.5, head_dim=H),
}
QUICK = ("experts",)


def cases() -> list:
    return [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LAYERS
    ]


def params_of(layer: SelfAttention) -> dict:
    """Draws all parameters, biases and norms' weights too."""
    run = lambda x: layer.init(jax.random.key(0), x, train=False)["params"]  # noqa: E731
    shapes = jax.eval_shape(run, X.astype("float32"))
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda p: p + rng.normal(scale=0.3, size=p.shape).astype("f4"), draw(shapes)
    )


@pytest.mark.parametrize("name", cases())
def test_equals_loops_over_tokens_and_heads(name: str):
    """Output, loss, and the derivative along a direction in each parameter and input."""
    layer = LAYERS[name]
    mask = MASK if name.startswith("masked") else np.ones((B, T), bool)

    def ours(arrays: dict) -> tuple:
        x, values = arrays["x"], arrays["values"]
        y, aux = layer.apply({"params": arrays["params"]}, x, values=values, mask=mask, train=True)
        y = jnp.where(mask[..., None], y, 0)
        return (y * WEIGHTS).sum() + aux.get("loss", 0), (y, aux)

    def theirs(arrays: dict) -> float:
        y, loss = by_loops(layer, arrays["params"], arrays["x"], arrays["values"], mask)
        return (y * WEIGHTS * mask[..., None]).sum() + loss

    arrays = {"params": params_of(layer), "x": X, "values": VALUES}
    single = jax.tree.map(jnp.float32, arrays)
    (total, (y, aux)), gradients = jax.jit(jax.value_and_grad(ours, has_aux=True))(single)
    exact = jax.tree.map(np.float64, single)
    right, loss = by_loops(layer, exact["params"], exact["x"], exact["values"], mask)
    np.testing.assert_allclose(y, right * mask[..., None], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(aux.get("loss", 0), loss, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(total, theirs(exact), rtol=1e-5)
    if "experts" in name:
        np.testing.assert_allclose(0.7 * aux["losses"]["attention_entropy"], loss, rtol=1e-5)
        load = np.asarray(aux["sums"]["attention_load"])
        assert load.shape == (2, N, 4) and (load.sum(-1) == 2 * mask.sum()).all()
        shares = layer.summarize({"attention_load": load[None]})["attention_load"]
        np.testing.assert_allclose(shares.sum(-1), 1)

    leaves, tree = jax.tree.flatten(exact)
    rng, step = np.random.default_rng(4), 1e-6
    for i, gradient in enumerate(jax.tree.leaves(gradients)):
        along = rng.normal(size=gradient.shape)
        ends = [
            theirs(tree.unflatten([*leaves[:i], leaves[i] + s * along, *leaves[i + 1 :]]))
            for s in (-step, step)
        ]
        slope = (ends[1] - ends[0]) / (2 * step)
        assert (gradient * along).sum() == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_without_a_weight_there_is_no_loss():
    of_sides = dict.fromkeys(("value", "out"), jnp.zeros((1, 2, N, 4), bool))
    aux = SwitchHead(N, num_experts=4, entropy=0.0).aux(of_sides, of_sides, jnp.ones((1, 2), bool))
    assert aux["losses"] == {} and aux["loss"] == 0
    assert SwitchHead.summarize({"load": np.ones((1, 3))}) == {}
    load = {"attention_load": np.stack([np.ones((2, N, 4)), np.zeros((2, N, 4))])}
    shares = SwitchHead.summarize(load)["attention_load"]  # the second of two did not run
    assert (shares[0] == 0.25).all() and np.isnan(shares[1]).all()


def test_rotation_by_hand():
    """Half of 6 dimensions is one pair, 0 and 1; products depend on the distance alone."""
    x = jnp.broadcast_to(jnp.arange(1.0, 7), (1, 3, 1, 6))
    turned = np.asarray(rotate(x, 0.5))[0, :, 0]
    places = np.arange(3)
    np.testing.assert_allclose(turned[:, 0], np.cos(places) - 2 * np.sin(places), atol=1e-6)
    np.testing.assert_allclose(turned[:, 1], 2 * np.cos(places) + np.sin(places), atol=1e-6)
    np.testing.assert_array_equal(turned[:, 2:], x[0, :, 0, 2:])
    whole = np.asarray(rotate(x, 1.0))[0, :, 0]  # pairs (0, 3), (1, 4), (2, 5)
    np.testing.assert_allclose(
        whole[1, 1], 2 * np.cos(0.01 ** (2 / 3)) - 5 * np.sin(0.01 ** (2 / 3))
    )
    np.testing.assert_allclose(whole[0] @ whole[1], whole[1] @ whole[2], rtol=1e-6)
    assert rotate(x, 0.0) is x


def test_parameters_of_moeut_44m():
    """2 layers of the published counts: 4 heads of 82, 8 attention experts, 155 experts of 128."""
    D, N, H, A, V = 412, 4, 82, 8, 8000
    layer = SwitchHead(N, H, num_experts=A)
    x = jax.ShapeDtypeStruct((1, 4, D), jnp.float32)
    params = jax.eval_shape(lambda x: layer.init(jax.random.key(0), x, train=False), x)
    attention = 2 * D * N * H + 2 * N * A * (D * H + D)
    assert count_parameters(params) == attention
    gated = SwitchHead(N, H)
    params = jax.eval_shape(lambda x: gated.init(jax.random.key(0), x, train=False), x)
    assert count_parameters(params) == 4 * D * N * H + D * N

    section = model_section("wt_s,loop=2x8,preset=sigma_moe,experts=155,attention=switch_head")
    section["attention"] |= {"num_heads": N, "head_dim": H, "num_experts": A, "rope": 0.5}
    section["loop"]["tie"]["norms"] = "loops"
    model = build_model(section, vocab_size=V)
    tokens = {"tokens": jax.ShapeDtypeStruct((1, 4), jnp.int32)}
    assert count_parameters(parameter_shapes(model, tokens)) == 44_345_792
    experts = 155 * (2 * 128 * D + D)
    assert 2 * (attention + experts + 4 * D) + 2 * V * D + V + 2 * D == 44_345_792


@pytest.mark.slow
def test_experts_are_drawn_as_dense_kernels_of_the_paper():
    """Deviation sqrt(2 / (L fan)), fan D of values and N H of the output; routers of one norm."""
    layer = SwitchHead(4, 8, num_experts=8, kernel_init="pre_norm", depth=16)
    x = jnp.zeros((1, 2, 64))
    params = jax.jit(lambda: layer.init(jax.random.key(0), x, train=False)["params"])()
    for name, fan in (("value_experts", 64), ("out_experts", 32)):
        kernel = params[name]["kernel"]
        np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (16 * fan)), rtol=0.05)
    norms = np.linalg.norm(params["value_router"], axis=0)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-5)
