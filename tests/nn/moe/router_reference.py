"""Routers as loops over one token's experts in float64, and gradients by finite differences.

Independent of the package: no sorting networks, no one-hots, no automatic differentiation.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

Token = dict[str, np.ndarray]  # "z" and, with noise, "std" and "noise"; "keep" of expert dropout


def choose(scores: Sequence[float], K: int, keep: Sequence[bool]) -> list[int]:
    """Returns the kept experts with the largest scores, then dropped ones; ties by index."""
    kept = sorted((e for e in range(len(scores)) if keep[e]), key=lambda e: (-scores[e], e))
    return (kept + [e for e in range(len(scores)) if not keep[e]])[:K]


def softmax(z: Sequence[float]) -> list[float]:
    top = max(z)
    total = sum(math.exp(value - top) for value in z)
    return [math.exp(value - top) / total for value in z]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def normal_below(x: float) -> float:
    """Returns Phi(x)."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def route_softmax(token: Token, K: int, index: list[int] | None = None) -> dict:
    z, keep = token["z"], token["keep"]
    index = index or choose(z, K, keep)
    probs = softmax(z)
    return {"index": index, "gate": [probs[e] * keep[e] for e in index], "probs": probs}


def route_renormalized(token: Token, K: int, index: list[int] | None = None) -> dict:
    z, keep = token["z"], token["keep"]
    index = index or choose(z, K, keep)
    total = sum(math.exp(z[e]) for e in index if keep[e]) or 1.0
    gate = [math.exp(z[e]) / total * keep[e] for e in index]
    return {"index": index, "gate": gate, "probs": softmax(z)}


def route_sigmoid(token: Token, K: int, index: list[int] | None = None) -> dict:
    z, keep = token["z"], token["keep"]
    index = index or choose(z, K, keep)
    return {"index": index, "gate": [sigmoid(z[e]) * keep[e] for e in index], "probs": softmax(z)}


def route_sinkhorn(token: Token, K: int, index: list[int] | None = None) -> dict:
    """`token["offset"]` is what balances; the gates are those of the raw logits."""
    z, keep = token["z"], token["keep"]
    scores = [z[e] + token["offset"][e] for e in range(len(z))]
    index = index or choose(scores, K, keep)
    gate = [sigmoid(z[e]) * keep[e] for e in index]
    return {"index": index, "gate": gate, "probs": softmax(scores)}


def route_noisy(token: Token, K: int, index: list[int] | None = None) -> dict:
    z, std, noise = token["z"], token["std"], token["noise"]
    E = len(z)
    h = [z[e] + (0 if noise is None else noise[e] * std[e]) for e in range(E)]
    index = index or choose(h, K, [True] * E)
    total = sum(math.exp(h[e]) for e in index)
    load = []
    for e in range(E):
        others = sorted((h[other] for other in range(E) if other != e), reverse=True)
        if noise is None or K == E:
            load.append(float(e in index))
        else:
            load.append(normal_below((z[e] - others[K - 1]) / std[e]))
    gate = [math.exp(h[e]) / total for e in index]
    return {"index": index, "gate": gate, "probs": softmax(h), "load": load}


def route_hierarchical(token: Token, K: int, index: list[int] | None = None) -> dict:
    """Two of three groups of two experts, K/2 experts in each; columns: groups, then experts."""

    def part(first: int, size: int) -> Token:
        cut = lambda x: None if x is None else x[first : first + size]  # noqa: E731
        return {key: cut(token[key]) for key in ("z", "std", "noise")}

    of_groups = sorted({e // 2 for e in index}) if index else None
    top = route_noisy(part(0, 3), 2, of_groups)
    inner = []
    for i in range(3):
        of_experts = [e % 2 for e in index or () if e // 2 == i] or None
        inner.append(route_noisy(part(3 + 2 * i, 2), K // 2, of_experts))
    gates = {}
    for i, group_gate in zip(top["index"], top["gate"], strict=True):
        for j, gate in zip(inner[i]["index"], inner[i]["gate"], strict=True):
            gates[i * 2 + j] = group_gate * gate
    index = index or sorted(gates, key=lambda e: (-gates[e], e))
    chosen = [float(i in top["index"]) for i in range(3)]
    pairs = [(i, j) for i in range(3) for j in range(2)]
    return {
        "index": index,
        "gate": [gates[e] for e in index],
        "probs": [top["probs"][i] * inner[i]["probs"][j] for i, j in pairs],
        "load": [inner[i]["load"][j] * chosen[i] for i, j in pairs],
        "group_load": top["load"],
        "group_chosen": chosen,
    }


def differences(f: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Returns the gradient of f at x by central differences."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append(f(moved))
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient
