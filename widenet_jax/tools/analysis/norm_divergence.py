"""How far the LayerNorms of different blocks lie apart (WideNet, eq. 9, figs. 4 and 5)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from widenet_jax.errors import BadInputError

VECTORS = {"gamma": "scale", "beta": "bias"}  # the paper's names and ours


@dataclass(frozen=True)
class Divergence:
    """Eq. 9 of one vector (gamma or beta) over the blocks' norms; L blocks of D elements.

    Attributes:
      element: [D], for element i |v_ij - v_mn| averaged over blocks j, elements m and blocks
        n != j, with 1 / (D L^2): eq. 9 as printed.
      block: [L], the same for block j, averaged over elements i and m and blocks n != j, with
        1 / (D^2 L): what the figures plot, one value a block. Its mean over blocks is the mean of
        `element` over elements.
    """

    element: np.ndarray
    block: np.ndarray


def divergence(vectors: np.ndarray) -> Divergence:
    """Of `vectors` [L, D], row j that of block j; exact in float64.

    The triple sum without its D^2 L^2 steps: in sorted order the sum of the distances from one
    number to all others is two partial sums.
    """
    v = np.asarray(vectors, np.float64)
    L, D = v.shape
    to_all = sums_of_distances(v, v.ravel())
    to_own_block = np.stack([sums_of_distances(row, row) for row in v])
    to_others = to_all - to_own_block  # [L, D]
    return Divergence(
        element=to_others.sum(axis=0) / (D * L**2), block=to_others.sum(axis=1) / (D**2 * L)
    )


def sums_of_distances(points: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each point p the sum of |p - x| over all x of `values` (one axis)."""
    ordered = np.sort(values)
    partial = np.concatenate([[0.0], np.cumsum(ordered)])
    below = np.searchsorted(ordered, points)
    above = len(ordered) - below
    return points * below - partial[below] + (partial[-1] - partial[below]) - points * above


def own_norms(params: Mapping, norm: str = "norm_ffn") -> list[str]:
    """Names of the norms that belong to one block each, by block; none where blocks share one."""
    return sorted(name for name in params["encoder"] if re.fullmatch(rf"block_\d+_{norm}", name))


def norm_divergence(params: Mapping, *, norm: str = "norm_ffn") -> dict[str, Divergence]:
    """{"gamma": ..., "beta": ...} of the LayerNorms before the MoE or feed-forward layers.

    Args:
      params: of one of our models, as `trained.open_trained(place).params`.
      norm: or "norm_attention".

    Raises:
      BadInputError: the blocks share one norm, or there is one block: nothing can differ.
    """
    encoder, names = params["encoder"], own_norms(params, norm)
    if len(names) < 2:
        raise BadInputError(
            "divergence of norms (eq. 9) needs blocks with norms of their own; this model has "
            f"{len(names)}"
        )
    return {
        vector: divergence(np.stack([encoder[name][leaf] for name in names]))
        for vector, leaf in VECTORS.items()
    }
