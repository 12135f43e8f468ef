"""The results of a sweep: a row for each trial, as a CSV file, tables and pictures."""

import csv
import io
import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from etils import epath

from widenet_jax.files import write_text
from widenet_jax.ops.sweep.axes import Space
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.figures import SEED, axis_of, draw_against
from widenet_jax.ops.sweep.trials import (
    DONE,
    FAILED,
    HANDED_OVER,
    STOPPED,
    VARIANT,
    WAITING,
    Outcome,
)
from widenet_jax.run.figures import draw_learning_curves
from widenet_jax.run.markdown import text_table
from widenet_jax.run.metrics import JsonLines

MOST_CURVES = 20  # more learning curves are unreadable: the best ones are drawn
STATISTICS = ("seeds", "mean", "std", "median", "best_median")
TABLE, PICTURES = "results.csv", ("learning_curves.png", "sweep.png")
UNFINISHED = (STOPPED, WAITING, HANDED_OVER)
LAST_COLUMNS = ("exit_code", "message", "workdir")


class Results:
    """The outcomes of a sweep's trials, compared by the task's primary metric.

    Args:
      outcomes: at least one, in the order of the sweep.
      directory: of the sweep.
      space: of a search; empty for a list of trials.

    Attributes:
      fields: fields that at least one trial sets, the variant first.
      metric: "test_accuracy", or another primary metric of result.json.
      progress: column of the last evaluation of trials that are not done.
      rows: a dict for each trial, the best first and those without a result last: trial, every
        swept field, status, every number and text of result.json (`metric` and params_sha256 among
        them), `progress`, exit_code, message, workdir.
    """

    def __init__(self, outcomes: Sequence[Outcome], directory: Directory, space: Space):
        self.outcomes, self.directory, self.space = outcomes, directory, space
        fields = {name for outcome in outcomes for name in outcome.trial.settings}
        self.fields = sorted(fields, key=lambda name: (name != VARIANT, name))
        self.primary_metric = outcomes[0].trial.primary_metric()
        self.metric = f"test_{self.primary_metric.name}"
        self.progress = f"last_eval_{self.primary_metric.name}"
        self.rows = self.best_first([self.row_of(outcome) for outcome in outcomes], self.metric)

    def row_of(self, outcome: Outcome) -> dict[str, Any]:
        """Makes the row of a trial."""
        row = {"trial": outcome.trial.name, **outcome.trial.settings, "status": outcome.status}
        row |= {k: v for k, v in outcome.result.items() if isinstance(v, int | float | str)}
        done = outcome.status == DONE
        evaluations = [] if done else self.directory.evaluations(outcome.trial)
        row[self.progress] = evaluations[-1][self.primary_metric.name] if evaluations else None
        row |= {"exit_code": outcome.exit_code, "message": outcome.message}
        return row | {"workdir": self.directory.workdir(outcome.trial)}

    def best_first(self, rows: Sequence[dict], name: str) -> list[dict]:
        """Sorts rows by the value of column `name`; rows without a value come last."""
        sign = -1 if self.primary_metric.higher_is_better else 1
        return sorted(rows, key=lambda row: (row.get(name) is None, sign * (row.get(name) or 0)))

    def over_seeds(self) -> list[dict[str, Any]]:
        """Averages the primary metric over seeds.

        Returns:
          A row for each setting of the other fields, the best first: those fields, `seeds` (the
          number of finished ones), `mean`, `std` (n - 1; None for a single seed) and `median`; and
          `best_median`, of the runs' best evaluations instead of their last. Empty where seeds are
          not swept.
        """
        others = [name for name in self.fields if name != SEED]
        best = f"best_checkpoint_{self.primary_metric.name}"
        groups: dict[tuple, list[dict]] = {}
        for row in self.rows if SEED in self.fields else ():
            if row["status"] == DONE:
                key = tuple(row.get(name) for name in others)
                groups.setdefault(key, []).append(row)
        found = []
        for key, rows in groups.items():
            values = [row[self.metric] for row in rows]
            # Runs of earlier versions do not tell their best.
            bests = [row.get(best, row[self.metric]) for row in rows]
            statistic = {
                "seeds": len(values),
                "mean": statistics.fmean(values),
                "std": statistics.stdev(values) if len(values) > 1 else None,
                "median": statistics.median(values),
                "best_median": statistics.median(bests),
            }
            found.append(dict(zip(others, key, strict=True)) | statistic)
        return self.best_first(found, "mean")

    def as_json(self) -> dict[str, Any]:
        """Returns everything as one JSON object."""
        facts = {"primary_metric": self.primary_metric._asdict(), "trials": self.rows}
        facts["over_seeds"] = self.over_seeds()
        return facts | {"best": self.best()}

    def csv(self) -> str:
        """Returns the rows as CSV text."""
        last = [self.progress, *LAST_COLUMNS]
        first = dict.fromkeys(name for row in self.rows for name in row if name not in last)
        out = io.StringIO()
        writer = csv.DictWriter(out, [*first, *last], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def best(self) -> dict[str, Any] | None:
        """Returns the best trial that is done: its name, its metric and its command."""
        row = self.rows[0]
        if row["status"] != DONE or row.get(self.metric) is None:
            return None
        trial = next(one.trial for one in self.outcomes if one.trial.name == row["trial"])
        command = ["python", "-m", "widenet_jax.main", *trial.arguments(row["workdir"])]
        return {"trial": trial.name, self.metric: row[self.metric], "command": shlex.join(command)}

    def report(self) -> str:
        """Returns tables for people, the files and the command of the best trial."""
        columns = ["trial", *self.fields, "status", self.metric, "params"]
        if any(row[self.progress] is not None for row in self.rows):
            columns.append(self.progress)
        parts = [table(self.rows, columns)]
        if means := self.over_seeds():
            names = [name for name in self.fields if name != SEED]
            parts.append("over seeds\n" + table(means, [*names, *STATISTICS]))
        parts += [
            f"failed: {outcome.trial.name}, exit code {outcome.exit_code}: {outcome.message}\n"
            f"  its whole log: {self.directory.log(outcome.trial)}"
            for outcome in self.outcomes
            if outcome.status == FAILED
        ]
        parts += self.files_text()
        if best := self.best():
            parts.append(f"best  {best['trial']}, {self.metric} {cell(best[self.metric])}\n"
                         f"  {best['command']}")  # fmt: skip
        return "\n\n".join(parts)

    def files_text(self) -> list[str]:
        """Returns a line on what `write` writes, and one on what it does not and why."""
        done = any(outcome.status == DONE for outcome in self.outcomes)
        pictures = PICTURES if self.fields else PICTURES[:1]
        text = f"results  {self.directory.path}/" + ", ".join((TABLE, *(pictures if done else ())))
        counts = Counter(outcome.status for outcome in self.outcomes)
        left = ", ".join(f"{counts[status]} {status}" for status in UNFINISHED if counts[status])
        lines = [text]
        if not done:
            lines.append(f"not written, as no trial is done: {', '.join(pictures)}")
        if left:
            lines.append(f"not among the results yet: {left}; run the same command again to resume")
        return ["\n".join(lines)]

    def write(self) -> None:
        """Writes TABLE and, once a trial is done, PICTURES, the second of swept fields."""
        write_text(self.directory.path / TABLE, self.csv())
        done = [row for row in self.rows if row["status"] == DONE]
        if not done:
            return
        under_way = [row for row in self.rows if row[self.progress] is not None]
        curves = (done + under_way)[:MOST_CURVES]
        names = [
            ", ".join(f"{name.split('.')[-1]}={cell(row.get(name))}" for name in self.fields)
            for row in curves
        ]
        workdirs = [epath.Path(row["workdir"]) for row in curves]
        curves_file, axes_file = (self.directory.path / name for name in PICTURES)
        metric = self.primary_metric.name
        # Of a single evaluation there is no curve, and training shows more.
        often = any(len(evaluations(workdir)) > 1 for workdir in workdirs)
        splits = ("eval",) if often else ("train", "eval")
        draw_learning_curves(
            workdirs, epath.Path(curves_file), metric=metric, names=names, splits=splits
        )
        if self.fields:
            settings = [outcome.trial.settings for outcome in self.outcomes]
            axes = [axis_of(field, settings, self.space) for field in self.fields]
            draw_against(done, axes, self.metric, axes_file)


def evaluations(workdir: epath.Path) -> list[dict]:
    """Returns the records of a run's evaluations in training."""
    records = JsonLines(workdir / "metrics.jsonl").read()
    return [record for record in records if record["split"] == "eval"]


def table(rows: Sequence[dict], columns: Sequence[str]) -> str:
    """Lays rows out in columns of equal width below a header; a missing value is left blank."""
    return text_table([columns, *([cell(row.get(name)) for name in columns] for row in rows)])


def cell(value: Any) -> str:
    """Formats a value."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
