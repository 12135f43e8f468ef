"""The papers' figures from our runs, and a picture of every table.

How far apart the blocks' norms are (WideNet, figs. 4 and 5), which experts and units language
models use, and the time and memory of single layers (both sigma-MoE). Norms cover every finished
seed, the usage the first one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from widenet_jax.files import read_json, write_json
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis import figures as usage_figures
from widenet_jax.ops.analysis.norm_divergence import VECTORS, norm_divergence
from widenet_jax.ops.analysis.usage import ActiveUnits, ExpertUsage, measure_active, measure_usage
from widenet_jax.ops.benchmark import report as benchmark_report
from widenet_jax.ops.benchmark.feed_forward import LayerSize, feed_forward_row, sizes
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.ops.sweep.seeds import std_of
from widenet_jax.papers.experiments import PaperExperiment
from widenet_jax.papers.runs import Measurements
from widenet_jax.papers.scales import Scale, run_of
from widenet_jax.papers.tables import number, page
from widenet_jax.run.figures import PALETTE, block_panels, save, subplots
from widenet_jax.run.intervals import varies
from widenet_jax.run.tables import markdown_table

PANELS_A_ROW = 3
RARE = 0.1  # of an equal share: an expert below it is hardly used
# Statistic of a figure by block -> header of the first column of its numbers.
HEADERS = {
    "gamma": "eq. 9 of gamma",
    "beta": "eq. 9 of beta",
    "active": "active units, mean",
    "shares": "largest share; experts below a tenth of an equal share",
    "together": "most frequent pair: share of the first one's tokens",
}
ROUNDS = 5  # of timing a layer


def draw_table(experiment: PaperExperiment, rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Draws every row's metric, ours with its spread; on the left a paper's, where there is one."""
    metric = experiment.metric.label
    labels = [shown_label(experiment, row["label"], row["variant"]) for row in rows]
    labels = [label.replace(" (here", "\n(here") for label in labels]
    height = 1.5 + sum(0.15 + 0.2 * len(label.splitlines()) for label in labels)
    size = (8 if experiment.contrasts else 11, height)
    panels = 1 if experiment.contrasts else 2
    figure, ((*papers, own),) = subplots(1, panels, size=size, sharey=True, squeeze=False)
    figure.suptitle(experiment.title)
    for paper in papers:
        draw_printed(experiment, rows, paper)
    for place, row in enumerate(rows):
        for value in row["values"]:
            own.plot(value, place, "|", color=PALETTE[5], alpha=0.6)
        if row["mean"] is not None and np.isfinite(row["mean"]):
            bar = {"xerr": row["std"] or None, "capsize": 3}  # of 0 only its ends would be drawn
            own.errorbar(row["mean"], place, color=PALETTE[5], fmt="o", **bar)
        elif row["mean"] is not None:
            own.text(0.02, place, "NaN", transform=own.get_yaxis_transform(), va="center")
    own.set_yticks(range(len(rows)), labels)
    own.set_ylim(len(rows) - 0.5, -0.5)
    marks = ["bars: one standard deviation"] * any(row["std"] for row in rows)
    marks += ["seeds without a bar: no spread"] * any(row["std"] == 0 for row in rows)
    marks += ["strokes: seeds"] * any(len(row["values"]) > 1 for row in rows)
    own.set(xlabel="\n".join([f"{metric}, ours", *marks]))
    for axis in (*papers, own):
        axis.grid(alpha=0.3)
    save(figure, out)


def draw_printed(
    experiment: PaperExperiment, rows: Sequence[Mapping[str, Any]], axis: Axes
) -> None:
    """Draws the paper's number of every row, or writes that it has none."""
    for place, row in enumerate(rows):
        if isinstance(row["paper"], float) and np.isfinite(row["paper"]):
            axis.plot(row["paper"], place, "o", color=PALETTE[0])
        else:
            text = number(row["paper"], experiment.metric.decimals)
            axis.text(0.02, place, text, transform=axis.get_yaxis_transform(), va="center")
    axis.set(xlabel=f"{experiment.paper_label or experiment.metric.label}, the paper")
    if not axis.lines:  # no numbers, so no axis of numbers
        axis.set_xticks([])


