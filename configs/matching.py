"""Feed-forwards of equal parameter counts: the width of a dense layer, the number of product keys.

Csordás et al. 2023 compare models of equal size: a dense layer has as many parameters as the
mixture of experts without biases in its place, its router included. Plain data, without JAX.
"""

import math


def experts_parameters(embed_dim: int, num_experts: int, width: int) -> int:
    """Counts E experts of width G without biases, and their router: 2 D E G + D E."""
    return embed_dim * num_experts * (2 * width + 1)


def dense_parameters(embed_dim: int, mlp_dim: int) -> int:
    """Counts a dense layer of width F with biases: 2 D F + F + D."""
    return 2 * embed_dim * mlp_dim + mlp_dim + embed_dim


def product_key_parameters(embed_dim: int, num_keys: int, num_heads: int) -> int:
    """Counts a product-key memory of n sub-keys without projection: n^2 D + h n D."""
    return embed_dim * num_keys * (num_keys + num_heads)


def matched_mlp_dim(budget: int, embed_dim: int) -> int:
    """Returns the width F of the dense layer whose parameters are nearest to `budget`."""
    return max(1, round((budget - embed_dim) / (2 * embed_dim + 1)))


def matched_num_keys(budget: int, embed_dim: int, num_heads: int) -> int:
    """Returns the number n of sub-keys whose memory's parameters are nearest to `budget`."""
    return max(1, round(math.sqrt(num_heads**2 / 4 + budget / embed_dim) - num_heads / 2))


def values_for(units: int) -> int:
    """Returns the least n with n^2 values for `units` hidden units (Table 6, "equal values")."""
    return math.isqrt(units - 1) + 1
