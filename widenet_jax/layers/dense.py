"""Linear maps: parameters and sums of gradients in float32, products in the dtype of the input."""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from widenet_jax.sharding import AXES, constrain
from widenet_jax.typing import Array

# The mesh axes that split an axis of a product's operands, by its letter in the spec: images,
# routing groups, experts.
SPLIT = {"b": AXES, "g": ("data", "fsdp"), "e": ("expert",)}


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def linear(spec: str, x: Array, kernel: Array, bias: Array) -> Array:
    """`jnp.einsum(spec, x, kernel) + bias` in x's dtype; see `kernel_gradient` for what is special.

    Args:
      spec: as for einsum, of two operands; no axis of one operand may be missing in both others.
      x: any float dtype, which is the result's.
      kernel: float32.
      bias: float32, the axes of the result that are the kernel's.
    """
    y = jnp.einsum(spec, x, kernel.astype(x.dtype))
    of_bias, of_y = axes_of_bias(spec)
    inserted = [axis for axis, letter in enumerate(of_y) if letter not in of_bias]
    return y + jnp.expand_dims(bias.astype(x.dtype), inserted)


def axes_of_bias(spec: str) -> tuple[str, str]:
    """Letters of the bias and of the result: ("f", "btf") of "btd,df->btf"."""
    _, of_kernel, of_y = spec.replace("->", ",").split(",")
    return "".join(letter for letter in of_y if letter in of_kernel), of_y


def _forward(spec: str, x: Array, kernel: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    return linear(spec, x, kernel, bias), (x, kernel)


def _backward(spec: str, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array, Array]:
    x, kernel = saved
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    dx = jnp.einsum(f"{of_y},{of_kernel}->{of_x}", dy, kernel.astype(x.dtype))
    of_bias, _ = axes_of_bias(spec)
    summed = [axis for axis, letter in enumerate(of_y) if letter not in of_bias]
    return dx, kernel_gradient(spec, x, dy), dy.astype(jnp.float32).sum(summed)


linear.defvjp(_forward, _backward)


def kernel_gradient(spec: str, x: Array, dy: Array) -> Array:
    """The float32 gradient of a kernel, from the input of `linear` and the gradient of its result.

    Blocks share kernels, so 24 such gradients may be added, and devices' are. Left to itself the
    compiler rounds each block's to x's dtype and sums it over the devices, once a block, because
    nothing can be moved past the rounding. Here each device's own product leaves the matrix unit
    in x's dtype, which halves what is written and read again; from there on, over blocks and then
    once over devices, everything is added up in float32. For this the devices' shares of the batch
    are an axis of their own, which is summed last.
    """
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    batch = next(letter for letter in of_x if letter not in of_kernel)
    axis = of_x.index(batch)
    mesh = jax.sharding.get_abstract_mesh()
    shares = 1 if mesh.empty else math.prod(mesh.shape[name] for name in SPLIT[batch])
    if x.shape[axis] % shares:
        shares = 1  # as in an initialisation with a single image

    def split(z: Array) -> Array:
        return z.reshape(*z.shape[:axis], shares, -1, *z.shape[axis + 1 :])

    of_x, of_y = (letters.replace(batch, f"z{batch}") for letters in (of_x, of_y))
    products = jnp.einsum(f"{of_x},{of_y}->z{of_kernel}", split(x), split(dy))
    if shares > 1:
        products = constrain(products, P(SPLIT[batch], *map(SPLIT.get, of_kernel)))
    return products.astype(jnp.float32).sum(0)


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
        return linear("btd,df->btf", x.astype(self.dtype), kernel, bias)
