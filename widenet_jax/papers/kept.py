"""Finished runs as JSON lines, to keep beside the code: they outlive the directories of the runs.

A line has the run's trial, its config and fields, the hash of the choices that were fixed before
the first run, commit, device, result.json, every evaluation, and the experts' loads at the end.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.files import STARTS, absolute, parse_json, read_json, write_json, write_text
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.ops.sweep.directory import Directory, check_metric
from widenet_jax.ops.sweep.trials import Trial
from widenet_jax.papers.experiments import CHOICES_SHA256
from widenet_jax.run.metrics import JsonLines

KEYS = {"trial", "fields", "choices_sha256", "commit", "device", "result", "evaluations"}
PLACE = "--config.data.path="  # of the data on the machine of the run, which a line leaves out


def read(path: str, trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """Reads the lines of a file; none where it does not exist.

    Raises:
      BadInputError: a line is damaged, or of a run under other choices or with other fields.
    """
    file, lines, wanted = absolute(path), [], {trial.name: trial for trial in trials}
    with refusing(f"--results={file}: damaged", UnicodeDecodeError):
        texts = file.read_text().splitlines() if file.exists() else ()
    seen: dict[str, Any] = {}
    for number, text in enumerate(texts, 1):
        damaged = f"--results={file}, line {number}: damaged"
        with refusing(damaged, ValueError, TypeError, KeyError, AttributeError):
            line = parse_json(text)
            if lacking := KEYS - line.keys():
                raise ValueError(f"without {', '.join(sorted(lacking))}")
            name, choices, fields = line["trial"], line["choices_sha256"], of_result(line["fields"])
            metric = line["result"]["primary_metric"]["name"]
            check_metric(metric, line["result"][f"test_{metric}"])
            if not all({"step", "split"} <= record.keys() for record in line["evaluations"]):
                raise ValueError("an evaluation without step or split")
            if seen.setdefault(name, line) != line:
                raise ValueError(f"another line has trial {name}; keep one of the two")
        if choices != CHOICES_SHA256:
            raise BadInputError(
                f"--results={file}, line {number}: run under other choices than claims.toml has "
                "now; undo what changed there, or name another file"
            )
        lines.append(line)
        if name not in wanted:
            continue
        if others := fields ^ of_result(wanted[name].fields()):
            raise BadInputError(
                f"--results={file}, line {number}: {name} ran with other fields "
                f"({', '.join(sorted(others))}); name another file"
            )
    return lines


def restore(lines: Iterable[dict], trials: Iterable[Trial], directory: Directory) -> None:
    """Makes the directories of kept runs that are not here."""
    from widenet_jax.run.workdir import plain  # imports JAX

    wanted = {trial.name: trial for trial in trials}
    for line in (line for line in lines if line["trial"] in wanted):
        trial = wanted[line["trial"]]
        workdir = epath.Path(directory.workdir(trial))
        if found := directory.result(trial):
            other = found != line["result"]
            refuse(workdir, (other, "its result is not that of --results; name another of the two"))
        else:
            workdir.mkdir(parents=True, exist_ok=True)
            start = {"git": {"commit": line["commit"]}, "devices": [line["device"]]}
            write_json(workdir / STARTS, [start])
            config = set_fields(load_config(trial.config), trial.fields())
            write_json(workdir / "config.json", plain(config))
            records = (f"{json.dumps(record)}\n" for record in line["evaluations"])
            write_text(workdir / "metrics.jsonl", "".join(records))
            write_json(workdir / "result.json", line["result"])


def add(path: str, trials: Sequence[Trial], directory: Directory) -> None:
    """Adds a line for each finished run that has none to the lines that are there by now."""
    lines = read(path, trials)
    known = {line["trial"] for line in lines}
    new = [trial for trial in trials if trial.name not in known and directory.result(trial)]
    if new:
        every = [*lines, *(line_of(trial, directory) for trial in new)]
        write_text(absolute(path), "".join(f"{json.dumps(line)}\n" for line in every))


def of_result(fields: Iterable[str]) -> set[str]:
    """Returns the fields on which a result depends."""
    from widenet_jax.run.workdir import MAY_CHANGE_AFTER  # imports JAX

    free = tuple(f"--config.{name}" for name in (*MAY_CHANGE_AFTER, "init_from="))
    return {field for field in fields if not field.startswith(free)}


def line_of(trial: Trial, directory: Directory) -> dict[str, Any]:
    """Returns the line of a finished run."""
    workdir = epath.Path(directory.workdir(trial))
    records = JsonLines(workdir / "metrics.jsonl").read()
    start = read_json(workdir / STARTS)[-1]
    return {
        "trial": trial.name,
        "config": trial.config,
        "fields": [field for field in trial.fields() if not field.startswith(PLACE)],
        "choices_sha256": CHOICES_SHA256,
        "commit": (start.get("git") or {}).get("commit"),
        "device": start["devices"][0],
        "result": directory.result(trial),
        "evaluations": [record for record in records if record.get("split") == "eval"],
        "load": next((r["load"] for r in reversed(records) if "load" in r), None),
    }
