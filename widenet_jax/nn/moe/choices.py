"""The K experts that each token chose, as a mask over all E of them.

By comparisons, so that no gradient scatters. Leading axes are any, such as [G, S].
"""

import jax.numpy as jnp

from widenet_jax.typing import Array


def choice_mask(expert_index: Array, num_experts: int) -> Array:  # [..., K] -> [..., K, E] bool
    """Marks the expert of each choice."""
    return expert_index[..., None] == jnp.arange(num_experts)


def chosen_experts(expert_index: Array, num_experts: int) -> Array:  # [..., K] -> [..., E] bool
    """Marks the experts that the token chose."""
    return choice_mask(expert_index, num_experts).any(axis=-2)


def pick(values: Array, expert_index: Array) -> Array:  # [..., E], [..., K] -> [..., K]
    """Returns the values of the chosen experts."""
    chosen = choice_mask(expert_index, values.shape[-1])
    return jnp.where(chosen, values[..., None, :], jnp.zeros((), values.dtype)).sum(axis=-1)


def spread(values: Array, expert_index: Array, num_experts: int) -> Array:
    """Places the values of the choices at their experts, [..., K] to [..., E]; 0 elsewhere.

    A token chooses an expert at most once, so that its K choices never overlap.
    """
    chosen = choice_mask(expert_index, num_experts)
    return jnp.where(chosen, values[..., None], jnp.zeros((), values.dtype)).sum(axis=-2)