def shown_label(experiment: PaperExperiment, label: str, variant: str) -> str:
    """Returns a row's label in a picture: the paper's name, and the model that ran here.

    Of language models the title and the label name it already.
    """
    return label if experiment.language else f"{label} (here {variant})"


def measure(experiment: PaperExperiment, scale: Scale, measured: Measurements) -> dict[str, Any]:
    """Measures the statistic of a figure by block; rows without a finished seed are left out.

    Returns:
      label of a row -> eq. 9 of its norms [seeds, L], its ActiveUnits or its ExpertUsage.

    Raises:
      BadInputError: the blocks share their norms, because of a flag for all runs.
    """
    statistic, by_row = experiment.statistic, {}
    for row in experiment.rows:
        workdirs = measured[run_of(scale, experiment, row)].workdirs
        if workdirs and statistic in VECTORS:
            norms = [norm_divergence(open_trained(workdir).params) for workdir in workdirs]
            by_row[row.label] = np.stack([vectors[statistic].block for vectors in norms])
        elif workdirs:
            of_model = measure_active if statistic == "active" else measure_usage
            by_row[row.label] = of_model(open_trained(workdirs[0]))
    return by_row


def draw(experiment: PaperExperiment, scale: Scale, found: Mapping[str, Any], out: Path) -> None:
    """Draws what `measure` returned of at least one row."""
    title, models = experiment.title, models_of(experiment, scale)
    by_row = {shown_label(experiment, name, models[name]): one for name, one in found.items()}
    if experiment.statistic == "together":
        return usage_figures.draw_co_occurrence(*by_row.values(), out, title=title)
    drawn = {"active": usage_figures.draw_active, "shares": draw_shares_of}
    return drawn.get(experiment.statistic, draw_norms)(by_row, out, title=title)


def models_of(experiment: PaperExperiment, scale: Scale) -> dict[str, str]:
    """Returns the model that runs here of each row, by the row's label."""
    return {row.label: run_of(scale, experiment, row).model for row in experiment.rows}


def draw_norms(by_row: Mapping[str, np.ndarray], out: Path, *, title: str) -> None:
    """Draws Figs. 4 and 5: for each model the mean over seeds, and a band between the extremes."""
    figure, axis = subplots(size=(6, 4))
    curves = {k: (range(y.shape[1]), y.mean(0), y.min(0), y.max(0)) for k, y in by_row.items()}
    usage_figures.plot_by_block(axis, curves, ylabel="y (eq. 9)")
    axis.set_title(title)
    figure.legend(loc="outside lower center")
    save(figure, out)


def draw_shares_of(by_row: Mapping[str, ExpertUsage], out: Path, *, title: str) -> None:
    """Draws the sorted shares of several models, a panel for each block."""
    blocks = max((usage.blocks for usage in by_row.values()), key=len)
    size = {"columns": PANELS_A_ROW, "panel": (4.2, 3.6), "edge": (1, 1.2)}
    figure, axes = block_panels(blocks, **size, sharey=True)
    figure.suptitle(title, fontsize=10)
    for place, axis in enumerate(axes):
        usage_figures.plot_shares(
            axis, {name: usage.sorted_shares[place] for name, usage in by_row.items()}
        )
        axis.label_outer()
    place = {"loc": "outside lower center", "ncols": 2, "fontsize": 8}
    figure.legend(*axes[0].get_legend_handles_labels(), **place)
    save(figure, out)


