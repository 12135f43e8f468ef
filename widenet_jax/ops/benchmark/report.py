"""Benchmark rows as a table; the times of layers as curves."""

import re
import statistics
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from widenet_jax.ops.plan.topology import CHIPS, GPUS, Chip
from widenet_jax.run.figures import MARKERS, run_colour, subplots
from widenet_jax.run.tables import markdown_table

# Columns of sizes; the first that varies is the horizontal axis.
SIZES = ("embed_dim", "experts", "expert_dim", "selected", "tokens", "length")
LABELS = {"ms": "ms, forward and backward", "memory_gib": "GiB"}  # of the vertical axes


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats rows with the same keys as a Markdown table."""
    return markdown_table([list(rows[0]), *([cell(v) for v in row.values()] for row in rows)])


def cell(value: Any) -> str:
    """Formats a value: floats with three significant digits, None as "-", others unchanged."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def draw_layers(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws one line per method of `feed_forward_row` against the first size that varies."""
    varying = [name for name in SIZES if len({row[name] for row in rows}) > 1] or SIZES[:1]
    across = varying[0]
    # Sizes that differ at one point of the axis tell lines apart; others follow from it.
    points = sorted({row[across] for row in rows})
    others = [
        name
        for name in varying[1:]
        if any(len({row[name] for row in rows if row[across] == x}) > 1 for x in points)
    ]
    figure, axes = subplots(1, len(LABELS), size=(5 * len(LABELS), 4.5))
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = ", ".join(describe(n, row[n]) for n in ("method", *others))
        lines.setdefault(name, []).append(row)
    for axis, (value, label) in zip(axes, LABELS.items(), strict=True):
        for index, (name, line) in enumerate(lines.items()):
            known = [row for row in line if row[value] is not None]
            x, y = ([row[n] for row in known] for n in (across, value))
            style = {"color": run_colour(index, len(lines)), "ms": 4, "label": name}
            axis.plot(x, y, marker=MARKERS[index % len(MARKERS)], **style)
        axis.set_xscale("log", base=2)
        axis.set(yscale="log", xlabel=across.replace("_", " "), ylabel=label)
        axis.set_xticks(points, [f"{x:,}" for x in points])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(alpha=0.3)
    place = {"loc": "outside lower center", "ncols": 4}
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, **place)
    fixed = [describe(n, rows[0][n]) for n in SIZES if n not in varying]
    figure.suptitle(f"{rows[0]['device']}: {', '.join(fixed)}", fontsize=10)
    return figure


def describe(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name.replace('_', ' ')} {value}"


def chip_of(device_kind: str) -> Chip | None:
    """Returns the TPU's generation; None for other devices."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.kinds), None)


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak bfloat16 FLOP/s of one device; None where it is unknown, as for CPUs."""
    if chip := chip_of(device_kind):
        return chip.peak_flops
    found = (peak for name, peak in GPUS.items() if re.search(rf"\b{name}\b", device_kind))
    return next(found, None)


def mfu(flops_per_second: float, device_kind: str, num_devices: int) -> float | None:
    """Returns the share of the devices' peak that a rate uses; None where the peak is unknown."""
    peak = peak_flops(device_kind)
    return None if peak is None else flops_per_second / (peak * num_devices)


def median_seconds(call: Callable[[], Any], *, rounds: int, calls: int = 1) -> float:
    """Returns the seconds of one `call`: the median over `rounds` of the mean of `calls` in a row.

    Waits for the device at the end of each round. The first call compiles and is not counted.
    """
    jax.block_until_ready(call())
    seconds = timeit.repeat(
        lambda: jax.block_until_ready([call() for _ in range(calls)]), number=1, repeat=rounds
    )
    return statistics.median(seconds) / calls
