"""Linear maps whose kernels stay float32 while the products run in the dtype of the input."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.typing import Array


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply_kernel(spec: str, x: Array, kernel: Array) -> Array:
    """`jnp.einsum(spec, x, kernel.astype(x.dtype))`, with the kernel's gradient in float32.

    By itself the gradient leaves the matrix unit in x's dtype: rounded to bfloat16 in every block
    that shares the kernel, and summed over the devices once a block, because nothing can be moved
    past the rounding. In float32 the blocks' sum is exact enough and is reduced once.

    Args:
      spec: as for einsum, of two operands; no axis of one operand may be missing in both others.
      x: any float dtype, which is the result's.
      kernel: float32.
    """
    return jnp.einsum(spec, x, kernel.astype(x.dtype))


def _forward(spec: str, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return apply_kernel(spec, x, kernel), (x, kernel)


def _backward(spec: str, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, kernel = saved
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    dx = jnp.einsum(f"{of_y},{of_kernel}->{of_x}", dy, kernel.astype(x.dtype))
    d_kernel = jnp.einsum(f"{of_x},{of_y}->{of_kernel}", x, dy, preferred_element_type=jnp.float32)
    return dx, d_kernel


apply_kernel.defvjp(_forward, _backward)


class Dense(nn.Module):
    """y = x W + b, with W [D, F] and b [F] under the names `nn.Dense` gives them.

    Attributes:
      features: F.
      dtype: of the computation; parameters stay float32.
      kernel_init, bias_init: initialisers.
    """

    features: int
    dtype: jnp.dtype = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.glorot_uniform()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [B, T, D] -> [B, T, F]
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        bias = self.param("bias", self.bias_init, (self.features,))
        return apply_kernel("btd,df->btf", x.astype(self.dtype), kernel) + bias.astype(self.dtype)
