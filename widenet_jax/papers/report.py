"""Writing one of the paper's tables or figures with our numbers beside it."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from etils import epath

from widenet_jax.files import write_json, write_text
from widenet_jax.papers import figures, layers, selection
from widenet_jax.papers.experiment import PaperExperiment
from widenet_jax.papers.runs import Measurements
from widenet_jax.papers.scales import Scale
from widenet_jax.papers.tables import markdown, norms_markdown, rows_of
from widenet_jax.run.metrics import without_nan


def write(
    experiment: PaperExperiment, scale: Scale, measured: Measurements, made_by: Mapping, out: Path
) -> dict[str, Any]:
    """Writes NAME.md, NAME.json and NAME.png into `out`; returns what the JSON file holds.

    In JSON the paper's NaN is the text "NaN"; a value of null is a seed that diverged.
    """
    if experiment.layer:
        return layers.write(experiment, out, made_by_text(made_by))
    rows = rows_of(experiment, scale, measured)
    facts: dict[str, Any] = {
        "experiment": experiment.name,
        "about": scale.about_of(experiment),
        "metric": asdict(experiment.metric),
        "made_by": dict(made_by),
        "rows": [row | {"paper": paper_json(row["paper"])} for row in rows],
    }
    picture = epath.Path(out / f"{experiment.name}.png")
    if experiment.norms:
        curves = figures.divergences(experiment, scale, measured)
        figures.draw_norms(experiment, curves, picture)
        facts["divergence"] = {name: y.tolist() for name, y in curves.items()}
        text = norms_markdown(experiment, scale, curves)
    elif experiment.selection:
        found = selection.measure(experiment, scale, measured)
        selection.draw(experiment, found, picture)
        facts["selection"] = selection.as_json(found)
        text = selection.markdown(experiment, scale, found)
    else:
        if experiment.name in figures.AXES:
            figures.draw_against(experiment, scale, rows, picture)
        else:
            figures.draw_table(experiment, rows, picture)
        if experiment.language:
            figures.draw_curves(experiment, scale, measured, out)
        text = markdown(experiment, scale, rows)
    text += f"\nMade by {made_by_text(made_by)}.\n"
    write_text(out / f"{experiment.name}.md", text)
    write_json(out / f"{experiment.name}.json", without_nan(facts))
    return without_nan(facts)


def paper_json(value: float | str | None) -> float | str | None:
    """Replaces NaN, which JSON has no number for, by text."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def made_by_text(made_by: Mapping[str, Any]) -> str:
    """Returns the provenance as the last line of a Markdown table."""
    parts = [f"`{made_by['command']}`"]
    parts += [made_by["differing"]] if "differing" in made_by else []
    parts += [f"on {', '.join(made_by['devices'])}"] if made_by["devices"] else []
    parts += [f"at commit {', '.join(made_by['commits'])}"] if made_by["commits"] else []
    return ", ".join(parts)
