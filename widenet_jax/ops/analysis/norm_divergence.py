"""Divergence of the norms of different blocks (WideNet, eq. 9, figs. 4 and 5)."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from widenet_jax.errors import BadInputError
from widenet_jax.param_names import ENCODER, split_block_part

NORM = "norm_ffn"
VECTORS = {"gamma": "scale", "beta": "bias"}  # the paper's names and ours


class Divergence(NamedTuple):
    """Eq. 9 of one vector (gamma or beta) over the norms of L blocks with D elements each.

    Attributes:
      element: [D]; for element i, |v_ij - v_mn| summed over blocks j, elements m and blocks
        n != j, times 1 / (D L^2): eq. 9 as printed.
      block: [L]; for block j, the same summed over elements i and m and blocks n != j, times
        1 / (D^2 L). The figures plot it. Its mean over blocks is the mean of `element`.
    """

    element: np.ndarray
    block: np.ndarray


def divergence(vectors: np.ndarray) -> Divergence:
    """Computes eq. 9 for `vectors` [L, D], one row for each block, in float64.

    Sorting avoids the D^2 L^2 terms: in sorted order, the sum of the distances from one number to
    all others is the difference of two partial sums.
    """
    v = np.asarray(vectors, np.float64)
    L, D = v.shape
    to_all = sums_of_distances(v, v.ravel())
    to_own_block = np.stack([sums_of_distances(row, row) for row in v])
    to_others = to_all - to_own_block  # [L, D]
    element, block = to_others.sum(axis=0) / (D * L**2), to_others.sum(axis=1) / (D**2 * L)
    return Divergence(element, block)


def sums_of_distances(points: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns, for each point p, the sum of |p - x| over all x in `values` (1-D)."""
    ordered = np.sort(values)
    partial = np.concatenate([[0.0], np.cumsum(ordered)])
    below = np.searchsorted(ordered, points)
    above = len(ordered) - below
    return points * below - partial[below] + (partial[-1] - partial[below]) - points * above


def own_norms(params: Mapping) -> list[str]:
    """Lists the norms before the feed-forwards of one block each; [] if the blocks share one."""
    return sorted(n for n in params[ENCODER] if n != NORM and split_block_part(n)[1] == NORM)


def norm_divergence(params: Mapping) -> dict[str, Divergence]:
    """Returns {"gamma": ..., "beta": ...} for the norms before a model's feed-forwards.

    RMSNorm has no beta.

    Raises:
      BadInputError: fewer than two blocks have their own norm.
    """
    encoder, names = params[ENCODER], own_norms(params)
    if len(names) < 2:
        raise BadInputError(
            "divergence of norms (eq. 9) compares blocks that have their own norms; this model has "
            f"{len(names)} such blocks"
        )
    return {
        vector: divergence(np.stack([encoder[name][leaf] for name in names]))
        for vector, leaf in VECTORS.items()
        if leaf in encoder[names[0]]
    }
