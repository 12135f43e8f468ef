"""Pictures of routing and norms: expert usage, experts over images, divergence (figs. 4, 5)."""

from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from widenet_jax.tools.analysis.expert_usage import ExpertUsage
from widenet_jax.tools.analysis.figures import MOST_NAMES, save
from widenet_jax.tools.analysis.norm_divergence import Divergence
from widenet_jax.tools.analysis.routing import TokenRouting, patch_grid, routed_blocks
from widenet_jax.weights.trained import Trained

# Ten that stay apart also for the colour-blind where they are few; more experts repeat them paler.
COLOURS = [f"C{i}" for i in (0, 1, 2, 3, 4, 6, 8, 9, 5, 7)]
TINT = 0.55  # of an expert's colour over a patch
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green, blue (ITU-R BT.601)
PANELS_A_ROW = 6


def expert_colours(num_experts: int) -> np.ndarray:
    """[E, 3] RGB in [0, 1]."""
    base = np.array([to_rgb(COLOURS[e % len(COLOURS)]) for e in range(num_experts)])
    paler = np.array([0.6 ** (e // len(COLOURS)) for e in range(num_experts)])[:, None]
    return base * paler + (1 - paler)


def draw_usage(usage: ExpertUsage, out: epath.Path, *, title: str = "") -> None:
    """Load, entropy and drops by block; experts by class; agreement between blocks."""
    figure = Figure(figsize=(15, 9), layout="constrained")
    figure.suptitle(title)
    (load, level, drop), (classes, agreement, information) = figure.subplots(2, 3)
    E = usage.load.shape[-1]
    below = np.zeros(len(usage.blocks))
    for e, colour in enumerate(expert_colours(E)):
        load.bar(usage.blocks, usage.load[:, e], bottom=below, color=colour, label=f"expert {e}")
        below += usage.load[:, e]
    load.set(xlabel="block", ylabel="share of (token, choice) pairs", title="load")
    load.legend(fontsize=7, ncols=min(E, 8), loc="upper center", bbox_to_anchor=(0.5, -0.12))
    level.plot(usage.blocks, usage.router_entropy / np.log(E), "o-", label="of a token's router")
    level.plot(usage.blocks, usage.load_entropy / np.log(E), "s--", label="of the load")
    level.set(xlabel="block", ylabel="share of log E", ylim=(0, 1.05), title="entropy")
    level.legend()
    drop.bar(usage.blocks, 100 * usage.drop_rate, color="C7")
    highest = max(1.0, 110 * float(usage.drop_rate.max()))
    drop.set(xlabel="block", ylabel="% of the pairs", title="dropped", ylim=(0, highest))
    draw_classes(classes, usage)
    for axis, values, name in (
        (agreement, usage.agreement, "same first choice (share of tokens)"),
        (information, usage.mutual_information, "mutual information (share)"),
    ):
        draw_between_blocks(axis, values, usage.blocks, name)
    for axis in (load, level, drop):
        axis.set_xticks(usage.blocks)
    save(figure, out)


def draw_classes(axis: Axes, usage: ExpertUsage) -> None:
    """Which experts the classes go to in the block that tells them apart most."""
    spread = usage.by_class.std(axis=1).mean(axis=-1)  # [L]
    chosen = int(spread.argmax())
    image = axis.imshow(usage.by_class[chosen], aspect="auto", cmap="viridis", vmin=0)
    axis.figure.colorbar(image, ax=axis, label="share of the class's pairs")
    axis.set(
        xlabel="expert",
        ylabel="class",
        title=f"block {usage.blocks[chosen]}, where classes differ most",
        xticks=range(usage.load.shape[-1]),
    )
    if len(usage.class_names) <= MOST_NAMES:
        axis.set_yticks(range(len(usage.class_names)), usage.class_names, fontsize=7)


def draw_between_blocks(axis: Axes, values: np.ndarray, blocks: Sequence[int], title: str) -> None:
    image = axis.imshow(values, vmin=0, vmax=1, cmap="magma")
    axis.figure.colorbar(image, ax=axis)
    axis.set(title=title, xlabel="block", ylabel="block")
    axis.set_xticks(range(len(blocks)), blocks)
    axis.set_yticks(range(len(blocks)), blocks)
    if len(blocks) <= 12:
        for (i, j), value in np.ndenumerate(values):
            colour = "black" if value > 0.6 else "white"
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)


def draw_overlay(
    trained: Trained,
    pictures: Sequence[np.ndarray],
    routings: Sequence[TokenRouting],
    out: epath.Path,
    *,
    titles: Sequence[str],
) -> None:
    """Every picture, then for each block, in grey, its patches tinted by their first expert.

    A dot is the second choice; a cross marks patches whose first choice was dropped.

    Args:
      trained: the model.
      pictures: uint8 [h, w, C], as `prediction.read_picture` gives them.
      routings: of each picture, as `routing.image_router` gives them.
      out: a PNG file.
      titles: of the pictures.
    """
    blocks = routed_blocks(trained.model)
    rows = -(-len(blocks) // PANELS_A_ROW)
    columns = 1 + min(len(blocks), PANELS_A_ROW)
    figure = Figure(figsize=(2.1 * columns, 2.3 * rows * len(pictures) + 0.5), layout="constrained")
    axes = figure.subplots(rows * len(pictures), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    E = trained.model.moe["num_experts"]
    for i, (picture, routing, title) in enumerate(zip(pictures, routings, titles, strict=True)):
        own = axes[i * rows : (i + 1) * rows]
        own[0, 0].imshow(as_rgb(picture))
        own[0, 0].set_title(title, fontsize=8)
        for position, block in enumerate(blocks):
            axis = own[position // PANELS_A_ROW, 1 + position % PANELS_A_ROW]
            draw_block(axis, trained, picture, routing, position)
            axis.set_title(f"block {block}", fontsize=8)
    handles = [Patch(color=c, label=f"expert {e}") for e, c in enumerate(expert_colours(E))]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(E, 8), fontsize=8)
    save(figure, out)


def draw_block(
    axis: Axes, trained: Trained, picture: np.ndarray, routing: TokenRouting, position: int
) -> None:
    """One picture in one block."""
    colours = expert_colours(routing.probs.shape[-1])
    experts = patch_grid(trained, routing.expert_index[position, 0])  # [rows, columns, K]
    dropped = patch_grid(trained, routing.dropped[position, 0])
    P = trained.model.patch_size
    tint = colours[experts[..., 0]].repeat(P, axis=0).repeat(P, axis=1)
    grey = as_rgb(picture) @ np.array(LUMINANCE) / 255  # colours are the experts' alone
    axis.imshow((1 - TINT) * grey[..., None] + TINT * tint)
    y, x = (np.indices(experts.shape[:2]) + 0.5) * P - 0.5
    dot = 900 / experts.shape[0] ** 2  # points^2: a fifth of a patch wide in a panel of 2 inches
    if experts.shape[-1] > 1:
        second = colours[experts[..., 1].ravel()]
        axis.scatter(x.ravel(), y.ravel(), s=dot, c=second, linewidths=0.3, edgecolors="white")
    lost = dropped[..., 0]
    axis.scatter(x[lost], y[lost], s=2 * dot, c="black", marker="x", linewidths=0.8)


def as_rgb(picture: np.ndarray) -> np.ndarray:
    """[h, w, 1 or 3] to [h, w, 3]."""
    return np.broadcast_to(picture, (*picture.shape[:2], 3))


def draw_divergence(models: Mapping[str, Mapping[str, Divergence]], out: epath.Path) -> None:
    """Figs. 4 and 5: eq. 9 of gamma (left) and beta (right), one value a block, a line a model.

    Args:
      models: name -> what `norm_divergence` returned.
      out: a PNG file.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axis, vector in zip(figure.subplots(1, 2), ("gamma", "beta"), strict=True):
        curves = {name: vectors[vector].block for name, vectors in models.items()}
        plot_divergence(axis, curves, vector)
    # Below the panels: names are paths, and long ones would leave no room for the curves.
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center")
    save(figure, out)


def plot_divergence(axis: Axes, curves: Mapping[str, np.ndarray], vector: str) -> None:
    """Eq. 9 of one vector ("gamma" or "beta"), one value a block, a line a name."""
    for number, (name, y) in enumerate(curves.items()):
        axis.plot(range(len(y)), y, "os^Dv"[number % 5] + "-", label=name)
    axis.set(xlabel="block", ylabel="y (eq. 9)", title=f"divergence of {vector}")
    axis.set_ylim(0, 1.1 * max((y.max() for y in curves.values()), default=1.0) or 1.0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
