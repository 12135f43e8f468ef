"""LAMB (You et al. 2020, arXiv:1904.00962, algorithm 2), independent of how kernels are stored.

A trust ratio belongs to a unit: one kernel of one block, or of one expert, or of one of q, k, v. It
does not change if several units are stacked in one array.
"""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from widenet_jax.param_names import PathPredicate, map_with_path, matches, trust_ratio_unit_axes
from widenet_jax.typing import Array, PyTree

nothing = matches("")  # the predicate that excludes no path


def trust_ratio(param: Array, update: Array, unit_axes: tuple[int, ...]) -> Array:
    """Computes ||param|| / ||update|| for each unit, in float32; 1 where either norm is 0.

    Args:
      param: any shape; float.
      update: the same shape.
      unit_axes: axes that separate units; norms run over all the others.

    Returns:
      float32, the shape of `param` with size 1 on every axis not in `unit_axes`.
    """
    reduced = tuple(axis for axis in range(param.ndim) if axis not in unit_axes)

    def norm(x: Array) -> Array:
        return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis=reduced, keepdims=True))

    param_norm, update_norm = norm(param), norm(update)
    usable = (param_norm > 0) & (update_norm > 0)
    return jnp.where(usable, param_norm / jnp.where(usable, update_norm, 1.0), 1.0)


def scale_by_trust_ratio(exclude: PathPredicate = nothing) -> optax.GradientTransformation:
    """Multiplies each unit's update by its trust ratio, ||param|| / ||update||.

    Differs from `optax.scale_by_trust_ratio`, which takes one ratio per leaf: there, four experts
    stacked in one array share one ratio, which differs from the ratio of each.

    Args:
      exclude: paths whose updates are not scaled.
    """

    def scale(path: str, update: Array, param: Array) -> Array:
        if exclude(path):
            return update
        ratio = trust_ratio(param, update, trust_ratio_unit_axes(path, param.ndim))
        return (update * ratio).astype(update.dtype)

    return optax.stateless(lambda updates, params: map_with_path(scale, updates, params))


def lamb(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    mask: Callable[[PyTree], PyTree] | None = None,
    exclude_trust_ratio: PathPredicate = nothing,
) -> optax.GradientTransformation:
    """Builds LAMB: p <- p - lr * ratio(p, u) * u.

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p, where m_hat and v_hat are Adam's moments
    with bias correction. There is one ratio for each kernel of a block, of an expert, of q, k or v.

    Args:
      learning_rate: a number, or a function of the number of updates so far.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added outside the square root.
      weight_decay: factor of p inside u, so that the ratio scales it, as in the paper.
      mask: of the parameters that decay, as `optax.adamw` takes it; None for all.
      exclude_trust_ratio: paths whose ratio is 1.
    """

    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay, mask=mask),
        scale_by_trust_ratio(exclude_trust_ratio),
        optax.scale_by_learning_rate(learning_rate),
    )
