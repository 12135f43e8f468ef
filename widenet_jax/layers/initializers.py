"""Initialisers of kernels by name.

Each entry is called with `batch_axis`, the axes over which one stored array holds several kernels
(the experts' axis), and returns an initialiser with the fans of one kernel.
"""

from collections.abc import Callable

from flax.linen import initializers
from flax.typing import Initializer


def truncated_normal(*, batch_axis: tuple[int, ...] = ()) -> Initializer:
    """N(0, 0.02) cut at two standard deviations (BERT); does not depend on the fans."""
    del batch_axis
    return initializers.truncated_normal(0.02)


KERNEL_INITS: dict[str, Callable[..., Initializer]] = {
    "glorot_uniform": initializers.glorot_uniform,
    "truncated_normal": truncated_normal,
}

# Biases of both layers of a feed-forward, by the initialiser of its kernels: N(0, 1e-6) in the
# released code of WideNet, 0 in BERT.
FFN_BIAS_INITS: dict[str, Initializer] = {
    "glorot_uniform": initializers.normal(1e-6),
    "truncated_normal": initializers.zeros,
}
