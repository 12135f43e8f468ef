"""Mixtures of experts by loops over tokens, in float64."""

from collections.abc import Callable

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
