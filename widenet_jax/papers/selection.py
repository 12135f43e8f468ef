"""Which experts and units the trained language models use: the figures of sigma-MoE without a loss.

Each shows the first finished seed of every row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.active_units import ActiveUnits, measure_active
from widenet_jax.ops.analysis.expert_usage import ExpertUsage, measure_usage
from widenet_jax.ops.analysis.selection_figures import (
    draw_active,
    draw_co_occurrence,
    draw_shares,
    plot_shares,
)
from widenet_jax.papers.experiment import PaperExperiment
from widenet_jax.papers.runs import Measurements
from widenet_jax.papers.scales import Scale, run_of
from widenet_jax.run.figures import save, subplots
from widenet_jax.run.markdown import markdown_table

Found = Mapping[str, Any]  # label of a row -> ActiveUnits or ExpertUsage
PANELS_A_ROW = 3
RARE = 0.1  # of an equal share: an expert below it is hardly used


def measure(experiment: PaperExperiment, scale: Scale, measured: Measurements) -> dict[str, Any]:
    """Measures the first finished seed of every row; rows without one are left out."""
    statistic = measure_active if experiment.selection == "active" else measure_usage
    found = {}
    for row in experiment.rows:
        workdirs = measured[run_of(scale, experiment, row)].workdirs
        if workdirs:
            found[row.label.strip()] = statistic(open_trained(workdirs[0]))
    return found


def draw(experiment: PaperExperiment, found: Found, out: epath.Path) -> None:
    """Draws what `measure` returned; nothing where no row has run."""
    title = experiment.title
    if not found:
        return
    if experiment.selection == "active":
        draw_active(found, out, title=title)
    elif len(found) > 1:
        draw_shares_of(found, out, title=title)
    else:
        (usage,) = found.values()
        draw_one = draw_co_occurrence if experiment.selection == "together" else draw_shares
        draw_one(usage, out, title=title)


def draw_shares_of(found: Mapping[str, ExpertUsage], out: epath.Path, *, title: str) -> None:
    """Draws the sorted shares of several models, a panel for each block."""
    L = max(len(usage.blocks) for usage in found.values())
    columns = min(L, PANELS_A_ROW)
    rows = -(-L // columns)
    size = (1 + 4.2 * columns, 1.2 + 3.6 * rows)
    figure, axes = subplots(rows, columns, size=size, squeeze=False, sharey=True)
    figure.suptitle(title, fontsize=10)
    for position, axis in enumerate(axes.flat):
        if position >= L:
            axis.axis("off")
            continue
        plot_shares(axis, {name: usage.sorted_shares[position] for name, usage in found.items()})
        axis.set_title(f"block {position}")
        axis.label_outer()
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, out)


def markdown(experiment: PaperExperiment, scale: Scale, found: Found) -> str:
    """Writes the numbers of the figure by block, and the paper's conclusion."""
    cells = {"active": active_cells, "shares": shares_cells, "together": together_cells}
    parts = [f"## {experiment.title}", f"Ours: {scale.about_of(experiment)}."]
    if found:
        parts.append(markdown_table(cells[experiment.selection](found)))
    lines = [f"The paper: {experiment.claim}"]
    missing = [row.label.strip() for row in experiment.rows if row.label.strip() not in found]
    lines += [f"{label}: not run." for label in missing]
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in lines)]) + "\n"


def active_cells(found: Mapping[str, ActiveUnits]) -> list[list[str]]:
    """Returns the mean number of active units of each block."""
    cells = [["active units, mean", "of", *blocks_of(found)]]
    for name, active in found.items():
        cells.append([name, f"{active.width:,}", *(f"{mean:.1f}" for mean in active.mean)])
    return cells


def shares_cells(found: Mapping[str, ExpertUsage]) -> list[list[str]]:
    """Returns each block's largest share, and how many experts are hardly used."""
    cells = [["largest share; experts below a tenth of an equal share", *blocks_of(found)]]
    for name, usage in found.items():
        shares = usage.sorted_shares
        E = shares.shape[1]
        rare = (shares < RARE / E).sum(axis=1)
        each = zip(shares[:, 0], rare, strict=True)
        cells.append([name, *(f"{largest:.1%}; {few} of {E}" for largest, few in each)])
    return cells


def together_cells(found: Mapping[str, ExpertUsage]) -> list[list[str]]:
    """Returns which two experts each block combines most often."""
    cells = [["most frequent pair: share of the first one's tokens", *blocks_of(found)]]
    for name, usage in found.items():
        largest = []
        for shares in usage.co_occurrence:
            one, other = np.unravel_index(shares.argmax(), shares.shape)
            largest.append(f"{one} with {other}: {shares.max():.0%}")
        cells.append([name, *largest])
    return cells


def blocks_of(found: Found) -> list[str]:
    """Returns the header of the blocks' columns."""
    return [f"block {block}" for block in next(iter(found.values())).blocks]


def as_json(found: Found) -> dict[str, Any]:
    """Returns the numbers as the experiment's JSON file holds them."""
    return {
        name: one.as_json()
        if isinstance(one, ActiveUnits)
        else {"shares": one.importance.tolist(), "co_occurrence": one.co_occurrence.tolist()}
        for name, one in found.items()
    }
