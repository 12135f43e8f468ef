"""Linear maps agree with `nn.Dense`; gradients of parameters are summed in float32."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import equations_in

from widenet_jax.nn import dense
from widenet_jax.nn.dense import Dense, kernel_gradient, linear
from widenet_jax.sharding import BATCH, build_mesh


def test_equals_flax_and_has_its_parameters():
    x = jax.random.normal(jax.random.key(0), (2, 3, 8))
    ours, theirs = Dense(5), nn.Dense(5, kernel_init=nn.initializers.glorot_uniform())
    params = ours.init(jax.random.key(1), x)
    jax.tree.map(np.testing.assert_array_equal, params, theirs.init(jax.random.key(1), x))

    def run(module: nn.Module):
        return jax.value_and_grad(lambda p, x: (module.apply(p, x) ** 2).sum(), argnums=(0, 1))(
            params, x
        )

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), run(ours), run(theirs))


@pytest.mark.parametrize(
    ("spec", "x_shape", "kernel_shape", "bias_shape"),
    [
        ("btd,df->btf", (2, 3, 8), (8, 5), (5,)),
        ("egci,eio->egco", (4, 2, 3, 8), (4, 8, 5), (4, 5)),
        ("egci,eio->egco", (17, 1, 2, 4), (17, 4, 3), (17, 3)),  # more than `UNROLLED_EXPERTS`
    ],
)
def test_gradients_of_one_product(spec: str, x_shape: tuple, kernel_shape: tuple, bias_shape):
    """Compared with float64: the kernel's is rounded to bfloat16 once, the bias's not at all."""
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], x_shape, jnp.bfloat16)
    kernel, bias = jax.random.normal(keys[1], kernel_shape), jax.random.normal(keys[2], bias_shape)
    y, pull = jax.vjp(lambda *arguments: linear(spec, *arguments), x, kernel, bias)
    dy = jax.random.normal(keys[3], y.shape, jnp.bfloat16)
    dx, d_kernel, d_bias = pull(dy)
    assert (y.dtype, dx.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert (d_kernel.dtype, d_bias.dtype) == (jnp.float32, jnp.float32)
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    exact = np.einsum(f"{of_x},{of_y}->{of_kernel}", np.float64(x), np.float64(dy))
    np.testing.assert_allclose(d_kernel, exact, rtol=2**-8, atol=1e-6)
    axes = tuple(axis for axis, letter in enumerate(of_y) if letter in "btgc")
    np.testing.assert_allclose(d_bias, np.float64(dy).sum(axes), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", ["nd,df->nf", "ei,eio->eo"])
def test_the_batch_has_a_letter_that_shards_it(spec: str):
    """Refused at once rather than in training on a mesh; the second has no axis for the batch."""
    x, kernel = (jnp.ones([2] * len(letters)) for letters in spec.partition("->")[0].split(","))
    with pytest.raises(AssertionError, match=f"{spec}.* is (n|none); name this axis b"):
        linear(spec, x, kernel, None)


@pytest.mark.parametrize("fsdp", [1, -1])
def test_devices_gradients_add_up_in_float32(fsdp: int):
    """Each device rounds its own product; the sum over eight of them is not rounded again."""
    mesh = build_mesh({"fsdp": fsdp, "expert": 1}, jax.devices())
    x, dy = (jax.random.normal(jax.random.key(i), (8, 3, 16), jnp.bfloat16) for i in range(2))
    kernel, bias = jnp.zeros((16, 16)), jnp.zeros(16)

    def gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
        return jax.vjp(lambda kernel: linear("btd,df->btf", x, kernel, bias), kernel)[1](dy)[0]

    with jax.set_mesh(mesh):
        ours = jax.jit(gradient, in_shardings=(BATCH, BATCH))(x, dy)
    of_device = np.einsum("btd,btf->bdf", np.float64(x), np.float64(dy))
    rounded = jnp.asarray(of_device, jnp.bfloat16).astype(jnp.float32).sum(0)
    np.testing.assert_allclose(ours, rounded, rtol=1e-5, atol=1e-5)
    assert np.abs(ours - of_device.sum(0)).max() > 1e-3  # so the devices' products are rounded


@pytest.mark.parametrize(
    ("spec", "x_shape", "dy_shape", "summed", "batch"),
    [
        ("btd,df->btf", (8, 3, 4), (8, 3, 5), (1,), (0,)),
        ("egci,eio->egco", (4, 8, 3, 5), (4, 8, 3, 6), (2,), (0, 1)),
        ("bsxf,xfd->bsxd", (8, 3, 2, 4), (8, 3, 2, 5), (1,), (0, 2)),
        ("btnh,mnh->bntm", (8, 3, 2, 4), (8, 2, 3, 5), (1, 3), (0, 2)),  # dy's are apart
    ],
)
@pytest.mark.parametrize("expert", [1, 2])
def test_on_gpus_a_product_sums_over_one_axis(
    spec: str,
    x_shape: tuple,
    dy_shape: tuple,
    summed: tuple,
    batch: tuple,
    expert: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """The experts stay the first axis: then XLA copies no operand."""
    monkeypatch.setattr(dense, "platform", lambda: "gpu")
    x, dy = (jax.random.normal(jax.random.key(0), shape) for shape in (x_shape, dy_shape))
    gradient = jax.jit(partial(kernel_gradient, spec))
    with jax.set_mesh(build_mesh({"fsdp": -1, "expert": expert}, jax.devices())):
        every = equations_in(jax.make_jaxpr(gradient)(x, dy).jaxpr)
        (product,) = (one for one in every if one.primitive.name == "dot_general")
        ours = gradient(x, dy)
    (axes, _), (shared, _) = product.params["dimension_numbers"]
    assert (tuple(axes), tuple(shared)) == (summed, batch)
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    exact = np.einsum(f"{of_x},{of_y}->{of_kernel}", np.float64(x), np.float64(dy))
    np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5)
