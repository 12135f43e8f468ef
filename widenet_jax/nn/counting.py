"""The number of a model's parameters, without allocating any."""

from functools import partial

import flax.linen as nn
import jax

from widenet_jax.typing import PyTree, Shapes


def parameter_shapes(model: nn.Module, input_spec: Shapes) -> PyTree:
    """Returns shapes and dtypes of the parameters of a model with such inputs."""
    init = partial(model.init, train=False)
    return jax.eval_shape(init, jax.random.key(0), dict(input_spec))["params"]


def count_parameters(shapes: PyTree) -> int:
    """Returns the number of scalars in a tree of arrays or shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def count_unrolled(model: nn.Module, input_spec: Shapes) -> int:
    """Counts the parameters of the same model with nothing shared: all that its blocks apply."""
    apart = model.clone(share_attention=False, share_ffn=False, share_norms=False)
    return count_parameters(parameter_shapes(apart, input_spec))
