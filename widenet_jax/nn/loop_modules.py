"""What a loop has beside its blocks: what enters its state, and norms that know its number."""

import math
from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.nn.dense import Dense
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.typing import Array


class LoopStart(nn.Module):
    """What enters the state as a loop begins: the state before the core, and the loop's vector.

    Attributes:
      inject: see `LoopSettings`; "linear" has a kernel [2 D, D] without bias, at first
        N(0, 2 / (5 D)) as in Huginn's code, whatever the blocks have: it replaces the state and is
        not added to it.
      loops: number of the group's loops, each with a vector that is 0 at first; 0: no vectors.
      dtype: of the computation.
    """

    inject: str
    loops: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, entry: Array, number: Array | int) -> Array:
        """Returns the state [B, T, D] with which loop `number` of a group begins."""
        if self.inject == "add":
            x = x + entry
        elif self.inject == "linear":
            both, zeros = jnp.concatenate([x, entry], axis=-1), nn.initializers.zeros
            init = nn.initializers.normal(math.sqrt(2 / (5 * x.shape[-1])))
            x = Dense(x.shape[-1], self.dtype, init, zeros, use_bias=False, name="inject")(both)
        if self.loops:
            vectors = self.param("embedding", nn.initializers.zeros, (self.loops, x.shape[-1]))
            x = x + vectors[number].astype(x.dtype)
        return x


class Condition(nn.Module):
    """Modulates a normed state by its loop k: y (1 + g) + b, (g, b) = W2 silu(c_k [+ W1 y]).

    W2 is 0 at first, so that nothing is modulated. The widths are ours, D / 16 between W1 and W2:
    LoopMoE (arXiv:2606.04438), which conditions norms on loop and state, leaves them open.

    Attributes:
      loops: number of loops, each with a vector c_k.
      sees_state: whether W1 y is added.
      kernel_init: initialiser of W1.
      dtype: of the computation.
    """

    loops: int
    sees_state: bool
    kernel_init: KernelInit
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, y: Array, number: Array | int) -> Array:  # [B, T, D] -> [B, T, D]
        """Modulates the state [B, T, D] of loop `number`."""
        D, zeros = y.shape[-1], nn.initializers.zeros
        width = max(1, D // 16)
        dense = partial(Dense, dtype=self.dtype, bias_init=zeros, use_bias=False)
        vectors = self.param("embedding", nn.initializers.normal(1.0), (self.loops, width))
        hidden = vectors[number].astype(y.dtype)[None, None]
        if self.sees_state:
            hidden = hidden + dense(width, kernel_init=self.kernel_init.kernel(), name="state")(y)
        changes = dense(2 * D, kernel_init=zeros, name="modulation")(nn.silu(hidden))
        scale, shift = jnp.split(changes, 2, axis=-1)
        return y * (1 + scale) + shift
