"""Compares prices with times that others measured on TPUs.

A file of measurements has ROWS, a sequence of `Measurement`. Every row's programs are compiled and
priced as a plan's step is; their weighted sum stands beside the measured time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from widenet_jax.config.files import defined_in
from widenet_jax.config.imports import PACKAGE
from widenet_jax.errors import BadInputError, known_names
from widenet_jax.ops.plan.compile import TpuCompiler
from widenet_jax.ops.plan.hlo import Module, parse
from widenet_jax.ops.plan.pricing import TIMES, price_module, totals
from widenet_jax.ops.plan.schedule import Schedules
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.run.figures import PALETTE, save, subplots
from widenet_jax.run.tables import table_of

KEPT = ("name", "tpu", "timed", "source", "note", "outside")  # of a measurement, beside its price
MEASUREMENTS = PACKAGE.parent / "scripts" / "compare" / "tpu_measurements.py"


class Program(NamedTuple):
    """A function to compile, and its share of a measurement.

    Attributes:
      weight: (time of 8 layers - time of 1 layer) / 7 has the weights 1/7 and -1/7.
      function: of arrays.
      args: ShapeDtypeStructs; their shardings name the axis "data", of all devices.
    """

    weight: float
    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Measurement:
    """A time that others measured.

    Attributes:
      name: one word; rows of several slices may share it.
      tpu: the slice, such as "v5e-256".
      ms: measured milliseconds.
      timed: how: by a device's trace, the host's clock, in a training loop.
      source: where the time and the settings are published, and when.
      programs: makes the programs; called within a mesh of `devices`.
      devices: that run the program together; 1: a program of one device.
      note: settings that the source leaves open, as chosen here.
      computed: share of the steps of its kernels' grids that compute: causal kernels skip blocks,
        which their schedule does not show.
      outside: why the row is not part of the band; "" if it is.
    """

    name: str
    tpu: str
    ms: float
    timed: str
    source: str
    programs: Callable[[], Sequence[Program]]
    devices: int = 1
    note: str = ""
    computed: float = 1.0
    outside: str = ""


def read_measurements(file: str, names: Sequence[str] | None) -> list[Measurement]:
    """Returns the rows of a file, or those that `names` chooses.

    Raises:
      BadInputError: the file is missing, or has no row of such a name.
    """
    if not Path(file).is_file():
        hint = " (it is part of a checkout, not of an installation)" * (file == str(MEASUREMENTS))
        raise BadInputError(f"--calibrate: there is no file {file}{hint}")
    rows = defined_in(file, "ROWS", flag="--calibrate")
    known = {row.name: None for row in rows}
    for name in (name for name in names or () if name not in known):
        raise BadInputError(f"--rows {name}: {known_names(name, known)}")
    return [row for row in rows if row.name in (names or known)]


def calibrate(row: Measurement, cache: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Compiles and prices a row's programs."""
    compiler = TpuCompiler(parse_topology(row.tpu, field=row.name), cache=cache, note=note)
    mesh = Mesh(np.array(compiler.devices[: row.devices]), ("data",))
    times = dict.fromkeys(TIMES, 0.0)
    with jax.set_mesh(mesh):
        for weight, function, args in row.programs():
            step = compiler.compile_lowered(row.name, jax.jit(function).lower(*args))
            if not step.fits:
                raise BadInputError(f"--rows {row.name}: it does not fit a device of {row.tpu}")
            module = parse(step.hlo)
            schedules = step.schedules | kernels_computing(module, step.schedules, row.computed)
            for time, ms in totals(price_module(module, schedules, compiler.topology)).items():
                times[time] += weight * ms
    found = {name: getattr(row, name) for name in KEPT} | {"measured_ms": row.ms} | times
    found["apart_ms"] = times["serial_ms"] + times["collective_ms"]
    for ratio, time in (("ratio", "ms"), ("apart_ratio", "apart_ms"), ("old", "estimate_ms")):
        found[ratio] = found[time] / row.ms
    return found


def kernels_computing(module: Module, schedules: Schedules, share: float) -> Schedules:
    """Returns the schedules of kernels that compute in this share of the steps of their grids.

    The share stands for all branches of a kernel: for skipped blocks, and for first and last steps.
    """
    return {
        one.name: found._replace(per_trip=share * found.per_trip, seldom=())
        for computation in module.computations.values()
        for one in computation.values()
        if share < 1 and one.target == "tpu_custom_call" and (found := schedules.get(one.name))
    }


def calibration_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats the rows as a Markdown table, and the band of each generation below it."""

    columns = {
        "workload": "{name}",
        "TPU": "{tpu}",
        "measured ms": "{measured_ms:.4g}",
        "predicted ms": "{ms:.4g}",
        "without overlap": "{apart_ms:.4g}",
        "ratio": "{ratio:.2f}",
        "ratio without overlap": "{apart_ratio:.2f}",
        "ratio by estimate": "{old:.2f}",
        "timed": "{timed}",
        "in band": lambda row: "no" if row["outside"] else "yes",
        "source": "{source}",
        "note": lambda row: "; ".join(filter(None, (row["note"], row["outside"]))),
    }
    return "\n".join([table_of(columns, rows), "", *bands(rows)])


def bands(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line for each generation and one for all: the span of predicted / measured."""
    kept = [row for row in rows if not row["outside"]]
    generations = dict.fromkeys(row["tpu"].partition("-")[0] for row in kept)
    lines = []
    for name in [*generations, "all"] if kept else []:
        some = [row for row in kept if name == "all" or row["tpu"].startswith(name)]
        ratios = ([row[key] for row in some] for key in ("ratio", "apart_ratio"))
        overlap, apart = (f"{min(of):.2f} to {max(of):.2f}" for of in ratios)
        band = f"predicted / measured {overlap}, {apart} without overlap"
        lines.append(f"{name}: {band} ({len(some)} rows)")
    return lines


def draw(rows: Sequence[Mapping[str, Any]], out: str) -> None:
    """Draws predicted / measured, a line for each row from overlap to none; PNG."""
    figure, axis = subplots(size=(8, 1.5 + 0.3 * len(rows)))
    names = [
        row["name"].replace("_", " ") + f" on {row['tpu']}" + "*" * bool(row["outside"])
        for row in rows
    ]
    places = range(len(rows), 0, -1)
    for place, row in zip(places, rows, strict=True):
        axis.plot([row["ratio"], row["apart_ratio"]], [place] * 2, color=PALETTE[0])
    marks = {"ratio": ("o", PALETTE[0], "by schedule"), "old": ("X", PALETTE[5], "by estimate")}
    for key, (marker, colour, label) in marks.items():
        axis.plot([row[key] for row in rows], places, marker, color=colour, label=label)
    axis.axvline(1, color="black", lw=1)
    axis.set(
        xscale="log", xlabel="predicted / measured\n(line: to no overlap; *: not part of the band)"
    )
    axis.set_xticks([0.5, 0.7, 1, 1.5, 2, 3])
    axis.minorticks_off()
    axis.set_yticks(places, names)
    axis.set_ylim(0.4, len(rows) + 0.6)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper right", ncols=2)  # above the rows, where it covers none
    save(figure, out)
