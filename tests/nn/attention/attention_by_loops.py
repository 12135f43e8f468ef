"""Attention within a window by loops over tokens, heads and experts, in float64."""

from collections.abc import Mapping

import numpy as np

from widenet_jax.nn.attention.full import SelfAttention
from widenet_jax.nn.attention.switch_head import SwitchHead


def by_loops(layer: SelfAttention, params: Mapping, x, values, mask) -> tuple[np.ndarray, float]:
    """Returns the output [B, T, D] and the weighted loss of a layer."""
    (B, T, D), N = x.shape, layer.num_heads
    H, A = layer.head_size(D), getattr(layer, "num_experts", 0)
    y, loss = np.zeros(x.shape), 0.0
    for b in range(B):
        q, k = (heads(params, name, x[b], N, H) for name in ("query", "key"))
        if layer.qk_norm:
            q, k = (
                normed(z, params[f"{name}_norm"]["scale"]) for name, z in (("query", q), ("key", k))
            )
        q, k = (rotated(z, int(layer.rope * H) // 2) for z in (q, k))
        if A > 1:
            logits = {s: (x[b] @ params[f"{s}_router"]).reshape(T, N, A) for s in ("value", "out")}
            s, of_out = (scores(logits[side], layer.num_selected_experts) for side in logits)
            kernels = params["value_experts"]["kernel"].reshape(A, D, N, H)
            v = np.zeros((T, N, H))
            for t, n, a in np.ndindex(T, N, A):
                v[t, n] += s[t, n, a] * (values[b, t] @ kernels[a, :, n])
            for of_side in logits.values():
                loss += layer.entropy * entropy(of_side[mask[b]]) / B
        else:
            v = heads(params, "value", values[b], N, H)
        for t, n in np.ndindex(T, N):
            keys = [j for j in range(t + 1 if layer.causal else T) if mask[b, j]]
            if not keys:
                continue
            weights = np.exp([q[t, n] @ k[j, n] / np.sqrt(H) for j in keys])
            a = sum(w * v[j, n] for w, j in zip(weights / weights.sum(), keys, strict=True))
            y[b, t] += output(layer, params, a, n, x[b, t], of_out[t, n] if A > 1 else None)
        y[b] += params.get("out", {}).get("bias", 0)
    return y, loss


def output(layer: SelfAttention, params: Mapping, a, n: int, x, of_out) -> np.ndarray:
    """Returns what head n adds to the output of a token."""
    H = len(a)
    rows = slice(n * H, (n + 1) * H)
    if of_out is not None:
        kernels = params["out_experts"]["kernel"]
        return sum(s * (a @ kernel[rows]) for s, kernel in zip(of_out, kernels, strict=True))
    gate = 1.0
    if isinstance(layer, SwitchHead):
        gate = 1 / (1 + np.exp(-x @ params["out_router"][:, n]))
    return gate * (a @ params["out"]["kernel"][rows])


def heads(params: Mapping, name: str, x, N: int, H: int) -> np.ndarray:
    return (x @ params[name]["kernel"] + params[name].get("bias", 0)).reshape(-1, N, H)


def normed(z: np.ndarray, weight) -> np.ndarray:
    return z / np.sqrt((z**2).mean(-1, keepdims=True) + 1e-6) * weight


def rotated(z: np.ndarray, pairs: int) -> np.ndarray:
    """Turns dimensions i and i + pairs as a complex number, at place t by t 10000^(-i / pairs)."""
    out = z.copy()
    for t, n, i in np.ndindex(*z.shape[:2], pairs):
        turned = (z[t, n, i] + 1j * z[t, n, pairs + i]) * np.exp(1j * t * 10000 ** (-i / pairs))
        out[t, n, i], out[t, n, pairs + i] = turned.real, turned.imag
    return out


def scores(logits: np.ndarray, K: int) -> np.ndarray:
    """Returns the sigmoids of the K largest logits, 0 for the others."""
    found = np.zeros(logits.shape)
    for at in np.ndindex(logits.shape[:-1]):
        for a in np.argsort(-logits[at])[:K]:
            found[*at, a] = 1 / (1 + np.exp(-logits[*at, a]))
    return found


def entropy(logits: np.ndarray) -> float:
    """Returns sum p log p of the mean choice of the tokens [T, N, A], averaged over heads."""
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    p = p.mean(0)
    return (p * np.log(p)).sum(-1).mean()
