"""What came out of a sweep: a row a trial, as CSV, as a table, over seeds, and as pictures."""

import csv
import io
import statistics
from collections.abc import Sequence
from typing import Any

from etils import epath

from widenet_jax.tools.analysis.figures import draw_learning_curves, draw_metric_against
from widenet_jax.tools.sweep.directory import Directory, write_whole
from widenet_jax.tools.sweep.runner import DONE, FAILED, STOPPED, Outcome
from widenet_jax.tools.sweep.trials import VARIANT

METRIC = "test_accuracy"  # of result.json; the more the better
PROGRESS = "last_eval_accuracy"  # of a trial that is not done
SEED = "seed"
CURVES = 20  # more learning curves than this are a tangle: the best are drawn


def rows_of(outcomes: Sequence[Outcome], directory: Directory) -> list[dict[str, Any]]:
    """A row a trial, the best first, those without a result last.

    Columns: trial, every swept field, status, every number and text of result.json (test_accuracy
    and params_sha256 among them), last_eval_accuracy, exit_code, message, workdir.
    """
    rows = []
    for outcome in outcomes:
        row = {"trial": outcome.trial.name, **outcome.trial.settings, "status": outcome.status}
        row |= {k: v for k, v in outcome.result.items() if isinstance(v, int | float | str)}
        evaluations = [] if outcome.status == DONE else directory.evaluations(outcome.trial)
        row[PROGRESS] = evaluations[-1]["accuracy"] if evaluations else None
        row |= {"exit_code": outcome.exit_code, "message": outcome.message}
        rows.append(row | {"workdir": directory.workdir(outcome.trial)})
    return sorted(rows, key=lambda row: -row.get(METRIC, float("-inf")))


def fields_swept(outcomes: Sequence[Outcome]) -> list[str]:
    """Fields that at least one trial sets, the variant first."""
    fields = {name for outcome in outcomes for name in outcome.trial.settings}
    return sorted(fields, key=lambda name: (name != VARIANT, name))


def csv_of(rows: Sequence[dict]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    last = [PROGRESS, "exit_code", "message", "workdir"]
    columns = [column for column in columns if column not in last] + last
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def over_seeds(rows: Sequence[dict], fields: Sequence[str]) -> list[dict[str, Any]]:
    """Mean and standard deviation (n - 1) of the test accuracy over seeds, the best first.

    Returns:
      A row for each setting of the other fields: those, `seeds` (how many are done), `mean`, and
      `std` (None for a single seed). Empty where seeds are not swept.
    """
    others = [name for name in fields if name != SEED]
    groups: dict[tuple, list[float]] = {}
    for row in rows if SEED in fields else ():
        if row["status"] == DONE:
            groups.setdefault(tuple(row.get(name) for name in others), []).append(row[METRIC])
    found = [
        dict(zip(others, key, strict=True))
        | {
            "seeds": len(values),
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else None,
        }
        for key, values in groups.items()
    ]
    return sorted(found, key=lambda row: -row["mean"])


def table(rows: Sequence[dict], columns: Sequence[str]) -> str:
    """Columns of equal width, a header, nothing for what a row lacks."""
    cells = [list(columns), *([cell(row.get(name), name) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return "\n".join(lines)


def cell(value: Any, column: str) -> str:
    if value is None:
        return ""
    if column in (METRIC, PROGRESS, "mean", "std"):
        return f"{value:.2%}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(outcomes: Sequence[Outcome], directory: Directory) -> str:
    """The tables for people, and where the rest is."""
    rows, fields = rows_of(outcomes, directory), fields_swept(outcomes)
    columns = ["trial", *fields, "status", METRIC, "params"]
    columns += [PROGRESS] if any(row[PROGRESS] is not None for row in rows) else []
    parts = [table(rows, columns)]
    if means := over_seeds(rows, fields):
        names = [name for name in fields if name != SEED]
        parts.append("over seeds\n" + table(means, [*names, "seeds", "mean", "std"]))
    failed = [outcome for outcome in outcomes if outcome.status == FAILED]
    parts += [
        f"failed: {outcome.trial.name}, exit code {outcome.exit_code}: {outcome.message}\n"
        f"  its whole log: {directory.log(outcome.trial)}"
        for outcome in failed
    ]
    parts.append(f"results  {directory.path}/results.csv, learning_curves.png, sweep.png")
    return "\n\n".join(parts)


def write(outcomes: Sequence[Outcome], directory: Directory) -> None:
    """results.csv and, once a trial is done, learning_curves.png and sweep.png."""
    rows, fields = rows_of(outcomes, directory), fields_swept(outcomes)
    write_whole(directory.path / "results.csv", csv_of(rows))
    done = [row for row in rows if row["status"] == DONE]
    if not done:
        return
    curves = [row for row in rows if has_metrics(row)][:CURVES]
    names = [", ".join(f"{f.split('.')[-1]}={cell(r.get(f), f)}" for f in fields) for r in curves]
    draw_learning_curves(
        [epath.Path(row["workdir"]) for row in curves],
        epath.Path(directory.path / "learning_curves.png"),
        names=names,
        splits=("eval",),
    )
    if fields:
        named = [row | {SEED: str(row[SEED])} if SEED in row else row for row in done]
        draw_metric_against(named, fields, METRIC, epath.Path(directory.path / "sweep.png"))


def has_metrics(row: dict) -> bool:
    return row["status"] == DONE or row[PROGRESS] is not None


def exit_code(outcomes: Sequence[Outcome], *, stopped: bool) -> int:
    """143 where stopped, 3 where a trial failed, else 0."""
    if stopped or any(outcome.status == STOPPED for outcome in outcomes):
        return 143
    return 3 if any(outcome.status == FAILED for outcome in outcomes) else 0
