"""Draws pictures of docs/log/ from the figures beside its pages.

PYTHONPATH=. python tests/log_figures.py [NAME ...]     docs/log/NAME.csv -> docs/log/figures/

Without a name it draws all. The other pictures there come from runs, by the commands of the pages.
"""

import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from widenet_jax.ops.sweep.seeds import mean_of, std_of
from widenet_jax.papers import contrasts, forced_routing
from widenet_jax.papers.experiments import EXPERIMENTS
from widenet_jax.papers.figures import draw_table
from widenet_jax.run.figures import MARKERS, PALETTE, save, subplots

LOG = Path(__file__).parents[1] / "docs" / "log"
FIGURES = LOG / "figures"
Row = dict[str, str]


def rows_of(name: str) -> list[Row]:
    """Returns the rows of docs/log/NAME.csv."""
    with (LOG / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def by(rows: Sequence[Row], *names: str) -> dict[str, list[Row]]:
    """Groups rows by the values of some columns, joined by commas."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(row[name] for name in names), []).append(row)
    return groups


def draw_loops(name: str) -> None:
    """Draws the models of a comparison of loops, and its contrasts, from all seeds."""
    experiment, rows = EXPERIMENTS[name], []
    for label, of in by(rows_of(name), "model").items():
        by_seed = {int(row["seed"]): float(row["bits_per_byte"]) for row in of}
        values = list(by_seed.values())
        found = {"label": label, "variant": "", "paper": None, "values": values}
        rows.append(found | {"by_seed": by_seed, "mean": mean_of(values), "std": std_of(values)})
    draw_table(experiment, rows, FIGURES / f"{name}.png")
    found = contrasts.contrasts_of(experiment, rows)
    contrasts.draw(experiment, found, FIGURES / f"{name}_contrasts.png")


def draw_routing(name: str) -> None:
    """Draws what forced routing costs each seed, and how many tokens change their experts."""
    shares = dict(
        zip(forced_routing.SHARES, ("changed", "by_chance", "none_in_common"), strict=True)
    )
    rows = []
    for label, of in by(rows_of(name), "model").items():
        lost = [float(row["bits_lost"]) for row in of]
        found = {"label": label, "metric": "bits_per_byte", "own": [0.0] * len(lost), "first": lost}
        found |= {key: [float(of[0][f"{one}_percent"]) / 100] for key, one in shares.items()}
        rows.append(found)
    forced_routing.draw(EXPERIMENTS[name], rows, FIGURES / f"{name}.png")


# Learning curves that another one covers.
BEHIND = ("WideNet, shared norms", "ViT, shared and wide")


def draw_claims(name: str) -> None:
    """Draws the contrasts of WideNet's claims, learning curves, and how evenly experts are used."""
    experiment, runs = EXPERIMENTS[name], [*map(json.loads, (LOG / f"{name}.jsonl").open())]
    rows: dict[str, dict[int, dict]] = {row.label: {} for row in experiment.rows}
    few = {row.variant: row.label for row in experiment.rows if "5,000" in row.label}
    all_of = {row.variant: row.label for row in experiment.rows if "5,000" not in row.label}
    for run in runs:
        labels = few if "--config.data.train_split=train[:5000]" in run["fields"] else all_of
        seed = next(int(f.split("=")[1]) for f in run["fields"] if f.startswith("--config.seed="))
        rows[labels[run["config"].split(":")[1]]][seed] = run
    scored = [
        {
            "label": label,
            "by_seed": {seed: 100 * run["result"]["test_accuracy"] for seed, run in of.items()},
        }
        for label, of in rows.items()
    ]
    contrasts.draw(
        experiment, contrasts.contrasts_of(experiment, scored), FIGURES / f"{name}_contrasts.png"
    )
    figure, axes = subplots(1, 2, size=(12, 5.4))
    colours = {label: PALETTE[index] for index, label in enumerate(all_of.values())}
    for label, of in rows.items():
        whole, _, amount = label.partition(", 5,000")
        style = {"color": colours[whole], "ls": "--" if amount else "-", "label": label}
        wide = {"linewidth": 5, "alpha": 0.6, "zorder": 1} if label in BEHIND else {}
        curves = np.array([[e["accuracy"] for e in run["evaluations"]] for run in of.values()])
        images = [128 * e["step"] / 1000 for e in next(iter(of.values()))["evaluations"]]
        axes[0].plot(images, 100 * curves.mean(axis=0), marker="o", markersize=3, **style, **wide)
        loads = [run["load"] for run in of.values() if run["load"]]
        if loads and not amount:
            cv = np.std(loads, axis=2) / np.mean(loads, axis=2)  # [seeds, blocks]
            places = np.arange(12) if len(cv[0]) == 12 else np.linspace(1, 11, len(cv[0]))
            places = places if len(cv[0]) > 1 else [0]
            axes[1].plot(places, cv.mean(axis=0), marker="o", **style)
            axes[1].fill_between(
                places, cv.min(axis=0), cv.max(axis=0), alpha=0.15, color=colours[whole]
            )
    axes[0].set(xlabel="images seen, thousands", ylabel="mean test accuracy, %")
    axes[1].set(xlabel="block (0: the first)\nbands: least to largest seed", ylim=(0, None))
    axes[1].set(ylabel="load CV of four experts (0: alike)")
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(figure, FIGURES / f"{name}_curves.png")


def draw_beside_paper(name: str, of: str, title: str, label: str, paper: str, ours: str) -> None:
    """Draws means and standard deviations beside a paper's numbers, as `of` of reproduce.py."""
    rows = []
    for row in rows_of(name):
        printed = float(row[paper]) if row[paper] else None
        found = {"label": row[label], "variant": row.get("variant", ""), "paper": printed}
        numbers = {"mean": float(row[f"{ours}mean"]), "std": float(row[f"{ours}std"]) or None}
        rows.append(found | {"values": []} | numbers)
    draw_table(replace(EXPERIMENTS[of], title=title), rows, FIGURES / f"{name}.png")


def draw_routers(name: str) -> None:
    """Draws accuracy and load by router, a colour for each model."""
    figure, axes = subplots(1, 2, size=(10, 4.5), sharey=True)
    for index, (model, rows) in enumerate(by(rows_of(name), "model").items()):
        places = [place + 0.3 * index for place in range(len(rows))]
        style = {"color": PALETTE[index], "fmt": MARKERS[index], "label": model}
        means = [float(row["accuracy_mean"]) for row in rows]
        spread = [float(row["accuracy_std"]) for row in rows]
        axes[0].errorbar(means, places, xerr=spread, capsize=3, **style)
        axes[1].errorbar([float(row["load_cv"]) for row in rows], places, **style)
        axes[0].set_yticks([place - 0.15 for place in places], [row["router"] for row in rows])
    axes[0].invert_yaxis()
    axes[0].set(xlabel="accuracy in %\n(bars: one standard deviation of three seeds)")
    axes[1].set(xlabel="load CV (0: all experts alike)", xlim=(0, None))
    for axis in axes:
        axis.grid(alpha=0.3)
    place = {"loc": "outside upper right", "ncols": 2}
    figure.legend(*axes[1].get_legend_handles_labels(), **place)
    save(figure, FIGURES / f"{name}.png")


def draw_texts(name: str) -> None:
    """Draws loss and accuracy of the small text models over steps."""
    figure, axes = subplots(1, 2, size=(12, 4.2))
    panels = {
        "masked_loss_nats": ("loss of masked words, nats", 6.709, "unigram entropy"),
        "order_accuracy": ("accuracy of the sentence order, %", 50.0, "guessing"),
    }
    for axis, (column, (label, line, name_of_line)) in zip(axes, panels.items(), strict=True):
        for index, (model, rows) in enumerate(by(rows_of(name), "model").items()):
            values = [float(row[column]) for row in rows]
            style = {"color": PALETTE[index], "marker": MARKERS[index], "label": model}
            axis.plot([int(row["step"]) for row in rows], values, **style)
        axis.axhline(line, color="0.6", label=name_of_line)
        axis.axvline(2500, color="0.6", ls=":", label="learning rate raised")
        axis.set(xlabel="step", ylabel=label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    save(figure, FIGURES / f"{name}.png")


def draw_ratios(name: str) -> None:
    """Draws predicted by measured time of each workload, by schedule and by the old estimate."""
    rows = rows_of(name)
    figure, axis = subplots(size=(9, 1.5 + 0.3 * len(rows)))
    axis.axvspan(0.81, 1.14, color="0.9")
    columns = {"ratio": "by schedule", "ratio_by_old_estimate": "by the old estimate"}
    for index, (column, label) in enumerate(columns.items()):
        ratios = [float(row[column]) for row in rows]
        style = {"color": PALETTE[(0, 5)[index]], "marker": "oX"[index], "ls": "none"}
        axis.plot(ratios, range(len(rows)), label=label, **style)
    axis.axvline(1, color="black", lw=1)
    axis.set(xscale="log", xlabel="predicted / measured (grey: 0.81 to 1.14)")
    axis.set_xticks([0.7, 1, 1.5, 2, 3])
    axis.minorticks_off()
    axis.set_yticks(range(len(rows)), [f"{row['workload']}, {row['tpu']}" for row in rows])
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper right", ncols=2)
    save(figure, FIGURES / f"{name}.png")


def draw_experts(name: str) -> None:
    """Draws the time of each way to compute experts, by the dense model's."""
    figure, axes = subplots(1, 2, size=(10, 4), sharey=True)
    for axis, (device, rows) in zip(axes, by(rows_of(name), "device").items(), strict=True):
        methods = by(rows, "method")
        dense = [float(row["ms"]) for row in methods.pop("dense")]
        for index, (method, of) in enumerate(methods.items()):
            ratios = [float(row["ms"]) / ms for row, ms in zip(of, dense, strict=True)]
            style = {"color": PALETTE[index], "marker": MARKERS[index], "label": method}
            axis.plot(range(len(of)), ratios, **style)
        names = [f"{row['experts']} (1/{row['experts_per_chosen']})" for row in of]
        axis.set_xticks(range(len(names)), names)
        axis.axhline(1, color="black", lw=1)
        axis.set(title=device, xlabel="experts (share computed for a token)", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="time by the dense model's")
    axes[1].legend(fontsize="small")
    save(figure, FIGURES / f"{name}.png")


DRAWN: dict[str, Callable[[str], None]] = {
    "claims": draw_claims,
    "loops_value": draw_loops,
    "loops_own": draw_loops,
    "loops_routing": draw_routing,
    "paper_small": lambda name: draw_beside_paper(
        name, "table3", "WideNet's tables, small", "row", "paper_top1", "top1_"
    ),
    "feed_forwards": lambda name: draw_beside_paper(
        name,
        "sigma_zoo_e8",
        "Feed-forwards at equal parameters",
        "feed_forward",
        "paper_bits_per_byte",
        "",
    ),
    "digits_routers": draw_routers,
    "text_small": draw_texts,
    "plans_against_measurements": draw_ratios,
    "experts_without_limit": draw_experts,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or DRAWN:
        DRAWN[name](name)