def markdown(experiment: PaperExperiment, scale: Scale, by_row: Mapping[str, Any]) -> str:
    """Writes the numbers of a figure by block, and the paper's conclusion."""
    statistic, table, models = experiment.statistic, "", models_of(experiment, scale)
    lines = [f"The paper: {experiment.claim}"]
    lines += [f"{row.label}: not run." for row in experiment.rows if row.label not in by_row]
    if by_row:
        rows = [
            [shown_label(experiment, name, models[name]), *cells(one, statistic)]
            for name, one in by_row.items()
        ]
        first = next(iter(by_row.values()))
        if statistic in VECTORS:
            header = [*map("block {}".format, range(first.shape[1])), "mean", "seeds"]
        else:
            header = [f"block {block}" for block in first.blocks]
        table = markdown_table([[HEADERS[statistic], *header], *rows])
    if statistic in VECTORS and len(by_row) == len(experiment.rows) == 2:
        (one, low), (other, high) = by_row.items()
        above = int((high.mean(axis=0) > low.mean(axis=0)).sum())
        lines.append(
            f"The mean of {models[other]} is {high.mean() / low.mean():.2f} times "
            f"{models[one]}'s, and it is above in {above} of {low.shape[1]} blocks."
        )
    return page(experiment.title, scale.about_of(experiment), table, lines)


def cells(one: np.ndarray | ActiveUnits | ExpertUsage, statistic: str) -> list[str]:
    """Returns a cell for each block: mean of eq. 9 or of the active units, largest share, or pair.

    Of eq. 9 the mean over the blocks and the number of seeds follow.
    """
    if statistic in VECTORS:
        means = one.mean(axis=1)
        alike = " (no spread)" * (len(one) > 1)
        spread = f" ± {std_of(means):.4f}" if varies(means) else alike
        by_block = [f"{value:.4f}" for value in one.mean(axis=0)]
        return [*by_block, f"{one.mean():.4f}{spread}", str(len(one))]
    if statistic == "active":
        return [f"{mean:.1f} of {one.width:,}" for mean in one.mean]
    if statistic == "shares":
        E = one.sorted_shares.shape[1]
        rare = (one.sorted_shares < RARE / E).sum(axis=1)
        largest = one.sorted_shares[:, 0]
        return [f"{of:.1%}; {few} of {E}" for of, few in zip(largest, rare, strict=True)]
    texts = []
    for shares in one.co_occurrence:
        first, second = np.unravel_index(shares.argmax(), shares.shape)
        texts.append(f"{first} with {second}: {shares.max():.0%}")
    return texts


def layer_file(experiment: PaperExperiment, out: Path) -> Path:
    """Returns where `time_layers` keeps its rows."""
    return out / f"{experiment.name}_rows.json"


def time_layers(experiment: PaperExperiment, scale: Scale, out: Path) -> None:
    """Times every layer of a figure, unless an earlier call did, and keeps the rows in `out`.

    A dense layer beside experts of as many parameters, over D, E or G. At the paper's scale they
    are priced for a TPU; at the others measured on the first device here.
    """
    if layer_file(experiment, out).exists():
        return
    choices = {name: [value] for name, value in scale.layer.items()}
    choices[experiment.layer] = scale.layer_sweeps[experiment.layer]
    topology = parse_topology(scale.layer_topology) if scale.layer_topology else None
    how = {"dtype": "bfloat16" if topology else "float32", "topology": topology, "rounds": ROUNDS}
    rows = [
        feed_forward_row(method, size, **how)
        for size in sizes(LayerSize, **choices)
        for method in ("dense", "auto")
    ]
    write_json(layer_file(experiment, out), rows)


def show_layers(
    experiment: PaperExperiment, scale: Scale, out: Path, picture: Path
) -> tuple[dict[str, Any], str]:
    """Draws the rows there are; returns them and the page."""
    file = layer_file(experiment, out)
    rows = read_json(file) if file.exists() else []
    if rows:
        save(benchmark_report.draw_layers(rows), picture)
    lines = [f"The paper: {experiment.claim}"] + ([] if rows else ["Not run."])
    about = f"on {scale.layer_topology}" if scale.layer_topology else "on this machine"
    table = benchmark_report.table(rows) if rows else ""
    return {"rows": rows}, page(experiment.title, about, table, lines)
