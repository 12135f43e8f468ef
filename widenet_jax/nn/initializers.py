"""Initialisers of the kernels of a stack of blocks, chosen by one name for all of them.

A layer has a field `kernel_init`, a `KernelInit`: the name that the config gives, and the depth of
the stack, on which some schemes depend. The layer says which kind of kernel it initialises. Only
`Dense` and `KernelAndBias` take the initialiser itself, as `nn.Dense` does.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax.linen import initializers
from flax.typing import Initializer

from widenet_jax.typing import Array


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How the kernels of a stack of blocks are drawn.

    Attributes:
      draw: called with `depth`, the number of blocks; `batch_axis`, the axes over which one stored
        array holds several kernels; and `fan_in`, None for the fan-in of one kernel. Returns an
        initialiser.
      ffn_bias: initialiser of both biases of a feed-forward.
      experts_as_one: the output kernels of E experts of width F have the fan E F of the dense layer
        that they replace, instead of F.
      equal_router: the router's vectors of all experts have the same norm.
    """

    draw: Callable[..., Initializer]
    ffn_bias: Initializer = initializers.zeros
    experts_as_one: bool = False
    equal_router: bool = False


def pre_norm(
    *, depth: int, batch_axis: tuple[int, ...], fan_in: int | None, scale: float = 1.0
) -> Initializer:
    """Normal with standard deviation scale * sqrt(2 / (depth * fan_in)).

    With it the residual stream of a pre-norm stack keeps its scale at any depth (Csordás et al.
    2023, section 5).
    """

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        inputs = [n for axis, n in enumerate(shape[:-1]) if axis not in batch_axis]
        std = scale * math.sqrt(2 / (depth * (fan_in or math.prod(inputs))))
        return std * jax.random.normal(key, shape, dtype)

    return init


KERNEL_INITS: dict[str, Scheme] = {
    # Uniform with variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010). Biases are N(0, 1e-6)
    # in the released code of WideNet, 0 in BERT.
    "glorot_uniform": Scheme(
        lambda *, batch_axis, **_: initializers.glorot_uniform(batch_axis=batch_axis),
        ffn_bias=initializers.normal(1e-6),
    ),
    # N(0, 0.02) cut at two standard deviations (BERT); does not depend on the fans.
    "truncated_normal": Scheme(lambda **_: initializers.truncated_normal(0.02)),
    "pre_norm": Scheme(pre_norm, experts_as_one=True, equal_router=True),
    # The ablation "standard init" of Csordás et al.
    "pre_norm_each_expert": Scheme(pre_norm, equal_router=True),
    # A tenth of pre_norm's variance: Csordás et al. 2023's Switch. Fedus et al. 2021 have no depth
    # in it, and cut at two standard deviations.
    "switch": Scheme(partial(pre_norm, scale=math.sqrt(0.1))),
}


@dataclasses.dataclass(frozen=True)
class KernelInit:
    """The initialisers of one stack of blocks, by kind of kernel.

    Attributes:
      name: a key of `KERNEL_INITS`.
      depth: L, the number of blocks.
    """

    name: str = "glorot_uniform"
    depth: int = 1

    @property
    def scheme(self) -> Scheme:
        """The entry of `KERNEL_INITS`."""
        return KERNEL_INITS[self.name]

    def kernel(self, *, batch_axis: tuple[int, ...] = (), fan_in: int | None = None) -> Initializer:
        """Returns the initialiser of a kernel [..., in, out].

        Args:
          batch_axis: axes over which the array holds several kernels, each with its own fans.
          fan_in: for a scheme that depends on it alone; None: the product of the input axes.
        """
        return self.scheme.draw(depth=self.depth, batch_axis=batch_axis, fan_in=fan_in)

    def experts_out(self, num_experts: int, mlp_dim: int) -> Initializer:
        """Returns the initialiser of the experts' output kernels [E, F, D]."""
        as_one = num_experts * mlp_dim if self.scheme.experts_as_one else None
        return self.kernel(batch_axis=(0,), fan_in=as_one)

    def router(self) -> Initializer:
        """Returns the initialiser of a router's kernel [D, E]."""
        return equal_norms(self.kernel()) if self.scheme.equal_router else self.kernel()


def equal_norms(draw: Initializer) -> Initializer:
    """Gives the columns that `draw` returns one norm and keeps the array's standard deviation.

    No expert is then chosen more often at first because its vector is longer (Csordás et al. 2023).
    """

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        drawn = draw(key, shape, dtype)
        equal = drawn / jnp.linalg.norm(drawn, axis=0, keepdims=True)
        return equal * (drawn.std() / equal.std())

    return init


def uniform_between(limit: float) -> Initializer:
    """Uniform in [-limit, limit]."""

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return init
