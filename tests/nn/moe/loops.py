"""Mixtures of experts by loops over tokens, in float64, and gradients by differences."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def ffn(x: np.ndarray, of: dict, f: Callable, expert: int | None = None) -> np.ndarray:
    """Returns the output for one token [D]; gated where there is a kernel `wg`."""
    at = () if expert is None else (expert,)

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ of[name]["kernel"][at] + (of[name]["bias"][at] if "bias" in of[name] else 0)

    return dense("wo", f(dense("wg", x)) * dense("wi", x) if "wg" in of else f(dense("wi", x)))


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
