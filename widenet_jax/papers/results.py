"""The report of a reproduction: its provenance, its first line, its tables and figures."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etils import epath

from widenet_jax.files import write_text
from widenet_jax.ops.sweep.trials import Outcome
from widenet_jax.papers.experiment import PaperExperiment
from widenet_jax.papers.report import write
from widenet_jax.papers.runs import Measurements
from widenet_jax.papers.scales import Run, Scale, run_of
from widenet_jax.papers.table_2 import table_2


def provenance(
    measured: Measurements, command: Sequence[str], differing: Sequence[str]
) -> dict[str, Any]:
    """Returns the command, and the commits and devices that the finished runs recorded.

    Where runs were given different fields, the command has none, and `differing` lists them.
    """
    commits, devices = set(), set()
    for workdir in (workdir for of in measured.values() for workdir in of.workdirs):
        file = epath.Path(workdir) / "environment.json"
        for start in json.loads(file.read_text()) if file.exists() else []:
            commits.add((start.get("git") or {}).get("commit", "unknown")[:7])
            devices.add(f"{len(start['devices'])} x {start['devices'][0]}")
    made_by: dict[str, Any] = {"command": shlex.join(command)}
    if differing:
        made_by["differing"] = f"runs with different fields: {'; '.join(differing)}"
    return made_by | {"commits": sorted(commits), "devices": sorted(devices)}


def write_all(
    experiments: Sequence[PaperExperiment],
    scale: Scale,
    wanted: Sequence[Run],
    measured: Measurements,
    made_by: Mapping[str, Any],
    out: Path,
) -> tuple[str, list[str], list[dict[str, Any]]]:
    """Writes the tables and figures of what has run into `out`.

    Args:
      experiments: with all their rows. Those that were not asked for are shown where an earlier
        call ran them.
      scale: of the runs.
      wanted: the runs that were asked for.
      measured: what has run.
      made_by: as `provenance` returns it.
      out: the directory.

    Returns:
      A line on what ran, the text of each table, and what the JSON file of each holds.
    """
    shown = [one for one, of in measured.items() if one in wanted or of.ended]
    tables = []
    for one in experiments:
        rows = tuple(row for row in one.rows if run_of(scale, one, row) in shown)
        if rows or one.layer:
            tables.append(replace(one, rows=rows))
    facts = [write(table, scale, measured, made_by, out) for table in tables]
    names = [table.name for table in tables]
    if any(table.text for table in tables):
        names.insert(0, "table2")
        write_text(out / "table2.md", table_2(scale, measured))
    texts = [(out / f"{name}.md").read_text() for name in names]
    outcomes = [outcome for one in shown for outcome in measured[one].outcomes]
    return header_of(made_by, outcomes), texts, facts


def header_of(made_by: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """Returns a line on what ran: "scripts/reproduce.py fig3 --scale=smoke: 5 done, 1 failed"."""
    counts = Counter(outcome.status for outcome in outcomes)
    of_each = ", ".join(f"{count} {status}" for status, count in counts.items())
    differing = f" ({made_by['differing']})" if "differing" in made_by else ""
    return f"{made_by['command']}{differing}: {of_each}"
