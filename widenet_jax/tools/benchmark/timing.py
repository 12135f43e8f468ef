"""Wall-clock timing: warm-up, repetitions, median."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def median_seconds(call: Callable[[], Any], *, rounds: int, calls: int = 1) -> float:
    """Returns the seconds of one `call`: the median over `rounds` of the mean of `calls` in a row.

    Waits for the device at the end of each round. The first call compiles and is not counted.
    """
    jax.block_until_ready(call())
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            result = call()
        jax.block_until_ready(result)
        seconds.append((time.perf_counter() - start) / calls)
    return float(np.median(seconds))
