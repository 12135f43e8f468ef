"""Figures of the usage of experts and units, and of the divergence of norms.

WideNet, figs. 4 and 5; sigma-MoE, figs. 1 and 3 to 7.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import MaxNLocator

from widenet_jax.ops.analysis.norm_divergence import VECTORS, Divergence
from widenet_jax.ops.analysis.usage import QUANTILES, ActiveUnits, ExpertUsage
from widenet_jax.run.figures import (
    MARKERS,
    MOST_NAMES,
    PALETTE,
    block_panels,
    legend_below,
    run_colour,
    save,
    shortened,
    subplots,
    write_in_cells,
)

LUMINANCE = np.array((0.299, 0.587, 0.114))  # of red, green, blue (ITU-R BT.601)
PANELS_A_ROW = 4
MOST_EXPERTS = 16  # that are named one by one
LEAST_SHARE = 1e-5  # where a logarithmic axis has experts without any weight
LEAST_NAMED = 0.03  # share of a bar that has room for its expert's number


def expert_colours(num_experts: int) -> np.ndarray:
    """Returns a colour for each expert, [E, 3] RGB in [0, 1].

    Experts beyond PALETTE repeat its colours paler, and beyond three shades repeat all.
    """
    base = np.array([to_rgb(PALETTE[e % len(PALETTE)]) for e in range(num_experts)])
    # Three shades of each; more would fade to white.
    paler = np.array([0.6 ** (e // len(PALETTE) % 3) for e in range(num_experts)])[:, None]
    return base * paler + (1 - paler)


def draw_usage(usage: ExpertUsage, out: epath.Path, *, title: str = "") -> None:
    """Draws load, entropy and drops by block, experts by category, and agreement between blocks.

    Where nothing is dropped, the load takes the place of two panels.
    """
    figure, axes = subplots(2, 3, size=(15, 9))
    figure.suptitle(title)
    (load, level, drop), (categories, agreement, information) = axes
    draw_load(load, usage)
    E = usage.load.shape[-1]
    curves = {"router, mean of tokens": usage.router_entropy, "load": usage.load_entropy}
    for index, (name, entropy) in enumerate(curves.items()):
        style = {"color": PALETTE[index], "marker": MARKERS[index], "ls": ("-", "--")[index]}
        level.plot(usage.blocks, entropy / np.log(E), label=name, **style)
    level.axhline(1.0, color="black", ls=":", lw=1)  # all experts alike
    level.set(xlabel="block", ylabel="share of log E (dotted: all alike)", title="entropy")
    legend_below(level)
    drop.bar(usage.blocks, 100 * usage.drop_rate, color="grey")
    highest = max(1.0, 110 * float(usage.drop_rate.max()))
    drop.set(xlabel="block", ylabel="% of the pairs", title="dropped", ylim=(0, highest))
    draw_categories(categories, usage)
    shared = "same first choice, if experts\nare shared (share of tokens)"
    draw_between_blocks(agreement, usage.agreement, usage.blocks, shared)
    share = "mutual information\n(share)"
    draw_between_blocks(information, usage.mutual_information, usage.blocks, share)
    for axis in (load, level, drop):
        axis.set_xticks(usage.blocks)
    if not usage.drop_rate.any():  # the panel would be empty
        load.set_title(f"{load.get_title()}; nothing is dropped")
        load.set_subplotspec(load.get_gridspec()[0, :2])
        level.set_subplotspec(drop.get_subplotspec())
        drop.remove()
    save(figure, out)


def draw_load(axis: Axes, usage: ExpertUsage) -> None:
    """Draws each block's shares as a bar, with the experts' numbers in their parts."""
    E = usage.load.shape[-1]
    below = np.zeros(len(usage.blocks))
    for e, colour in enumerate(expert_colours(E)):
        bars = axis.bar(usage.blocks, usage.load[:, e], bottom=below, color=colour)
        below += usage.load[:, e]
        if E <= MOST_EXPERTS:
            names = [str(e) if share > LEAST_NAMED else "" for share in usage.load[:, e]]
            text = "black" if colour @ LUMINANCE > 0.5 else "white"
            axis.bar_label(bars, names, label_type="center", color=text)
    numbers = " (numbers: experts; dotted: equal)" if E <= MOST_EXPERTS else " (dotted: equal)"
    axis.set(xlabel="block", ylabel="share of (token, choice) pairs", title=f"load{numbers}")
    for e in range(1, E):
        axis.axhline(e / E, color="white", ls=":", lw=1)


def draw_categories(axis: Axes, usage: ExpertUsage) -> None:
    """Draws the experts of each category, in the block where categories differ most."""
    chosen, what = usage.most_different, usage.category
    image = axis.imshow(usage.by_category[chosen], aspect="auto", cmap="viridis")
    axis.figure.colorbar(image, ax=axis, label=f"share of the {what}'s pairs")
    plural = {"class": "classes", "kind": "kinds"}[what]
    title = f"block {usage.blocks[chosen]}, where {plural} differ most"
    axis.set(xlabel="expert", ylabel="true class" if what == "class" else what, title=title)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    if len(usage.names) <= MOST_NAMES:
        axis.set_yticks(range(len(usage.names)), [*map(shortened, usage.names)], fontsize=7)


def draw_kinds(usage: ExpertUsage, out: epath.Path, *, title: str = "") -> None:
    """Draws, block by block, which experts take which kinds of tokens (rows), beside all tokens.

    A kind's share of all tokens stands beside its name. Numbers in the cells are percent.
    """
    shares = np.concatenate([usage.load[:, None], usage.by_category], axis=1)  # [L, 1 + V, E]
    _, V, E = shares.shape
    width = 0.45 * E if E <= MOST_EXPERTS else 5.0  # inches; beyond, numbers would not fit
    size = {"columns": PANELS_A_ROW, "panel": (0.8 + width, 0.8 + 0.28 * V), "edge": (2.5, 1.5)}
    figure, axes = block_panels(usage.blocks, **size, sharex=True, sharey=True)
    figure.suptitle(title)
    shown = zip(usage.names, usage.frequency, strict=True)
    labels = ["all tokens", *(f"{name} ({share:.1%})" for name, share in shown)]
    for axis, values in zip(axes, shares, strict=True):
        image = axis.imshow(values, aspect="auto", cmap="viridis", vmin=0, vmax=shares.max())
        axis.axhline(0.5, color="white", lw=2)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axis.set_yticks(range(V), labels, fontsize=8)
        if E <= MOST_EXPERTS:
            bright = values > 0.7 * shares.max()
            write_in_cells(axis, np.char.mod("%.0f", 100 * values), bright)
    figure.supxlabel("expert")
    figure.colorbar(image, ax=figure.axes, label="share of the kind's pairs")
    save(figure, out)


def draw_between_blocks(axis: Axes, values: np.ndarray, blocks: Sequence[int], title: str) -> None:
    """Draws a matrix [L, L] over pairs of blocks."""
    image = axis.imshow(values, vmin=0, vmax=1, cmap="magma")
    axis.figure.colorbar(image, ax=axis)
    axis.set(title=title, xlabel="block", ylabel="block")
    axis.set_xticks(range(len(blocks)), blocks)
    axis.set_yticks(range(len(blocks)), blocks)
    if len(blocks) <= 12:
        write_in_cells(axis, np.char.mod("%.2f", values), values > 0.6)


def draw_shares(usage: ExpertUsage, out: epath.Path, *, title: str = "") -> None:
    """Draws each block's shares of the selection weight, largest first (fig. 7)."""
    figure, axis = subplots(size=(7, 4.5))
    blocks = zip(usage.blocks, usage.sorted_shares, strict=True)
    plot_shares(axis, {f"block {block}": shares for block, shares in blocks})
    if axis.get_yscale() == "linear":
        axis.set_ylim(bottom=0)
    figure.suptitle(title, fontsize=10)
    figure.legend(loc="outside right center", fontsize=8)
    save(figure, out)


