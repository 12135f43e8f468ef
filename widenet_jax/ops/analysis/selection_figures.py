"""Figures of which experts and units a model selects (sigma-MoE, figs. 1 and 3 to 7)."""

from collections.abc import Mapping

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from widenet_jax.ops.analysis.active_units import ActiveUnits
from widenet_jax.ops.analysis.expert_usage import ExpertUsage
from widenet_jax.run.figures import block_panels, run_colour, save, subplots

PANELS_A_ROW = 4
LEAST_SHARE = 1e-5  # the lower end of the logarithmic axis
BAND = (0.1, 0.9)  # quantiles over tokens


def draw_shares(usage: ExpertUsage, out: epath.Path, *, title: str = "") -> None:
    """Draws each block's shares of the selection weight, largest first (fig. 7)."""
    figure, axis = subplots(size=(7, 4.5))
    blocks = zip(usage.blocks, usage.sorted_shares, strict=True)
    plot_shares(axis, {f"block {block}": shares for block, shares in blocks})
    figure.suptitle(title, fontsize=10)
    figure.legend(loc="outside right center", fontsize=8)
    save(figure, out)


def plot_shares(axis: Axes, curves: Mapping[str, np.ndarray]) -> None:
    """Draws sorted shares [E], a line for each name, and a dotted line where all were equal.

    Experts without any weight lie on the lower edge.
    """
    for index, (name, shares) in enumerate(curves.items()):
        experts = np.arange(1, len(shares) + 1)
        shown = np.maximum(shares, LEAST_SHARE)
        marker = "os^Dv"[index % 5] if len(experts) <= 32 else None
        colour = run_colour(index, len(curves))
        axis.plot(experts, shown, marker=marker, ms=4, color=colour, label=name)
    for size in {len(shares) for shares in curves.values()}:
        axis.axhline(1 / size, color="black", ls=":", lw=1)
    axis.set_yscale("log")
    axis.set_ylim(LEAST_SHARE, 1.5)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="expert, by its share (dotted: equal shares)", ylabel="share of the gates")
    axis.grid(alpha=0.3)


def percent(share: float) -> str:
    """Writes a share in plain decimals: "0.01%"."""
    return f"{100 * share:.10f}".rstrip("0").rstrip(".") + "%"


def draw_co_occurrence(usage: ExpertUsage, out: epath.Path, *, title: str = "") -> None:
    """Draws block by block how often tokens of an expert (row) chose each other one (fig. 6)."""
    shares = usage.co_occurrence
    E = shares.shape[1]
    size = {"columns": PANELS_A_ROW, "panel": (3.2, 3.2), "edge": (2, 0.8)}
    figure, axes = block_panels(usage.blocks, **size, sharex=True, sharey=True)
    figure.suptitle(title, fontsize=10)
    for axis, values in zip(axes, shares, strict=True):
        shown = np.where(np.eye(E, dtype=bool), np.nan, values)
        image = axis.imshow(shown, cmap="viridis", vmin=0, vmax=shares.max() or 1.0)
        axis.set_facecolor("lightgrey")  # of the diagonal
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(nbins=8, integer=True))
    figure.supxlabel("expert chosen as well")
    figure.supylabel("expert")
    figure.colorbar(image, ax=figure.axes, label="share of the row's tokens")
    save(figure, out)


def draw_active(found: Mapping[str, ActiveUnits], out: epath.Path, *, title: str = "") -> None:
    """Draws how many hidden units are active in each block, a line for each model (fig. 1).

    The line is the mean over tokens; 80% of the tokens lie in the band.
    """
    figure, axis = subplots(size=(7, 4.2))
    for index, (name, active) in enumerate(found.items()):
        colour = run_colour(index, len(found))
        low, high = (active.quantile(q) for q in BAND)
        axis.plot(active.blocks, active.mean, "os^Dv"[index % 5] + "-", color=colour, label=name)
        axis.fill_between(active.blocks, low, high, color=colour, alpha=0.2, lw=0)
    of = " or ".join(f"{width:,}" for width in sorted({one.width for one in found.values()}))
    axis.set(xlabel="block", ylabel=f"active units of {of}")
    axis.set_title(title, fontsize=10)
    axis.set_ylim(bottom=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
    label = "outside lower center"
    figure.legend(loc=label, title="mean over tokens; band: 10% to 90% of them", fontsize=8)
    save(figure, out)
