"""The results of a sweep: a row for each trial, as a CSV file, tables and pictures."""

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from widenet_jax.data.labelled import names_text
from widenet_jax.files import write_text
from widenet_jax.ops.sweep import seeds
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.trials import FAILURES, VARIANT, Outcome, Status
from widenet_jax.run.figures import PALETTE, draw_learning_curves, save, subplots
from widenet_jax.run.intervals import accuracy_interval
from widenet_jax.run.tables import csv_text, text_table

MOST_CURVES = 20  # more learning curves are unreadable: the best ones are drawn
TABLE, PICTURES = "results.csv", ("learning_curves.png", "sweep.png")
UNFINISHED = (Status.STOPPED, Status.WAITING, Status.HANDED_OVER)
SEED = "seed"
LEVEL = "95%"  # column of intervals
MOST_NAMED = 8  # more numbers on an axis stand where they are on a scale
SIDE_BY_SIDE = 0.6  # of the distance of values: how wide rows of one value stand
LEAST_SPAN = 0.1  # of the largest value; an axis without intervals would exaggerate differences


class Results:
    """The outcomes of a sweep's trials, compared by the task's primary metric.

    Args:
      outcomes: at least one, in the order of the sweep.
      directory: of the sweep.

    Attributes:
      fields: fields that at least one trial sets, the variant first.
      others: these without the seed; their values are a setting.
      metric: "test_accuracy", or another primary metric of result.json.
      shown_metric: the same with the split that was evaluated: "valid_accuracy".
      progress: column of the last evaluation of trials that are not done.
      listed: a dict for each trial: trial, every swept field, status, every number and text of
        result.json (`metric`, params_sha256, ...), `progress`, exit_code, message, workdir.
      rows: these, the best first and those without a result last.
      done: these of the trials that are done.
    """

    def __init__(self, outcomes: Sequence[Outcome], directory: Directory):
        self.outcomes, self.directory = outcomes, directory
        fields = {name for outcome in outcomes for name in outcome.trial.settings}
        self.fields = sorted(fields, key=lambda name: (name != VARIANT, name))
        self.others = [name for name in self.fields if name != SEED]
        self.primary_metric = outcomes[0].trial.primary_metric()
        self.metric = f"test_{self.primary_metric.name}"
        self.progress = f"last_eval_{self.primary_metric.name}"
        self.listed = [self.row_of(outcome) for outcome in outcomes]
        self.rows = self.best_first(self.listed, self.metric)
        self.done = [row for row in self.rows if row["status"] == Status.DONE]
        splits = {str(row.get("split", "test")).partition("[")[0] for row in self.done}
        split = splits.pop() if len(splits) == 1 else "test"
        self.shown_metric = f"{split}_{self.primary_metric.name}"

    def row_of(self, outcome: Outcome) -> dict[str, Any]:
        """Makes the row of a trial."""
        row = {"trial": outcome.trial.name, **outcome.trial.settings, "status": outcome.status}
        row |= {k: v for k, v in outcome.result.items() if isinstance(v, int | float | str)}
        row[self.progress] = None
        if outcome.status != Status.DONE and (records := self.directory.evaluations(outcome.trial)):
            row[self.progress] = records[-1][self.primary_metric.name]
        row |= {"exit_code": outcome.exit_code, "message": outcome.message}
        return row | {"workdir": self.directory.workdir(outcome.trial)}

    def best_first(self, rows: Sequence[dict], name: str) -> list[dict]:
        """Sorts rows by the value of column `name`; rows without a value come last."""
        sign = -1 if self.primary_metric.higher_is_better else 1
        return sorted(rows, key=lambda row: (row.get(name) is None, sign * (row.get(name) or 0)))

    def by_setting(self, rows: Sequence[dict]) -> dict[tuple, dict[Any, float]]:
        """Returns setting -> seed -> metric of finished rows; {} where seeds are not swept."""
        found: dict[tuple, dict[Any, float]] = {}
        for row in rows if SEED in self.fields else ():
            of = found.setdefault(tuple(map(row.get, self.others)), {})
            if row["status"] == Status.DONE:
                of[row.get(SEED)] = row[self.metric]
        return found

    def over_seeds(self) -> list[dict[str, Any]]:
        """Averages the primary metric over seeds.

        Returns:
          A row for each setting, the best first: its fields, the number of finished `seeds`,
          `mean`, `std` by n - 1 (None for a single seed), and the mean's `interval` (None unless
          the seeds vary). Empty where seeds are not swept.
        """
        means = []
        for setting, by_seed in self.by_setting(self.done).items():
            row, values = dict(zip(self.others, setting, strict=True)), [*by_seed.values()]
            row |= {"seeds": len(values), "mean": statistics.fmean(values)}
            row |= {"std": seeds.std_of(values), "interval": seeds.mean_over_seeds(values)}
            means.append(row)
        return self.best_first(means, "mean")

    def differences(self) -> list[dict[str, Any]]:
        """Compares the settings with the first one of the sweep, paired by seed.

        Returns:
          A row for each other setting: its fields, the number of `seeds` that both have, the mean
          `difference`, its 95% `interval`, and `p` of a t-test against 0, corrected for the number
          of rows (Holm); both None where all seeds differ alike. Empty without two seeds in common.
        """
        first, *rest = self.by_setting(self.listed).items() or [((), {})]
        pairs = {setting: seeds.paired([by_seed], [first[1]]) for setting, by_seed in rest}
        found = seeds.compare({name: of for name, of in pairs.items() if len(of) > 1})
        return [
            dict(zip(self.others, one.label, strict=True))
            | {"seeds": len(one.values), "difference": one.mean, "interval": one.interval}
            | {"p": None if math.isnan(one.p) else one.p}
            for one in found
        ]

    def as_json(self) -> dict[str, Any]:
        """Returns everything as one JSON object."""
        return {
            "primary_metric": self.primary_metric._asdict(),
            "trials": self.rows,
            "over_seeds": self.over_seeds(),
            "differences": self.differences(),
            "best": self.best(),
            "warning": self.chosen_on_test(),
        }

    def best(self) -> dict[str, Any] | None:
        """Returns the best setting of the trials that are done; None where none is.

        Where seeds are swept, "setting" is best by its "mean" over so many "seeds". "trial", its
        metric and "command" are the best trial's of that setting; "ties" are the other settings
        that are exactly as good.
        """
        if not self.done:
            return None
        row, setting, means = self.done[0], {}, self.over_seeds()
        first, *others = [one["mean"] for one in means] or [one[self.metric] for one in self.done]
        equal = (means or self.done)[1 : 1 + others.count(first)]
        if means:
            fields = {name: means[0][name] for name in self.others}
            setting = {"setting": fields} | {name: means[0][name] for name in ("seeds", "mean")}
            row = next(one for one in self.done if all(one.get(k) == v for k, v in fields.items()))
        trial = next(one.trial for one in self.outcomes if one.trial.name == row["trial"])
        command = ["python", *trial.command(row["workdir"])[1:]]
        found = {"trial": trial.name, self.metric: row[self.metric], "command": shlex.join(command)}
        return setting | found | {"ties": [*map(self.setting_text, equal)]}

    def setting_text(self, row: Mapping[str, Any]) -> str:
        """Returns the fields of a row but the seed: "optimizer.name=lamb, model.mlp_dim=64"."""
        return ", ".join(f"{name}={cell(row.get(name))}" for name in self.others)

    def chosen_on_test(self) -> str:
        """Returns a warning where several settings were compared on a test split; "" elsewhere."""
        settings = {tuple(map(row.get, self.others)) for row in self.done}
        splits = {str(row.get("split", "")) for row in self.done}
        if len(settings) < 2 or not any(split.startswith("test") for split in splits):
            return ""
        return (
            f"warning: the best of {len(settings)} settings was chosen on the split "
            f"{' and '.join(sorted(splits))}, so its figure is optimistic; to report a "
            "test figure, sweep with --config.data.eval_split naming a validation split"
        )

    def report(self) -> str:
        """Returns tables for people, their directory and the command of the best trial."""
        parts = [self.trial_table()]
        if means := self.over_seeds():
            columns = [name for name in means[0] if name != "interval"]
            rows = [row | {LEVEL: over_seeds_text(row)} for row in means]
            parts.append("over seeds\n" + table(rows, [*columns, LEVEL]))
        if found := self.differences():
            rows = [row | {LEVEL: over_seeds_text(row), "": self.verdict(row)} for row in found]
            columns = [name for name in [*found[0], LEVEL] if name not in ("interval", "p")]
            first = self.setting_text(self.outcomes[0].trial.settings)
            better = "higher" if self.primary_metric.higher_is_better else "lower"
            title = (
                f"differences from {first}, paired by seed (p: t-test, by Holm for all rows; "
                f"95%: of each row alone); {better} is better\n"
            )
            parts.append(title + table(rows, [*columns, "p", ""]))
        parts += [
            f"{one.status}: {one.trial.name}, exit code {one.exit_code}: {one.message}\n"
            f"  its whole log: {self.directory.log(one.trial)}"
            for one in self.outcomes
            if one.status in FAILURES
        ]
        counts = Counter(outcome.status for outcome in self.outcomes)
        if left := ", ".join(f"{counts[one]} {one}" for one in UNFINISHED if counts[one]):
            parts.append(f"not among the results yet: {left}; run the same command again to resume")
        parts.append(f"tables and pictures  {self.directory.path}")
        if best := self.best():
            score = f"{self.shown_metric} {cell(best[self.metric])}"
            if "seeds" in best:
                score = f"mean over seeds {cell(best['mean'])} ({best['seeds']}), this one {score}"
            parts.append(f"best  {best['trial']}, {score}\n  {best['command']}")
            if best["ties"]:
                parts.append(f"exactly as good: {names_text(best['ties'], '; ')}")
        if warning := self.chosen_on_test():
            parts.append(warning)
        return "\n\n".join(parts)

    def verdict(self, row: Mapping[str, Any]) -> str:
        """Says what a row of `differences` shows; "" where it has no test."""
        if row["p"] is None:
            return ""
        sign = math.copysign(row["p"] < seeds.SIGNIFICANT, row["difference"])
        return seeds.judged(int(sign), higher_is_better=self.primary_metric.higher_is_better)

    def trial_table(self) -> str:
        """Returns a row for each trial; an accuracy has its interval over the examples."""
        known = [accuracy_interval(row) for row in self.rows if self.metric == "test_accuracy"]
        intervals = [" to ".join(map(cell, of or ())) for of in known or [None] * len(self.rows)]
        columns = ["trial", *self.fields, "status", self.metric, LEVEL, "params"]
        if not any(intervals):
            columns.remove(LEVEL)
        if any(row[self.progress] is not None for row in self.rows):
            columns.append(self.progress)
        rows = [row | {LEVEL: of} for row, of in zip(self.rows, intervals, strict=True)]
        return table(rows, columns, {self.metric: self.shown_metric})

    def write(self) -> None:
        """Writes TABLE and, once a trial is done, PICTURES, the second of swept fields."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = ([row.get(name) for name in columns] for row in self.rows)
        write_text(self.directory.path / TABLE, csv_text([columns, *cells]))
        if not self.done:
            return
        under_way = [row for row in self.rows if row[self.progress] is not None]
        curves = (self.done + under_way)[:MOST_CURVES]
        shown = self.others or self.fields  # seeds of one setting are one curve
        names = [
            ", ".join(f"{name.split('.')[-1]}={cell(row.get(name))}" for name in shown)
            for row in curves
        ]
        curves_file, axes_file = (self.directory.path / name for name in PICTURES)
        workdirs, metric = [row["workdir"] for row in curves], self.primary_metric.name
        draw_learning_curves(workdirs, curves_file, metric=metric, names=names, splits=("eval",))
        if self.fields:
            label = self.shown_metric
            draw_against(self.done, shown, self.metric, axes_file, self.bars(), label=label)

    def bars(self) -> list[dict[str, Any]]:
        """Returns the rows whose intervals are drawn: of means over seeds, else of accuracies."""
        if self.fields != [SEED] and (means := self.over_seeds()):
            return means
        rows = self.done if self.metric == "test_accuracy" else []
        return [
            row | {"mean": row[self.metric], "interval": accuracy_interval(row)} for row in rows
        ]


def table(rows: Sequence[dict], columns: Sequence[str], shown: Mapping[str, str] = {}) -> str:
    """Lays rows out in columns of equal width below a header; a missing value is left blank."""
    header = [shown.get(name, name) for name in columns]
    return text_table([header, *([cell(row.get(name)) for name in columns] for row in rows)])


def cell(value: Any) -> str:
    """Formats a value."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def over_seeds_text(row: Mapping[str, Any]) -> str:
    """Formats the interval of a row with `seeds`, or says why it has none."""
    return seeds.interval_text(row["interval"], row["seeds"], cell)


