"""Wall-clock timing: warm-up, repetitions, median."""

import statistics
import timeit
from collections.abc import Callable
from typing import Any

import jax


def median_seconds(call: Callable[[], Any], *, rounds: int, calls: int = 1) -> float:
    """Returns the seconds of one `call`: the median over `rounds` of the mean of `calls` in a row.

    Waits for the device at the end of each round. The first call compiles and is not counted.
    """
    jax.block_until_ready(call())
    seconds = timeit.repeat(
        lambda: jax.block_until_ready([call() for _ in range(calls)]), number=1, repeat=rounds
    )
    return statistics.median(seconds) / calls
