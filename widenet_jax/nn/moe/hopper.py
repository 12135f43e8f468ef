"""Products of groups of rows by JAX's kernels for Hopper GPUs, in bfloat16.

The kernels take whole blocks, to which arrays are padded with zeros. They skip rows past the last
group, whose results are then whatever the memory held, in the output and in the gradient of x. An
empty group's gradient is 0.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu, transposed_ragged_dot_mgpu

from widenet_jax.typing import Array

# Measured to be right. JAX's forward kernel does not check that block_n divides F: with 256 and
# F = 128 a result was wrong by 4%, see docs/log/gpu_kernels.md.
BLOCK = 128
HOW = {"block_m": BLOCK, "block_n": BLOCK, "block_k": 64}
HOW |= {"max_concurrent_steps": 4, "grid_block_n": 1}


def grouped_product(x: Array, kernel: Array, sizes: Array) -> Array:
    """Multiplies rows by their group's kernel, as `jax.lax.ragged_dot`: [N, D] to [N, F].

    Args:
      x: [N, D], sorted by group. All of it must be finite, and so must the output's gradient: a
        kernel multiplies rows of other groups, and those past the last, by 0.
      kernel: [E, D, F], of x's dtype.
      sizes: [E] int32, the number of rows of each group.
    """
    (N, D), F = x.shape, kernel.shape[2]
    rows, inputs, outputs = ((0, -size % BLOCK) for size in (N, D, F))
    x, kernel = jnp.pad(x, (rows, inputs)), jnp.pad(kernel, ((0, 0), inputs, outputs))
    return whole_blocks(x, kernel, sizes)[:N, :F]


@jax.custom_vjp
def whole_blocks(x: Array, kernel: Array, sizes: Array) -> Array:
    """Computes `grouped_product` where BLOCK divides N, D and F."""
    return ragged_dot_mgpu.ragged_dot(x, kernel, group_sizes=sizes, **HOW)


def _backward(saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array, None]:
    x, kernel, sizes = saved
    how = {"group_sizes": sizes, **HOW}
    dx = ragged_dot_mgpu.ragged_dot(dy, kernel, transpose_rhs=True, **how)
    return dx, transposed_ragged_dot_mgpu.transposed_ragged_dot(x, dy, **how), None


whole_blocks.defvjp(lambda *args: (whole_blocks(*args), args), _backward)