def draw_against(
    rows: Sequence[Mapping],
    fields: Sequence[str],
    metric: str,
    out: Path,
    bars: Sequence[Mapping] = (),
    *,
    label: str,
) -> None:
    """Draws a panel for each field: a dot for each row, and the mean at each value.

    And the `interval` of each of the bars, at its fields; seeds without spread are named. Seeds,
    texts and few numbers stand at equal distances, with different settings of a value side by side;
    many numbers where they are on a scale, logarithmic if they span a factor of 10. A row without
    the field is left out of its panel; means are left out where every value has a single row.
    """
    size = (1 + 4 * len(fields), 4)
    figure, panels = subplots(1, len(fields), size=size, sharey=True, squeeze=False)
    marks: dict[str, Any] = {}  # text of the legend -> artist
    for panel, field in zip(panels[0], fields, strict=True):
        shown, scores = [row for row in rows if field in row], {}
        for row in shown:
            scores.setdefault(row[field], []).append(row[metric])
        numbers = all(type(value) in (int, float) for value in scores)
        values = sorted(scores) if numbers else list(scores)
        named = not numbers or field == SEED or len(values) <= MOST_NAMED
        places = dict(zip(values, range(len(values)) if named else values, strict=True))
        x = [places[row[field]] + named * beside(row, shown, field, fields) for row in shown]
        panel.plot(x, [row[metric] for row in shown], "o", color=PALETTE[0], alpha=0.6)
        for bar in (bar for bar in bars if bar.get(field) in places):
            place = places[bar[field]] + named * beside(bar, shown, field, fields)
            marks |= draw_bar(bar, place, panel)
        if any(len(of) > 1 for of in scores.values()):
            means = [statistics.fmean(scores[value]) for value in values]
            style = {"color": PALETTE[5], "marker": "_", "ms": 14, "mew": 2}
            style["ls"] = "none" if named else "-"
            (marks["mean"],) = panel.plot(places.values(), means, **style)
        panel.set_xlabel(field)
        panel.grid(alpha=0.3)
        if named:  # room for the labels of the first and the last one
            names = [cell(value) for value in values]
            panel.set_xlim(-0.5, len(names) - 0.5)
            panel.set_xticks(range(len(names)), names)
            panel.tick_params("x", rotation=20 if max(map(len, names), default=0) > 6 else 0)
        elif 0 < 10 * values[0] <= values[-1]:
            panel.set_xscale("log")
    if marks:  # above the panels, where it covers no dot
        place = {"loc": "outside upper right", "ncols": 2, "fontsize": 8}
        figure.legend(marks.values(), marks.keys(), **place)
    if not any(bar["interval"] for bar in bars):
        low, high = (end(row[metric] for row in rows) for end in (min, max))
        room = max(0.0, LEAST_SPAN * max(abs(low), abs(high)) - (high - low)) / 2
        panels[0, 0].update_datalim([(0, low - room), (0, high + room)], updatex=False)
        panels[0, 0].autoscale_view(scalex=False)
    panels[0, 0].set_ylabel(label.replace("_", " "))
    save(figure, out)


