"""Initialisers by name: the standard deviations that the papers state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial

from configs.variants import model_section
from widenet_jax.nn.build import build_model
from widenet_jax.nn.initializers import KernelInit, uniform_between
from widenet_jax.nn.mlp import Mlp
from widenet_jax.nn.moe.layer import MoeLayer

KEY = jax.random.key(0)
D, E, G, L = 100, 8, 25, 9


def std_of(draw, shape: tuple[int, ...]) -> float:
    return float(draw(KEY, shape).std())


@pytest.mark.parametrize(
    ("name", "of_kernel", "of_experts_out", "equal"),
    [
        ("pre_norm", (2 / (L * D)) ** 0.5, (2 / (L * E * G)) ** 0.5, True),
        ("pre_norm_each_expert", (2 / (L * D)) ** 0.5, (2 / (L * G)) ** 0.5, True),
        ("switch", (0.2 / (L * D)) ** 0.5, (0.2 / (L * G)) ** 0.5, False),
    ],
)
def test_standard_deviations(name: str, of_kernel: float, of_experts_out: float, equal: bool):
    init = KernelInit(name, L)
    np.testing.assert_allclose(std_of(init.kernel(), (D, 400)), of_kernel, rtol=0.02)
    several = std_of(init.kernel(batch_axis=(0,)), (E, D, 50))
    np.testing.assert_allclose(several, of_kernel, rtol=0.02)
    out = std_of(init.experts_out(E, G), (E, G, D))
    np.testing.assert_allclose(out, of_experts_out, rtol=0.02)

    plain, router = init.kernel()(KEY, (D, E)), init.router()(KEY, (D, E))
    norms = jnp.linalg.norm(router, axis=0)
    assert bool(jnp.allclose(norms, norms[0], rtol=1e-5)) == equal
    np.testing.assert_allclose(router.std(), plain.std(), rtol=1e-5)
    cosine = (plain * router).sum(0) / jnp.linalg.norm(plain, axis=0) / norms
    np.testing.assert_allclose(cosine, 1, rtol=1e-5)


def test_every_kernel_of_a_layer_has_its_own():
    """A dense layer's output has fan F; the experts' the same, although each has width F/E."""
    x, init = jnp.ones((1, 1, D)), {"kernel_init": "pre_norm", "depth": L}
    dense = initial(Mlp(E * G, **init), x)
    moe = initial(MoeLayer(G, E, 2, 1.0, 1.0, 1, **init), x)
    for params in (dense, moe["experts"]):
        wi, wo = params["wi"]["kernel"], params["wo"]["kernel"]
        np.testing.assert_allclose(wi.std(), (2 / (L * D)) ** 0.5, rtol=0.02)
        np.testing.assert_allclose(wo.std(), (2 / (L * E * G)) ** 0.5, rtol=0.02)
        assert not params["wi"]["bias"].any() and not params["wo"]["bias"].any()
    norms = jnp.linalg.norm(moe["router"]["kernel"], axis=0)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-5)


def test_the_depth_is_that_of_the_stack():
    """For the attention and the feed-forward alike, and not for what stands outside the blocks."""
    fields = model_section("vit_tiny,depth=2") | {"kernel_init": "pre_norm"}
    model = build_model(fields, num_classes=10)
    params = initial(model, {"image": jnp.ones((1, 8, 8, 3))})
    block = params["encoder"]["block_01_attention"]["query"]["kernel"]
    np.testing.assert_allclose(block.std(), (2 / (2 * 64)) ** 0.5, rtol=0.05)
    block = params["encoder"]["block_01_mlp"]["wi"]["kernel"]
    np.testing.assert_allclose(block.std(), (2 / (2 * 64)) ** 0.5, rtol=0.05)
    np.testing.assert_allclose(params["pre_logits"]["kernel"].std(), (2 / 64) ** 0.5, rtol=0.05)


def test_uniform_between():
    drawn = np.asarray(uniform_between(0.25)(KEY, (100, 100)))
    assert -0.25 <= drawn.min() < -0.249 and 0.249 < drawn.max() <= 0.25
