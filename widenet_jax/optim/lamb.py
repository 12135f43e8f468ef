"""LAMB (You et al. 2020, arXiv:1904.00962, algorithm 2) with a unit that storage cannot change."""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from widenet_jax.param_names import PathPredicate, map_with_path, matches, trust_ratio_unit_axes
from widenet_jax.typing import Array, PyTree

nothing = matches("")  # the predicate that excludes no path


def trust_ratio(param: Array, update: Array, unit_axes: tuple[int, ...]) -> Array:
    """||param|| / ||update|| for each unit; 1 where either norm is 0. Norms are in float32.

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


def scale_by_trust_ratio(
    unit_axes: Callable[[str, int], tuple[int, ...]] = trust_ratio_unit_axes,
    *,
    exclude: PathPredicate = nothing,
) -> optax.GradientTransformation:
    """Multiplies each unit's update by its trust ratio, ||param|| / ||update||.

    Differs from `optax.scale_by_trust_ratio`, which takes one ratio a leaf: there four experts
    stacked in one array share a ratio that none of them would have alone.

    Args:
      unit_axes: for the path and rank of a leaf, the axes over which it holds several units.
      exclude: paths whose updates pass unscaled.
    """

    def scale(path: str, update: Array, param: Array) -> Array:
        if exclude(path):
            return update
        ratio = trust_ratio(param, update, unit_axes(path, param.ndim))
        return (update * ratio).astype(update.dtype)

    def update_fn(updates, state, params=None):
        if params is None:
            raise ValueError(
                "the trust ratio needs the parameters: call tx.update(g, state, params)"
            )
        return map_with_path(scale, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update_fn)


def lamb(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    exclude_decay: PathPredicate = nothing,
    exclude_trust_ratio: PathPredicate = nothing,
) -> optax.GradientTransformation:
    """p <- p - lr * ratio(p, u) * u, with u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p.

    m_hat and v_hat are Adam's moments with bias correction; the ratio is taken per kernel of one
    block, one expert, one of q, k, v.

    Args:
      learning_rate: a number, or a function of the count of updates so far.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added outside the square root.
      weight_decay: factor of p inside u, so under the ratio, as in the paper.
      exclude_decay: paths without decay.
      exclude_trust_ratio: paths whose ratio is 1.
    """
    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay, mask=decay_mask(exclude_decay)),
        scale_by_trust_ratio(exclude=exclude_trust_ratio),
        optax.scale_by_learning_rate(learning_rate),
    )


def decay_mask(exclude: PathPredicate) -> Callable[[PyTree], PyTree]:
    """The mask optax asks for: a function from parameters to booleans, True where they decay."""
    return lambda params: map_with_path(lambda path, _: not exclude(path), params)
