"""95% intervals of metrics over the examples of a set; `ops.sweep.seeds` has those over seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Z = 1.959964  # the normal distribution's 97.5% quantile
RESAMPLES = 1000
Interval = tuple[float, float]
ERROR = "_se"  # ends the name of another metric's standard error
# Metrics that are shares of these. Packed sequences have more orders, and a narrower interval.
UNITS = {"order_accuracy": "sequences", "exact": "questions"}
# Metrics that are correlations over "examples" -> the factor of r**2 / (n - 3) in the variance of
# arctanh(r), beside 1 / (n - 3): Fisher 1921; Bonett and Wright 2000.
CORRELATIONS = {"pearson": 0.0, "spearman": 0.5}


def wilson(share: float | np.ndarray, count: float | np.ndarray) -> Interval:
    """Returns the interval of a share of `count` > 0 examples (Wilson 1927), or those of arrays."""
    center = share + Z**2 / (2 * count)
    half = Z * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    scale = 1 + Z**2 / count
    return np.maximum(0.0, (center - half) / scale), np.minimum(1.0, (center + half) / scale)


def accuracy_interval(result: Mapping[str, Any]) -> Interval | None:
    """Returns the interval of a result's `test_accuracy`; None without it or its examples."""
    share, count = result.get("test_accuracy"), result.get(f"test_{result.get('unit')}")
    return wilson(share, count) if share is not None and count else None


def correlation_interval(name: str, r: float, count: int) -> Interval | None:
    """Returns the interval of a metric of CORRELATIONS over `count` examples; None of others.

    None of 0, which stands for a correlation that is not defined, of 1, and of three examples.
    """
    if name not in CORRELATIONS or not 0 < abs(r) < 1 or count <= 3:
        return None
    half = Z * math.sqrt((1 + CORRELATIONS[name] * r**2) / (count - 3))
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def metric_intervals(metrics: Mapping[str, Any]) -> dict[str, Interval]:
    """Returns the interval of each metric that has its number of units, or a standard error.

    Without a standard error where all examples are alike.
    """
    found = {name: metrics.get(unit) for name, unit in UNITS.items() if name in metrics}
    intervals = {name: wilson(metrics[name], count) for name, count in found.items() if count}
    for name, error in metrics.items():
        if name.endswith(ERROR) and math.isfinite(error) and error:
            mean = metrics[name.removesuffix(ERROR)]
            ends = max(0.0, mean - Z * error), min(1.0, mean + Z * error)
            intervals[name.removesuffix(ERROR)] = ends
    for name in CORRELATIONS & metrics.keys():
        if ends := correlation_interval(name, metrics[name], metrics.get("examples", 0)):
            intervals[name] = ends
    return intervals


def varies(values: Sequence[float]) -> bool:
    """Whether there are two values that differ by more than rounding."""
    return not np.allclose(values, values[:1], rtol=1e-9, atol=1e-12)


def bootstrap_mean(values: np.ndarray) -> Interval | None:
    """Returns the interval of the mean of `values` [n], by resampling them with one seed.

    None unless they vary.
    """
    if not varies(values):
        return None
    rng, n = np.random.default_rng(0), len(values)
    return quantiles(np.array([values[rng.integers(n, size=n)].mean() for _ in range(RESAMPLES)]))


def balanced_interval(right: np.ndarray, counts: np.ndarray) -> Interval:
    """Returns the interval of the mean over classes of `right` [..., V] / `counts` [V], all >= 1.

    Wilson's, of so many examples that a share would vary as much as the mean does. The classes'
    shares are drawn towards the mean, as a class whose examples are all right is not certain; and
    the classes count at most as if their shares were equal.
    """
    shares, V = right / counts, len(counts)
    mean = shares.mean(axis=-1)
    drawn = (right + 2 * mean[..., None]) / (counts + 2)
    variance = (drawn * (1 - drawn) / counts).sum(axis=-1) / V**2
    most = V**2 / (1 / counts).sum()
    # Neither is 0 unless all is right, or all is wrong.
    count = mean * (1 - mean) / np.where(variance > 0, variance, 1)
    return wilson(mean, np.where(variance > 0, np.minimum(most, count), most))


def quantiles(values: np.ndarray) -> Interval:
    """Returns the 2.5% and the 97.5% quantiles."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def interval_text(interval: Interval | None, *, percent: bool = True) -> str:
    """Formats an interval to stand behind its metric: " (95%: 96.79 to 99.41%)"; None is ""."""
    if interval is None:
        return ""
    low, high = interval
    texts = (f"{100 * low:.2f}", f"{100 * high:.2f}%") if percent else (f"{low:.4f}", f"{high:.4f}")
    return " (95%: {} to {})".format(*texts)
