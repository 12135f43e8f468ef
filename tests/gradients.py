"""Gradients against differences of a loss in float64."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def assert_gradients(loss: Callable[[Any], float], params: Any, gradients: Any) -> None:
    """Compares each leaf's gradient with differences of a float64 loss along two directions."""
    params = jax.tree.map(np.float64, params)
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for i, (name, gradient) in enumerate(zip(names, jax.tree.leaves(gradients), strict=True)):
        for _ in range(2):
            v = rng.normal(size=leaves[i].shape)
            steps = ([*leaves[:i], leaves[i] + h * v, *leaves[i + 1 :]] for h in (1e-5, -1e-5))
            up, down = (loss(tree.unflatten(some)) for some in steps)
            scale = 1 + np.abs(gradient).max() * np.abs(v).sum()
            assert abs((up - down) / 2e-5 - (gradient * v).sum()) < 1e-5 * scale, name
