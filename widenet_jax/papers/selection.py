"""Which experts and units the trained language models use: the figures of sigma-MoE without a loss.

Each shows the first finished seed of every row.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.active_units import ActiveUnits, measure_active
from widenet_jax.ops.analysis.expert_usage import ExpertUsage, measure_usage
from widenet_jax.ops.analysis.selection_figures import (
    draw_active,
    draw_co_occurrence,
    draw_shares,
    plot_shares,
)
from widenet_jax.papers.experiments import PaperExperiment
from widenet_jax.papers.runs import Measurements
from widenet_jax.papers.scales import Scale, run_of
from widenet_jax.papers.tables import page
from widenet_jax.run.figures import block_panels, save
from widenet_jax.run.markdown import markdown_table

Found = Mapping[str, Any]  # label of a row -> ActiveUnits or ExpertUsage
PANELS_A_ROW = 3
RARE = 0.1  # of an equal share: an expert below it is hardly used
# Statistic -> header of the table's first column.
HEADERS = {
    "active": "active units, mean",
    "shares": "largest share; experts below a tenth of an equal share",
    "together": "most frequent pair: share of the first one's tokens",
}


def measure(experiment: PaperExperiment, scale: Scale, measured: Measurements) -> dict[str, Any]:
    """Measures the first finished seed of every row; rows without one are left out."""
    statistic = measure_active if experiment.selection == "active" else measure_usage
    places = {row.label: measured[run_of(scale, experiment, row)] for row in experiment.rows}
    return {
        label: statistic(open_trained(of.workdirs[0]))
        for label, of in places.items()
        if of.workdirs
    }


def draw(experiment: PaperExperiment, found: Found, out: Path) -> None:
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


def draw_shares_of(found: Mapping[str, ExpertUsage], out: Path, *, title: str) -> None:
    """Draws the sorted shares of several models, a panel for each block."""
    blocks = max((usage.blocks for usage in found.values()), key=len)
    size = {"columns": PANELS_A_ROW, "panel": (4.2, 3.6), "edge": (1, 1.2)}
    figure, axes = block_panels(blocks, **size, sharey=True)
    figure.suptitle(title, fontsize=10)
    for place, axis in enumerate(axes):
        plot_shares(axis, {name: usage.sorted_shares[place] for name, usage in found.items()})
        axis.label_outer()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, out)


def markdown(experiment: PaperExperiment, scale: Scale, found: Found) -> str:
    """Writes the numbers of the figure by block, and the paper's conclusion."""
    table = ""
    if found:
        blocks = next(iter(found.values())).blocks
        header = [HEADERS[experiment.selection], *(f"block {block}" for block in blocks)]
        rows = [[name, *cells(one, experiment.selection)] for name, one in found.items()]
        table = markdown_table([header, *rows])
    lines = [f"The paper: {experiment.claim}"]
    lines += [f"{row.label}: not run." for row in experiment.rows if row.label not in found]
    return page(experiment.title, scale.about_of(experiment), table, lines)


def cells(one: ActiveUnits | ExpertUsage, selection: str) -> list[str]:
    """Returns a cell for each block: mean of the active units, largest share, or pair."""
    if selection == "active":
        return [f"{mean:.1f} of {one.width:,}" for mean in one.mean]
    if selection == "shares":
        E = one.sorted_shares.shape[1]
        rare = (one.sorted_shares < RARE / E).sum(axis=1)
        largest = one.sorted_shares[:, 0]
        return [f"{of:.1%}; {few} of {E}" for of, few in zip(largest, rare, strict=True)]
    texts = []
    for shares in one.co_occurrence:
        first, second = np.unravel_index(shares.argmax(), shares.shape)
        texts.append(f"{first} with {second}: {shares.max():.0%}")
    return texts


def as_json(found: Found) -> dict[str, Any]:
    """Returns the numbers as the experiment's JSON file holds them."""
    return {
        name: one.as_json()
        if isinstance(one, ActiveUnits)
        else {"shares": one.importance.tolist(), "co_occurrence": one.co_occurrence.tolist()}
        for name, one in found.items()
    }
