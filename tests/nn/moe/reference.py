"""A mixture of experts as loops over tokens in float64 NumPy, with the gradient by hand.

Independent of the package: no one-hots, no cumulative sums, no automatic differentiation.
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass
class Reference:
    """Outputs and gradients of loss = sum(y * cotangent) + weight * balance, one group each."""

    y: np.ndarray
    balance: float
    dropped: int
    load: np.ndarray
    gradients: dict[str, np.ndarray]


def gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the tanh form and its derivative."""
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    derivative = 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * c * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + t), derivative


def slots_in_order(order: list[tuple[int, int]], chosen: list[list[int]], limit: int) -> set:
    """Returns the (token, choice) pairs that get a slot if served in `order`."""
    taken: dict[int, int] = {}
    kept = set()
    for token, choice in order:
        expert = chosen[token][choice]
        taken[expert] = taken.get(expert, 0) + 1
        if taken[expert] <= limit:
            kept.add((token, choice))
    return kept


def moe_group(
    x: np.ndarray,  # [S, D]
    mask: np.ndarray,  # [S]
    weights: dict[str, np.ndarray],  # router [D, E], wi [E, D, F], bi, wo [E, F, D], bo
    cotangent: np.ndarray,  # [S, D]
    *,
    K: int,
    capacity_factor: float,
    first_choice_first: bool,
    balance_weight: float,
) -> Reference:
    S, _ = x.shape
    E = weights["router"].shape[1]
    real = [s for s in range(S) if mask[s]]
    n = len(real)
    limit = math.ceil(round(capacity_factor * K * n / E, 9))

    probs, chosen = np.zeros((S, E)), []
    for s in range(S):
        scores = np.exp(x[s] @ weights["router"] - (x[s] @ weights["router"]).max())
        probs[s] = scores / scores.sum()
        chosen.append(sorted(range(E), key=lambda e, s=s: (-probs[s, e], e))[:K])
    order = [(s, k) for s in real for k in range(K)]
    if first_choice_first:
        order = [(s, k) for k in range(K) for s in real]
    kept = slots_in_order(order, chosen, limit)

    m, P = np.zeros(E), np.zeros(E)
    for s in real:
        P += probs[s] / n
        for e in chosen[s]:
            m[e] += 1 / (K * n)

    y = np.zeros_like(x)
    grad = {name: np.zeros_like(value) for name, value in weights.items()} | {"x": np.zeros_like(x)}
    d_probs = np.zeros((S, E))
    for s in real:
        d_probs[s] += balance_weight * E * m / n
    for s, k in kept:
        e = chosen[s][k]
        gate, d_y = probs[s, e], cotangent[s]
        h = x[s] @ weights["wi"][e] + weights["bi"][e]
        a, slope = gelu(h)
        out = a @ weights["wo"][e] + weights["bo"][e]
        y[s] += gate * out
        d_probs[s, e] += out @ d_y
        d_out = gate * d_y
        grad["wo"][e] += np.outer(a, d_out)
        grad["bo"][e] += d_out
        d_h = (weights["wo"][e] @ d_out) * slope
        grad["wi"][e] += np.outer(x[s], d_h)
        grad["bi"][e] += d_h
        grad["x"][s] += weights["wi"][e] @ d_h
    for s in range(S):
        d_logits = probs[s] * (d_probs[s] - d_probs[s] @ probs[s])
        grad["router"] += np.outer(x[s], d_logits)
        grad["x"][s] += weights["router"] @ d_logits
    return Reference(
        y=y,
        balance=float(E * (m * P).sum()),
        dropped=K * n - len(kept),
        load=np.array([sum(chosen[s].count(e) for s in real) for e in range(E)]),
        gradients=grad,
    )
