"""Linear maps and dropout.

Parameters are float32, and so are sums of gradients; products run in the input's dtype. The random
numbers of dropout cost a few integer operations each.
"""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from widenet_jax.sharding import AXES, constrain, platform
from widenet_jax.typing import Array

# The mesh axes that shard an axis of an operand, by its letter in the spec: examples, token groups,
# experts.
SPLIT = {"b": AXES, "g": ("data", "fsdp"), "e": ("expert",)}
UNROLLED_EXPERTS = 16  # on a CPU, a product for each; more would take long to compile


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def linear(spec: str, x: Array, kernel: Array, bias: Array | None) -> Array:
    """Computes `jnp.einsum(spec, x, kernel) + bias` in x's dtype.

    The gradients of kernel and bias are sums in float32, see `kernel_gradient`.

    Args:
      spec: as for einsum, of two operands; no axis of one operand may be missing in both others.
        Its letters choose the sharding of the kernel's gradient: "b" is an axis of examples, "g"
        one of token groups, "e" one of experts, and other letters are not sharded, see `SPLIT`. The
        first letter of x that the kernel lacks must be "b" or "g".
      x: any float dtype, which is the result's.
      kernel: float32.
      bias: float32, the axes of the result that are the kernel's; or None.
    """
    batch_letter(spec)  # fails without a gradient and without a mesh, too
    y = jnp.einsum(spec, x, gathered(spec, kernel, x.dtype))
    if bias is None:
        return y
    return y + jnp.expand_dims(bias.astype(x.dtype), axes_without_bias(spec))


def gathered(spec: str, kernel: Array, dtype: jnp.dtype) -> Array:
    """Returns the kernel as a product reads it: whole on each device, but for the experts.

    Without the constraint the compiler may gather the examples and not the kernel, as it did where
    `config.model.unroll=False` loops over kernels that `fsdp` shards.
    """
    of_kernel = spec.replace("->", ",").split(",")[1]
    return constrain(kernel.astype(dtype), P(*map(SPLIT.get, of_kernel)))


def batch_letter(spec: str) -> str:
    """Returns the first letter of x that the kernel lacks, which must be "b" or "g"."""
    of_x, of_kernel, _ = spec.replace("->", ",").split(",")
    batch = next((letter for letter in of_x if letter not in of_kernel), "none")
    assert batch in ("b", "g"), (
        f"linear({spec!r}): the first letter of x that the kernel lacks is {batch}; name this axis "
        "b where it holds examples, g where it holds groups of tokens"
    )
    return batch


def axes_without_bias(spec: str) -> list[int]:
    """Returns the axes of the result that the bias lacks: [0, 1] of "btd,df->btf"."""
    _, of_kernel, of_y = spec.replace("->", ",").split(",")
    return [axis for axis, letter in enumerate(of_y) if letter not in of_kernel]


def _backward(spec: str, saved: tuple, dy: Array) -> tuple[Array, Array, Array | None]:
    x, kernel, bias = saved
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    dx = jnp.einsum(f"{of_y},{of_kernel}->{of_x}", dy, gathered(spec, kernel, x.dtype))
    d_kernel = kernel_gradient(spec, x, dy)
    if bias is None:
        return dx, d_kernel, None
    return dx, d_kernel, dy.astype(jnp.float32).sum(axes_without_bias(spec))


linear.defvjp(lambda spec, *arrays: (linear(spec, *arrays), arrays), _backward)


def kernel_gradient(spec: str, x: Array, dy: Array) -> Array:
    """Computes the float32 gradient of a kernel from x and dy, the gradient of `linear`'s result.

    Blocks share kernels, so up to 24 such gradients are added, over blocks and over devices. By
    default the compiler would round the gradient of each block to x's dtype and all-reduce it once
    per block, because no sum can move past the rounding. Here each device's product leaves the
    matrix unit in x's dtype, which halves the memory traffic; all sums after that, over the blocks
    and then once over the devices, are in float32. For this, the devices' shares of the batch are a
    separate axis, which is summed last.
    """
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    batch = batch_letter(spec)
    axis = of_x.index(batch)
    mesh = jax.sharding.get_abstract_mesh()
    shares = 1 if mesh.empty else math.prod(mesh.shape[name] for name in SPLIT[batch])
    if x.shape[axis] % shares:
        shares = 1  # as in an initialisation with a single example
    if platform() == "cpu" and math.prod(mesh.shape.values()) == 1 and of_x[:-1] == of_y[:-1]:
        if of_kernel == of_x[-1] + of_y[-1]:
            return _product_of_matrices(x, dy)
        if of_kernel == of_x[0] + of_x[-1] + of_y[-1] and len(x) <= UNROLLED_EXPERTS:
            return jnp.stack(list(map(_product_of_matrices, x, dy)))

    summed, place = batch, 0
    if platform() == "gpu":  # sum over one axis, after the experts: else XLA transposes x by a copy
        place = axis
        every = "".join(letter for letter in of_x if letter not in of_kernel)
        if every in of_x and every in of_y:
            summed = every

    def split(z: Array) -> Array:
        return z.reshape(*z.shape[:axis], shares, -1, *z.shape[axis + len(summed) :])

    of_x, of_y = (letters.replace(summed, f"z{batch}") for letters in (of_x, of_y))
    of_products = f"{of_kernel[:place]}z{of_kernel[place:]}"
    products = jnp.einsum(f"{of_x},{of_y}->{of_products}", split(x), split(dy))
    if shares > 1:
        axes = SPLIT | {"z": SPLIT[batch]}
        products = constrain(products, P(*map(axes.get, of_products)))
    return products.astype(jnp.float32).sum(place)


def _product_of_matrices(x: Array, dy: Array) -> Array:
    """Computes a kernel's gradient, [D, F] float32, from x [..., D] and dy [..., F], on a CPU.

    The CPU's library multiplies x as it lies if x is a matrix. Otherwise XLA transposes x first, in
    a loop that computes the activation before it over strided memory.
    """
    product = x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])
    return product.astype(jnp.float32)


class Dense(nn.Module):
    """y = x W + b, with W [D, F] and b [F] under the names `nn.Dense` gives them.

    Attributes:
      features: F.
      dtype: dtype of the computation; parameters stay float32.
      kernel_init, bias_init: initialisers.
      use_bias: False leaves b out.
    """

    features: int
    dtype: jnp.dtype = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.glorot_uniform()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [B, T, D] -> [B, T, F]
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        bias = self.param("bias", self.bias_init, (self.features,)) if self.use_bias else None
        return linear("btd,df->btf", x.astype(self.dtype), kernel, bias)


class KernelAndBias(nn.Module):
    """Holds a kernel and a bias, or a kernel alone, under one name, as `nn.Dense` does.

    Attributes:
      shape: of the kernel.
      bias_shape: None for no bias.
      kernel_init, bias_init: initialisers.
    """

    shape: tuple[int, ...]
    bias_shape: tuple[int, ...] | None
    kernel_init: nn.initializers.Initializer
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self) -> tuple[Array, Array | None]:
        kernel = self.param("kernel", self.kernel_init, self.shape)
        bias = self.bias_shape and self.param("bias", self.bias_init, self.bias_shape)
        return kernel, bias


# Odd random uint32 words: one a row [...], one a column [D].
Words = tuple[Array, Array]


def draw_words(key: Array, rows: tuple[int, ...], columns: int) -> Words:
    """Draws the random words of a mask of shape [*rows, columns]; see `keep_mask`."""
    row_key, column_key = jax.random.split(key)
    row = jax.random.bits(row_key, rows, jnp.uint32)
    return row | 1, jax.random.bits(column_key, (columns,), jnp.uint32) | 1


def keep_mask(words: Words, rate: float) -> Array:
    """Returns booleans [*rows, columns], each False with probability `rate`.

    An entry compares the product of its row's word and its column's, modulo 2**32, with a
    threshold. To multiply by an odd number permutes the words, so for fixed column words the rows
    are independent draws, and for fixed row words the columns; two entries of a row are as good as
    uncorrelated (`tests/nn/test_dropout.py`). A generator such as threefry spends some hundred
    operations an entry, and inside a fused product it spends them in the forward and again in the
    backward pass; TPU v3 spends about twelve on one product of integers, later ones one. The mask
    depends on positions alone, so it does not depend on the devices.

    Args:
      words: from `draw_words`; rows may be permuted.
      rate: in [0, 1), in steps of 2**-32.
    """
    # TPUs compare signed integers.
    row, column = (jax.lax.bitcast_convert_type(word, jnp.int32) for word in words)
    return row[..., None] * column >= jnp.int32(round(rate * 2**32) - 2**31)


def drop(x: Array, words: Words | None, rate: float) -> Array:
    """Sets each entry of x to 0 with probability `rate`, else to x / (1 - rate).

    Returns x where `words` is None.
    """
    if words is None:
        return x
    # In float32: 1 - 0.1 rounded to bfloat16 would make every entry 0.18% too large.
    scaled = (x.astype(jnp.float32) / (1 - rate)).astype(x.dtype)
    return jnp.where(keep_mask(words, rate), scaled, jnp.zeros((), x.dtype))


class Dropout(nn.Module):
    """`drop` in training, with the random stream "dropout"; the identity in evaluation.

    Attributes:
      rate: in [0, 1).
    """

    rate: float

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:  # any shape
        if not (train and self.rate):
            return x
        return drop(x, draw_words(self.make_rng("dropout"), x.shape[:-1], x.shape[-1]), self.rate)