def plot_shares(axis: Axes, curves: Mapping[str, np.ndarray]) -> None:
    """Draws sorted shares [E], a line for each name, and a dotted line where all were equal.

    The scale is logarithmic where shares span a factor of 10; experts without any weight lie at
    LEAST_SHARE.
    """
    lowest = min(np.min(shares) for shares in curves.values())
    wide = 10 * lowest < max(np.max(shares) for shares in curves.values())
    for index, (name, shares) in enumerate(curves.items()):
        experts = np.arange(1, len(shares) + 1)
        shown = 100 * np.maximum(shares, LEAST_SHARE)
        marker = MARKERS[index % 5] if len(experts) <= 32 else None
        colour = run_colour(index, len(curves))
        axis.plot(experts, shown, marker=marker, ms=4, color=colour, label=name)
    for size in {len(shares) for shares in curves.values()}:
        axis.axhline(100 / size, color="black", ls=":", lw=1)
    if wide:
        axis.set_yscale("log")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(
        xlabel="rank of the expert by its share (dotted: equal)", ylabel="share of the gates, %"
    )
    axis.grid(alpha=0.3)


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


def draw_active(models: Mapping[str, ActiveUnits], out: epath.Path, *, title: str = "") -> None:
    """Draws how many hidden units are active in each block, a line for each model (fig. 1).

    The line is the mean over tokens; 80% of the tokens lie in the band.
    """
    figure, axis = subplots(size=(7, 4.2))
    low, _, high = QUANTILES
    curves = {
        name: (of.blocks, of.mean, of.quantile(low), of.quantile(high))
        for name, of in models.items()
    }
    of = " or ".join(f"{width:,}" for width in sorted({one.width for one in models.values()}))
    plot_by_block(axis, curves, ylabel=f"active units of {of}")
    axis.set_title(title, fontsize=10)
    band = "mean over tokens; band: 10% to 90% of them"
    figure.legend(loc="outside lower center", title=band, fontsize=8)
    save(figure, out)


