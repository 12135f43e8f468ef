"""Time and memory of single feed-forward layers: figs. 2 and 8 to 11 of sigma-MoE.

A dense layer beside experts of as many parameters, over D, E or G. At the paper's scale they are
priced for a TPU; at the others measured on the first device here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widenet_jax.files import read_json, write_json, write_text
from widenet_jax.ops.benchmark.feed_forward import feed_forward_row, sizes
from widenet_jax.ops.benchmark.report import draw, table
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.papers.experiment import PaperExperiment
from widenet_jax.papers.scales import Scale

METHODS = ("dense", "auto")
ROUNDS = 5


def measure(experiment: PaperExperiment, scale: Scale, directory: Path) -> None:
    """Times every layer of a figure, unless an earlier call did, and keeps the rows in a file."""
    file = rows_file(experiment, directory)
    if file.exists():
        return
    choices = {name: [value] for name, value in scale.layer.items()}
    choices[experiment.layer] = list(scale.layer_sweeps[experiment.layer])
    topology = parse_topology(scale.layer_topology) if scale.layer_topology else None
    rows = [
        feed_forward_row(
            method,
            size,
            dtype="bfloat16" if topology else "float32",
            capacity_factor=0.0,
            topology=topology,
            rounds=ROUNDS,
        )
        for size in sizes(**choices)
        for method in METHODS
    ]
    write_json(file, rows)


def rows_file(experiment: PaperExperiment, directory: Path) -> Path:
    """Returns where `measure` keeps its rows."""
    return directory / f"{experiment.name}_rows.json"


def write(experiment: PaperExperiment, directory: Path, made_by: str) -> dict[str, Any]:
    """Writes NAME.md and NAME.png of the rows there are; returns the facts."""
    file = rows_file(experiment, directory)
    rows = read_json(file) if file.exists() else []
    parts = [f"## {experiment.title}"]
    if rows:
        draw("feed_forward", rows, directory / f"{experiment.name}.png")
        parts.append(table(rows))
    lines = [f"The paper: {experiment.claim}"] + ([] if rows else ["Not run."])
    parts += ["\n".join(f"- {line}" for line in [*lines, *crossings(rows)]), f"Made by {made_by}."]
    write_text(directory / f"{experiment.name}.md", "\n\n".join(parts) + "\n")
    return {"experiment": experiment.name, "rows": rows}


def crossings(rows: list[Mapping[str, Any]]) -> list[str]:
    """Says how much faster and smaller the experts are than the dense layer, size by size."""
    lines = []
    for dense, experts in zip(rows[::2], rows[1::2], strict=True):
        if dense["ms"] is None or experts["ms"] is None:
            continue
        size = ", ".join(
            f"{letter} = {dense[name]:,}"
            for letter, name in (("D", "embed_dim"), ("E", "experts"), ("G", "expert_dim"))
        )
        lines.append(
            f"{size}: the experts take {experts['ms'] / dense['ms']:.2f} of the dense layer's time "
            f"and {experts['memory_gib'] / dense['memory_gib']:.2f} of its memory."
        )
    return lines
