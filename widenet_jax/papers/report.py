"""The report of a reproduction: its provenance, its tables and its figures."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.files import STARTS, read_json, without_nan, write_json, write_text
from widenet_jax.papers import contrasts, figures, forced_routing, tables
from widenet_jax.papers.experiments import PaperExperiment
from widenet_jax.papers.runs import Measurements
from widenet_jax.papers.scales import Run, Scale, run_of


def provenance(measured: Measurements, command: Sequence[str]) -> dict[str, Any]:
    """Returns the command, and the commits and devices that the finished runs recorded."""
    commits, devices = set(), set()
    for workdir in (workdir for of in measured.values() for workdir in of.workdirs):
        file = epath.Path(workdir) / STARTS
        for start in read_json(file) if file.exists() else []:
            commits.add(((start.get("git") or {}).get("commit") or "unknown")[:7])
            devices.add(f"{len(start['devices'])} x {start['devices'][0]}")
    lists = {"commits": sorted(commits), "devices": sorted(devices)}
    return {"command": shlex.join(command)} | lists


def write_all(
    experiments: Sequence[PaperExperiment],
    scale: Scale,
    wanted: Sequence[Run],
    measured: Measurements,
    command: Sequence[str],
    out: Path,
) -> tuple[str, list[str], list[dict[str, Any]]]:
    """Writes the tables and figures of finished runs into `out`.

    Args:
      experiments: with all their rows. Rows outside `wanted` are shown where an earlier call ran
        them.
      scale: of the runs.
      wanted: the runs that were asked for.
      measured: what has run.
      command: makes these runs.
      out: the directory.

    Returns:
      A line on what ran, the text of each table, and what the JSON file of each holds.
    """
    out.mkdir(parents=True, exist_ok=True)
    made_by = provenance(measured, command)
    shown = [one for one, of in measured.items() if one in wanted or of.ended]
    texts, contents = [], []
    for one in experiments:
        rows = tuple(row for row in one.rows if run_of(scale, one, row) in shown)
        if rows or one.layer:
            text, content = write(replace(one, rows=rows), scale, measured, made_by, out)
            texts.append(text)
            contents.append(content)
    if any(one.text for one in experiments):
        texts.insert(0, tables.table_2(scale, measured))
        write_text(out / "table2.md", texts[0])
    counts = Counter(outcome.status for one in shown for outcome in measured[one].outcomes)
    of_each = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{made_by['command']}: {of_each}", texts, contents


def write(
    experiment: PaperExperiment, scale: Scale, measured: Measurements, made_by: Mapping, out: Path
) -> tuple[str, dict[str, Any]]:
    """Writes NAME.md, NAME.json and NAME.png into `out`; returns the text and the JSON's content.

    In JSON the paper's NaN is the text "NaN"; a value of null is a seed that diverged.
    """
    picture, content = out / f"{experiment.name}.png", {}
    if experiment.layer:
        content, text = figures.show_layers(experiment, scale, out, picture)
    elif experiment.statistic == "routing":
        rows = forced_routing.measure(experiment, scale, measured, out)
        if rows:
            forced_routing.draw(experiment, rows, picture)
        content, text = {"rows": rows}, forced_routing.markdown(experiment, scale, rows)
    elif experiment.statistic:
        by_row = figures.measure(experiment, scale, measured)
        if by_row:
            figures.draw(experiment, scale, by_row, picture)
        numbers = {
            name: one.tolist() if isinstance(one, np.ndarray) else one.as_json()
            for name, one in by_row.items()
        }
        content, text = {"by_block": numbers}, figures.markdown(experiment, scale, by_row)
    else:
        rows = tables.rows_of(experiment, scale, measured)
        figures.draw_table(experiment, rows, picture)
        text = tables.markdown(experiment, scale, rows)
        content = {"rows": [row | {"paper": paper_json(row["paper"])} for row in rows]}
        if experiment.contrasts:
            found = contrasts.contrasts_of(experiment, rows)
            contrasts.draw(experiment, found, out / f"{experiment.name}_contrasts.png")
            text += contrasts.markdown(experiment, found)
            content["contrasts"] = [one.as_json() for one in found]
    devices, commits = (", ".join(made_by[of]) or "none" for of in ("devices", "commits"))
    text += f"\nMade by `{made_by['command']}`; devices: {devices}; commits: {commits}.\n"
    head = {"experiment": experiment.name, "about": scale.about_of(experiment)}
    head |= {"metric": asdict(experiment.metric), "made_by": dict(made_by)}
    write_text(out / f"{experiment.name}.md", text)
    write_json(out / f"{experiment.name}.json", content := without_nan(head | content))
    return text, content


def paper_json(value: float | str | None) -> float | str | None:
    """Replaces NaN, which JSON has no number for, by text."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
