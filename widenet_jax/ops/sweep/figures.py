"""Draws a sweep's primary metric against each swept field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from widenet_jax.config.durations import parse
from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep.axes import Range, Settings, Space
from widenet_jax.ops.sweep.trials import text_of
from widenet_jax.run.figures import decimals, save, subplots

SEED = "seed"
LINEAR, LOG, NAMES = "linear", "log", "names"


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of one panel.

    Attributes:
      field: as in the settings.
      values: from left to right.
      scale: LINEAR, LOG, or NAMES for places at equal distances.
    """

    field: str
    values: tuple[Any, ...]
    scale: str

    @property
    def places(self) -> Sequence[float]:
        """Where the values stand."""
        return range(len(self.values)) if self.scale == NAMES else self.values


def axis_of(field: str, settings: Sequence[Settings], space: Space) -> Axis:
    """Orders a field's values: numbers and durations of one unit by size, names as they were given.

    Args:
      field: to draw against.
      settings: of all trials, in the order of the sweep.
      space: of a search; empty for a list of trials.

    Returns:
      An axis with the scale of the search space. In a list of trials, numbers that span a factor
      of 10 or more get a logarithmic scale. Seeds stand at equal distances, since their size means
      nothing.
    """
    values = list(dict.fromkeys(one[field] for one in settings if field in one))
    drawn = space.get(field)
    if not all(type(value) in (int, float) for value in values):
        units = {unit for _, unit in map(amount_of, values)}
        if len(units) == 1 and units != {""}:
            values.sort(key=amount_of)
        elif isinstance(drawn, tuple):
            rank = {text: place for place, text in enumerate(drawn)}
            values.sort(key=lambda value: rank.get(text_of(value), len(rank)))
        return Axis(field, tuple(values), NAMES)
    values.sort()
    if field == SEED:
        scale = NAMES
    elif isinstance(drawn, Range):
        scale = LOG if drawn.kind == "log" else LINEAR
    else:
        scale = LOG if values and 0 < 10 * values[0] <= values[-1] else LINEAR
    return Axis(field, tuple(values), scale)


def amount_of(value: Any) -> tuple[float, str]:
    """Returns the number and the unit of a duration; (0, "") of any other value."""
    try:
        number, unit = parse(text_of(value), "")
        return float(number), unit
    except BadInputError:
        return 0.0, ""


def draw_against(rows: Sequence[Mapping], axes: Sequence[Axis], metric: str, out: Path) -> None:
    """Draws a panel for each axis: a dot for each row, and the mean at each value.

    A row without the field is left out of its panel; means are left out where every value has a
    single row.
    """
    size = (1 + 4 * len(axes), 4)
    figure, panels = subplots(1, len(axes), size=size, sharey=True, squeeze=False)
    marks = []
    for panel, axis in zip(panels[0], axes, strict=True):
        found = [[row[metric] for row in rows if row.get(axis.field) == v] for v in axis.values]
        drawn = [(place, of) for place, of in zip(axis.places, found, strict=True) if of]
        for place, of in drawn:
            panel.plot([place] * len(of), of, "o", color="C0", alpha=0.6)
        if any(len(of) > 1 for _, of in drawn):
            style = "_" if axis.scale == NAMES else "-_"
            means = [(place, fmean(of)) for place, of in drawn]
            marks = panel.plot(*zip(*means, strict=True), style, color="C1", ms=14, mew=2)
        if axis.scale == LOG:
            panel.set_xscale("log")
        elif axis.scale == NAMES:  # room for the labels of the first and the last name
            panel.set_xlim(-0.5, len(axis.values) - 0.5)
        label(panel, axis)
        panel.grid(alpha=0.3)
    if marks:  # above the panels, where it covers no dot
        figure.legend(marks, ["mean"], loc="outside upper right", fontsize=8)
    panels[0, 0].set_ylabel(metric.replace("_", " "))
    save(figure, out)


def label(panel: Any, axis: Axis) -> None:
    """Names the axis, and each of its values where there is room."""
    panel.set_xlabel(axis.field)
    if apart(np.log(axis.places) if axis.scale == LOG else axis.places):
        texts = [
            decimals(float(f"{v:.4g}")) if isinstance(v, float) else str(v) for v in axis.values
        ]
        turned = {"rotation": 20, "ha": "right"} if max(map(len, texts), default=0) > 6 else {}
        panel.set_xticks(list(axis.places), texts, **turned)
        panel.set_xticks([], minor=True)


def apart(places: Sequence[float]) -> bool:
    """Tells whether labels at these rising places would not overlap."""
    gaps = np.diff(places)
    return len(gaps) == 0 or min(gaps) > 0.08 * sum(gaps)
