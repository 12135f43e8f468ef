"""95% intervals of metrics, over the examples of a set or of the mean over seeds; and tests."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SIGNIFICANT = 0.05  # of p values
Z = 1.959964  # the normal distribution's 97.5% quantile
RESAMPLES = 1000
Interval = tuple[float, float]
# Metrics that are shares of these. Packed sequences have more orders, and a narrower interval.
ERROR = "_se"  # ends the name of another metric's standard error
UNITS = {"order_accuracy": "sequences", "exact": "questions"}


def wilson(share: float, count: int) -> Interval:
    """Returns the interval of a share of `count` >= 1 examples (Wilson 1927)."""
    center = share + Z**2 / (2 * count)
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    scale = 1 + Z**2 / count
    return max(0.0, (center - half) / scale), min(1.0, (center + half) / scale)


def accuracy_interval(result: Mapping[str, Any]) -> Interval | None:
    """Returns the interval of a result's `test_accuracy`; None without it or its examples."""
    share, count = result.get("test_accuracy"), result.get(f"test_{result.get('unit')}")
    return wilson(share, count) if share is not None and count else None


def share_intervals(metrics: Mapping[str, Any]) -> dict[str, Interval]:
    """Returns the interval of each metric that has its number of units, or a standard error."""
    found = {name: metrics.get(unit) for name, unit in UNITS.items() if name in metrics}
    intervals = {name: wilson(metrics[name], count) for name, count in found.items() if count}
    for name, error in metrics.items():
        if name.endswith(ERROR) and math.isfinite(error):
            mean = metrics[name.removesuffix(ERROR)]
            ends = max(0.0, mean - Z * error), min(1.0, mean + Z * error)
            intervals[name.removesuffix(ERROR)] = ends
    return intervals


def mean_over_seeds(values: Sequence[float]) -> Interval:
    """Returns the interval of the mean of n >= 2 seeds, by Student's t: the seeds vary."""
    from scipy import special  # takes long to import

    n, mean = len(values), statistics.fmean(values)
    half = special.stdtrit(n - 1, 0.975) * statistics.stdev(values) / math.sqrt(n)
    return float(mean - half), float(mean + half)


def p_of(values: Sequence[float], mean: float, alternative: str) -> float:
    """Returns the p of a t-test of the values against a mean; NaN where they vary by rounding."""
    if len(values) < 2 or np.ptp(values) <= 1e-9 * np.abs(values).max():
        return math.nan
    from scipy import stats  # takes long to import

    return float(stats.ttest_1samp(values, mean, alternative=alternative).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Returns p corrected for their number (Holm 1979): the least times n, the next n - 1, ...

    A NaN, of a contrast that waits for its runs, stays and counts.
    """
    order = [i for i in np.argsort(p) if not math.isnan(p[i])]
    corrected, highest = list(p), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = highest
    return corrected


def bootstrap_mean(values: np.ndarray) -> Interval:
    """Returns the interval of the mean of `values` [n], by resampling them with one seed."""
    rng, n = np.random.default_rng(0), len(values)
    return quantiles(np.array([values[rng.integers(n, size=n)].mean() for _ in range(RESAMPLES)]))


def balanced_interval(right: np.ndarray, counts: np.ndarray) -> Interval:
    """Returns the interval of the mean over classes of `right` [V] / `counts` [V], all >= 1.

    Joins the intervals of the classes by their distances from the shares (MOVER, Zou & Donner 2008,
    doi:10.1002/sim.3095). Resampling would call a class certain if all its examples are right.
    """
    shares = right / counts
    low, high = np.transpose([wilson(*of) for of in zip(shares, counts, strict=True)])
    below, above = (np.linalg.norm(ends - shares) / len(shares) for ends in (low, high))
    return float(shares.mean() - below), float(shares.mean() + above)


def quantiles(values: np.ndarray) -> Interval:
    """Returns the 2.5% and the 97.5% quantiles."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def interval_text(interval: Interval, *, percent: bool = True) -> str:
    """Formats an interval to stand behind its metric: " (95%: 96.79 to 99.41%)"."""
    low, high = interval
    texts = (f"{100 * low:.2f}", f"{100 * high:.2f}%") if percent else (f"{low:.4f}", f"{high:.4f}")
    return " (95%: {} to {})".format(*texts)
