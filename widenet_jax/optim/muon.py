"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): orthogonal updates.

Matrices here are the kernels of the encoder's layers, each expert's and each of q, k, v its own;
routers and adapters are left out, as are all that is not in a block: embeddings, positions, heads.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from widenet_jax.param_names import is_matrix, map_with_path
from widenet_jax.typing import Array, PyTree


def muon(
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: float,
    weight_decay: float,
    mask: Callable[[PyTree], PyTree],
    others: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Builds Muon: p <- p - lr * (sqrt(max(1, out / in)) * O + weight_decay * p).

    O is nearly orthogonal: five steps of Newton and Schulz from the momentum, looking one step
    ahead (Nesterov), both as `optax.contrib.scale_by_muon` has them.

    Args:
      learning_rate: a number, or a function of the number of updates so far.
      momentum: decay of the mean of the gradients.
      weight_decay: factor of p.
      mask: of the parameters that decay, as `optax.adamw` takes it.
      others: the optimizer of all parameters that are no matrices.
    """

    matrices = optax.chain(
        scale_by_muon(beta=momentum, weight_dimension_numbers=axes),
        optax.stateless(lambda updates, _: jax.tree.map(scaled, updates)),
        optax.add_decayed_weights(weight_decay, mask=mask),
        optax.scale_by_learning_rate(learning_rate),
    )
    return optax.multi_transform({"matrix": matrices, "other": others}, labels)


def axes(params: PyTree) -> PyTree:
    """Returns the axes of each matrix, [in, out], the last two of [experts, in, out]."""
    return jax.tree.map(lambda _: MuonDimensionNumbers(-2, -1), params)


def scaled(update: Array) -> Array:
    """Returns an orthogonal update [..., in, out] times sqrt(max(1, out / in))."""
    fan_in, fan_out = update.shape[-2:]
    return update * jnp.sqrt(max(1, fan_out / fan_in))


def labels(params: PyTree) -> PyTree:
    """Returns "matrix" or "other" for each parameter."""
    return map_with_path(lambda path, x: "matrix" if is_matrix(path, x.ndim) else "other", params)
