"""Linear maps: what `nn.Dense` computes, with the kernel's gradient kept in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.layers.dense import Dense, apply_kernel


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
    ("spec", "x_shape", "kernel_shape"),
    [("btd,df->btf", (2, 3, 8), (8, 5)), ("egci,eio->egco", (4, 2, 3, 8), (4, 8, 5))],
)
def test_gradient_of_a_kernel_is_not_rounded(spec: str, x_shape: tuple, kernel_shape: tuple):
    """bfloat16 products, added up in float32: against the same products in float64."""
    x = jax.random.normal(jax.random.key(0), x_shape, jnp.bfloat16)
    kernel = jax.random.normal(jax.random.key(1), kernel_shape)
    y, pull = jax.vjp(lambda x, kernel: apply_kernel(spec, x, kernel), x, kernel)
    dy = jax.random.normal(jax.random.key(2), y.shape, jnp.bfloat16)
    dx, d_kernel = pull(dy)
    assert (y.dtype, dx.dtype, d_kernel.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    exact = np.einsum(f"{of_x},{of_y}->{of_kernel}", np.float64(x), np.float64(dy))
    np.testing.assert_allclose(d_kernel, exact, rtol=1e-5, atol=1e-5)