def draw_divergence(models: Mapping[str, Mapping[str, Divergence]], out: epath.Path) -> None:
    """Draws figs. 4 and 5: eq. 9 of gamma and beta by block, a line for each model.

    Beta has no panel where no model has it.

    Args:
      models: name -> the result of `norm_divergence`.
      out: a PNG file.
    """
    vectors = [vector for vector in VECTORS if any(vector in of for of in models.values())]
    figure, axes = subplots(1, len(vectors), size=(5 * len(vectors), 4), squeeze=False)
    for axis, vector in zip(axes[0], vectors, strict=True):
        values = {name: of[vector].block if vector in of else () for name, of in models.items()}
        curves = {name: (range(len(y)), y) for name, y in values.items()}
        plot_by_block(axis, curves, ylabel="y (eq. 9)")
        axis.set_title(f"divergence of {vector}")
    # Below the panels: names are paths, and beside the curves they would leave little room.
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center")
    save(figure, out)


def plot_by_block(axis: Axes, curves: Mapping[str, tuple], *, ylabel: str) -> None:
    """Draws a line for each name.

    Args:
      axis: to draw into.
      curves: name -> (blocks, values [L]), or (blocks, values, the lower and the upper edge of a
        band [L]).
      ylabel: label of the values.
    """
    for index, (name, (blocks, values, *band)) in enumerate(curves.items()):
        colour = run_colour(index, len(curves))
        axis.plot(blocks, values, MARKERS[index % 5] + "-", color=colour, label=name)
        if band:
            axis.fill_between(blocks, *band, color=colour, alpha=0.2, lw=0)
    axis.set(xlabel="block", ylabel=ylabel)
    axis.set_ylim(0, 1.05 * axis.dataLim.ymax)  # from 0, with room for the highest marker
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
