"""Comparing seeds: means, intervals, paired differences with their tests, and verdicts in words.

Runs of one seed see the same data in the same order, so that differences that are paired by seed
vary less than the runs.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from widenet_jax.run.intervals import Interval, varies

SIGNIFICANT = 0.05  # of p values
SIGNS = {1: "above 0", 0: "", -1: "below 0"}


def mean_of(values: Sequence[float]) -> float | None:
    """Averages the finite values; NaN where none is finite, None where there is no value."""
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan if values else None


def std_of(values: Sequence[float]) -> float | None:
    """Standard deviation (n - 1) of the finite values; None for fewer than two."""
    finite = [value for value in values if math.isfinite(value)]
    return statistics.stdev(finite) if len(finite) > 1 else None


def mean_over_seeds(values: Sequence[float]) -> Interval | None:
    """Returns the 95% interval of the mean, by Student's t; None unless the seeds vary."""
    if not varies(values):
        return None
    from scipy import special  # takes long to import

    n, mean = len(values), statistics.fmean(values)
    half = special.stdtrit(n - 1, 0.975) * statistics.stdev(values) / math.sqrt(n)
    return float(mean - half), float(mean + half)


def no_interval(seeds: int) -> str:
    """Says why the mean over so many seeds has no interval."""
    return "one seed" if seeds == 1 else "no spread"


def interval_text(interval: Interval | None, seeds: int, form: Callable[[float], str]) -> str:
    """Formats the interval of a mean, "0.1 to 0.3", or says why so many seeds have none."""
    return " to ".join(map(form, interval)) if interval else no_interval(seeds)


def paired(plus: Sequence[Mapping], minus: Sequence[Mapping]) -> tuple[float, ...]:
    """Returns the sum of `plus` less the sum of `minus` for each seed that all of them have.

    Each maps seeds to values. Seeds with a value that is not finite are left out.
    """
    sides = [*((1, of) for of in plus), *((-1, of) for of in minus)]
    seeds = sorted(set.intersection(*(set(of) for _, of in sides)))
    found = (sum(sign * of[seed] for sign, of in sides) for seed in seeds)
    return tuple(value for value in found if math.isfinite(value))


def p_of(values: Sequence[float], mean: float, alternative: str) -> float:
    """Returns the p of a t-test of the values against a mean; NaN unless they vary."""
    if not varies(values):
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


def order_of(one: Sequence[float], other: Sequence[float]) -> int:
    """Returns the sign of the first mean less the second, of seeds that are not paired.

    0: not significant by Welch's t-test. Where a row has a single seed, or neither row's seeds
    vary, there is no such test, and only the sign counts.
    """
    means = statistics.fmean(one), statistics.fmean(other)
    sign = int(np.sign(means[0] - means[1])) * varies(means)
    if min(len(one), len(other)) > 1 and (varies(one) or varies(other)):
        from scipy import stats  # takes long to import

        sign *= int(stats.ttest_ind(one, other, equal_var=False).pvalue < SIGNIFICANT)
    return sign


def judged(sign: int, *, higher_is_better: bool) -> str:
    """Says what the sign of a difference means; 0 is one that is not significant."""
    return ("undecided", "better", "worse")[sign if higher_is_better else -sign]


@dataclass(frozen=True)
class Found:
    """A difference, or another sum of runs that are paired by seed, and its tests.

    Attributes:
      label: of the difference.
      values: one for each seed that all its runs have.
      p: of the t-test against 0, corrected by Holm; NaN unless the seeds vary.
      p_equal: of the two one-sided tests against the margin; NaN likewise.
      margin: a mean within it counts as equal.
      paper: the sign that a paper claims; 0: none.
    """

    label: Any
    values: tuple[float, ...]
    p: float
    p_equal: float
    margin: float
    paper: int = 0

    @property
    def mean(self) -> float:
        """Mean over the seeds; NaN without any."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def interval(self) -> Interval | None:
        """95% interval of the mean; None unless the seeds vary."""
        return mean_over_seeds(self.values)

    @property
    def sign(self) -> int:
        """Sign of the mean; 0 where it is not significant."""
        return (1 if self.mean > 0 else -1) if self.p < SIGNIFICANT else 0

    @property
    def verdict(self) -> str:
        """Above or below 0, equal within the margin, both or undecided; or that seeds are alike.

        A sign that a paper claims is confirmed or refuted.
        """
        if (n := len(self.values)) > 1 and not self.interval:
            return "equal" if abs(self.mean) <= self.margin else f"no spread over {n} seeds"
        claimed = {1: ": confirmed", 0: "", -1: ": refuted"}[self.sign * self.paper]
        equal = "equal" if self.p_equal < SIGNIFICANT else ""
        return ", ".join(filter(None, [SIGNS[self.sign] + claimed, equal])) or "undecided"

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers for a file."""
        derived = {"mean": self.mean, "interval": self.interval, "verdict": self.verdict}
        return asdict(self) | derived


def compare(
    values: Mapping[Any, tuple[float, ...]], margin: float = 0.0, claims: Mapping[Any, int] = {}
) -> list[Found]:
    """Tests sums against 0, corrected by Holm for their number, and for equality with 0.

    Args:
      values: by label; of each seed, see `paired`.
      margin: within which a sum counts as 0.
      claims: by label; the sign that a paper claims.
    """
    corrected = holm([p_of(of, 0.0, "two-sided") for of in values.values()])
    return [
        Found(
            label, of, p, max(p_of(of, -margin, "greater"), p_of(of, margin, "less")), margin,
            claims.get(label, 0),
        )
        for (label, of), p in zip(values.items(), corrected, strict=True)
    ]  # fmt: skip
