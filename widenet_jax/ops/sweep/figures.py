"""Draws a sweep's primary metric against each swept field."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from widenet_jax.ops.sweep.axes import Settings
from widenet_jax.ops.sweep.trials import text_of
from widenet_jax.run.figures import save, subplots

SEED = "seed"
LINEAR, LOG, NAMES = "linear", "log", "names"


def axis_of(field: str, settings: Sequence[Settings], space: Mapping[str, Any]) -> tuple[list, str]:
    """Orders a field's values: numbers by size, other values as the user listed them.

    Args:
      field: to draw against.
      settings: of all trials, in the order of the sweep.
      space: of a search; empty for a list of trials.

    Returns:
      The values, and LINEAR or LOG as in the search space, or NAMES for places at equal distances.
      In a list of trials, numbers that span a factor of 10 or more get a logarithmic scale. Seeds
      are names, as their size means nothing.
    """
    values = list(dict.fromkeys(one[field] for one in settings if field in one))
    if not all(type(value) in (int, float) for value in values):
        listed = list(getattr(space.get(field), "choices", ()))
        values.sort(key=lambda value: listed.index(text_of(value)) if listed else 0)
        return values, NAMES
    values.sort()
    log = getattr(space.get(field), "log", 0 < 10 * values[0] <= values[-1])
    return values, NAMES if field == SEED else LOG if log else LINEAR


def draw_against(
    rows: Sequence[Mapping],
    axes: Mapping[str, tuple[list, str]],
    metric: str,
    out: Path,
) -> None:
    """Draws a panel for each field: a dot for each row, and the mean at each value.

    A row without the field is left out of its panel; means are left out where every value has a
    single row.
    """
    size = (1 + 4 * len(axes), 4)
    figure, panels = subplots(1, len(axes), size=size, sharey=True, squeeze=False)
    marks = []
    for panel, (field, (values, scale)) in zip(panels[0], axes.items(), strict=True):
        found = {
            value: [row[metric] for row in rows if row.get(field) == value] for value in values
        }
        drawn = {str(v) if scale == NAMES else v: of for v, of in found.items() if of}
        for place, of in drawn.items():
            panel.plot([place] * len(of), of, "o", color="C0", alpha=0.6)
        if any(len(of) > 1 for of in drawn.values()):
            style = "_" if scale == NAMES else "-_"
            means = [fmean(of) for of in drawn.values()]
            marks = panel.plot(list(drawn), means, style, color="C1", ms=14, mew=2)
        panel.set_xlabel(field)
        panel.grid(alpha=0.3)
        if scale == LOG:
            panel.set_xscale("log")
        elif scale == NAMES:  # room for the labels of the first and the last name
            panel.set_xlim(-0.5, len(drawn) - 0.5)
            panel.tick_params("x", rotation=20 if max(map(len, drawn), default=0) > 6 else 0)
            continue
        gaps = np.diff(np.log(list(drawn)) if scale == LOG else list(drawn))
        if not len(gaps) or min(gaps) > 0.08 * sum(gaps):  # labels do not overlap
            panel.set_xticks(list(drawn))
            panel.minorticks_off()
    if marks:  # above the panels, where it covers no dot
        figure.legend(marks, ["mean"], loc="outside upper right", fontsize=8)
    panels[0, 0].set_ylabel(metric.replace("_", " "))
    save(figure, out)