def draw_bar(bar: Mapping, place: float, panel: Axes) -> dict[str, Any]:
    """Draws an interval, or says that its seeds have no spread; returns the legend's entry."""
    if bar["interval"]:
        over = "of the mean over seeds" if "seeds" in bar else "over examples"
        line = panel.vlines(place, *bar["interval"], color=PALETTE[1], lw=2, zorder=1)
        return {f"95% interval {over}": line}
    if bar.get("seeds", 1) > 1:
        where = {"xytext": (10, 0), "textcoords": "offset points", "va": "center"}
        panel.annotate("no spread", (place, bar["mean"]), fontsize=8, **where)
    return {}


def beside(row: Mapping, rows: Sequence[Mapping], field: str, fields: Sequence[str]) -> float:
    """Returns how far beside its value of the field a row's setting of the others stands."""
    others = [name for name in fields if name != field]
    values: dict[tuple, set] = {}  # setting -> values of the field; the order is the same at each
    for of in (*rows, row):
        values.setdefault(tuple(of.get(name) for name in others), set()).add(of[field])
    settings = [setting for setting, of in values.items() if row[field] in of]
    rank = settings.index(tuple(row.get(name) for name in others))
    return SIDE_BY_SIDE * ((rank + 0.5) / len(settings) - 0.5)
