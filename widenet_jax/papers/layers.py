"""Time and memory of single feed-forward layers: figs. 2 and 8 to 11 of sigma-MoE.

A dense layer beside experts of as many parameters, over D, E or G. At the paper's scale they are
priced for a TPU; at the others measured on the first device here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widenet_jax.files import read_json, write_json
from widenet_jax.ops.benchmark.feed_forward import feed_forward_row, sizes
from widenet_jax.ops.benchmark.report import draw, table
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.papers.experiments import PaperExperiment
from widenet_jax.papers.scales import Scale
from widenet_jax.papers.tables import page

ROUNDS = 5


def measure(experiment: PaperExperiment, scale: Scale, file: Path) -> None:
    """Times every layer of a figure, unless an earlier call did, and keeps the rows in a file."""
    if file.exists():
        return
    choices = {name: [value] for name, value in scale.layer.items()}
    choices[experiment.layer] = list(scale.layer_sweeps[experiment.layer])
    topology = parse_topology(scale.layer_topology) if scale.layer_topology else None
    options = {"dtype": "bfloat16" if topology else "float32", "capacity_factor": 0.0}
    rows = [
        feed_forward_row(method, size, topology=topology, rounds=ROUNDS, **options)
        for size in sizes(**choices)
        for method in ("dense", "auto")
    ]
    write_json(file, rows)


def show(
    experiment: PaperExperiment, scale: Scale, file: Path, picture: Path
) -> tuple[dict[str, Any], str]:
    """Draws the rows there are; returns them and the page."""
    rows = read_json(file) if file.exists() else []
    if rows:
        draw("feed_forward", rows, picture)
    lines = [f"The paper: {experiment.claim}"] + ([] if rows else ["Not run."])
    about = f"on {scale.layer_topology}" if scale.layer_topology else "on this machine"
    text = page(experiment.title, about, table(rows) if rows else "", [*lines, *crossings(rows)])
    return {"rows": rows}, text


def crossings(rows: list[Mapping[str, Any]]) -> list[str]:
    """Says how much faster and smaller the experts are than the dense layer, size by size."""
    lines = []
    for dense, experts in zip(rows[::2], rows[1::2], strict=True):
        if dense["ms"] is None or experts["ms"] is None:
            continue
        letters = {"D": "embed_dim", "E": "experts", "G": "expert_dim"}
        size = ", ".join(f"{letter} = {dense[name]:,}" for letter, name in letters.items())
        lines.append(
            f"{size}: the experts take {experts['ms'] / dense['ms']:.2f} of the dense layer's time "
            f"and {experts['memory_gib'] / dense['memory_gib']:.2f} of its memory."
        )
    return lines
