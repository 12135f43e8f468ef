"""An exponential moving average of the parameters, kept beside the optimizer's state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from widenet_jax.typing import Array, PyTree


class AverageState(NamedTuple):
    """State of `with_average`.

    Attributes:
      inner: of the optimizer.
      average: like the parameters. (In a checkpoint the two have changed places.)
      count: int32, updates so far.
    """

    inner: PyTree
    average: PyTree
    count: Array


def with_average(tx: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Returns `tx`, whose state also averages the parameters after each update.

    average <- d * average + (1 - d) * parameters, d = min(decay, (1 + n) / (10 + n)) after n
    updates, as in TensorFlow, so that the first parameters of a short run are forgotten.
    """

    def init(params: PyTree) -> AverageState:
        return AverageState(tx.init(params), params, jnp.int32(0))

    def update(grads: PyTree, state: AverageState, params: PyTree) -> tuple[PyTree, AverageState]:
        updates, inner = tx.update(grads, state.inner, params)
        after = optax.apply_updates(params, updates)
        d = jnp.minimum(decay, (1 + state.count) / (10 + state.count)).astype(jnp.float32)
        average = jax.tree.map(lambda a, p: d * a + (1 - d) * p, state.average, after)
        return updates, AverageState(inner, average, state.count + 1)

    return optax.GradientTransformation(init, update)


def averaged(params: PyTree, opt_state: PyTree) -> PyTree:
    """Returns the parameters to evaluate and to export: the average, where there is one."""
    return opt_state.average if isinstance(opt_state, AverageState) else params


def swap(params: PyTree, opt_state: PyTree) -> tuple[PyTree, PyTree]:
    """Exchanges the parameters and their average, where there is one; its own inverse.

    A checkpoint stores the average as its parameters, so that all that read models get it.
    """
    if not isinstance(opt_state, AverageState):
        return params, opt_state
    return opt_state.average, opt_state._replace(average=params)


def restarted(opt_state: PyTree, params: PyTree) -> PyTree:
    """Returns a new optimizer's state for other first parameters."""
    if not isinstance(opt_state, AverageState):
        return opt_state
    return opt_state._replace(average=jax.tree.map(jnp.copy, params))
