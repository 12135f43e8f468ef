"""Forced routing: what looped models lose if each loop takes the experts that the first one chose.

The models are trained with choices of their own in each loop, and forced in evaluation alone.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.files import read_json, write_json
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.loops import measure_loops
from widenet_jax.ops.analysis.usage import measure_usage
from widenet_jax.ops.sweep import seeds
from widenet_jax.ops.sweep.trials import Status
from widenet_jax.papers.contrasts import plot_seeds
from widenet_jax.papers.experiments import PaperExperiment
from widenet_jax.papers.runs import Measurements
from widenet_jax.papers.scales import Scale, run_of
from widenet_jax.papers.tables import page
from widenet_jax.run.figures import MARKERS, PALETTE, save, subplots
from widenet_jax.run.tables import table_of

# Of `measure_loops`, as means over layers and loops -> name in tables and pictures.
SHARES = {
    "first_changes": "another first expert than a loop before",
    "first_changes_by_chance": "another first expert, by chance",
    "all_change": "no expert in common",
}
Row = Mapping[str, Any]


def measure(
    experiment: PaperExperiment, scale: Scale, measured: Measurements, out: Path
) -> list[dict[str, Any]]:
    """Measures every finished seed of the rows, unless a file in `out` has its parameters' numbers.

    Returns:
      A dict for each row with a finished seed: label, metric (of the losses), and lists with a
      number for each seed: seeds, own and first (losses with the loops' own choices, and with the
      first loop's), and `SHARES`.
    """
    file, rows = out / f"{experiment.name}_models.json", []
    known = read_json(file) if file.exists() else {}
    for row in experiment.rows:
        of = measured[run_of(scale, experiment, row)]
        done = [one for one in of.outcomes if one.status == Status.DONE]
        hashes = [one.result["params_sha256"] for one in done]
        for name, workdir in zip(hashes, of.workdirs, strict=True):
            if name not in known:
                known[name] = measure_model(workdir)
                write_json(file, known)
        if found := [known[name] for name in hashes]:
            columns = {name: [one[name] for one in found] for name in ("own", "first", *SHARES)}
            named = {"label": row.label, "metric": found[0]["metric"]}
            named |= {"seeds": [one.trial.settings["seed"] for one in done]}
            rows.append(named | columns)
    return rows


def measure_model(workdir: str) -> dict[str, Any]:
    """Returns what `measure` has for a seed; shares are means over layers and loops."""
    trained = open_trained(workdir)
    found = measure_loops(trained, measure_usage(trained))
    losses = {"own": found["losses"][found["loops"]], "first": found["first_routing"]}
    places = list(found["places"].values())
    shares = {name: float(np.mean([of[name] for of in places])) for name in SHARES}
    return {"metric": found["metric"]} | losses | shares


def differences(row: Row) -> list[float]:
    """Returns the loss by forcing, one for each seed."""
    return [first - own for own, first in zip(row["own"], row["first"], strict=True)]


def markdown(experiment: PaperExperiment, scale: Scale, rows: Sequence[Row]) -> str:
    """Writes the table, and what it asks."""

    def mean(key: str, spec: str) -> Callable[[Row], str]:
        return lambda row: format(statistics.fmean(row[key]), spec)

    def difference(row: Row) -> str:
        lost, form = differences(row), "{:+.4f}".format
        interval = seeds.interval_text(seeds.mean_over_seeds(lost), len(lost), form)
        return f"{form(statistics.fmean(lost))} ({interval})"

    columns = {"": "{label}", "own choices": mean("own", ".4f")}
    columns |= {"the first loop's": mean("first", ".4f"), "difference (95%)": difference}
    columns |= {name: mean(key, ".1%") for key, name in SHARES.items()}
    columns["seeds"] = lambda row: f"{len(row['seeds'])}"
    lines = [f"Why: {experiment.claim}"]
    names = {row["label"] for row in rows}
    lines += [f"{row.label}: not run." for row in experiment.rows if row.label not in names]
    lines += ["95%: of the mean over seeds, by Student's t, without a correction."] * bool(rows)
    table = table_of(columns, rows) if rows else ""
    return page(experiment.title, scale.about_of(experiment), table, lines)


def draw(experiment: PaperExperiment, rows: Sequence[Row], out: Path) -> None:
    """Draws the loss by forcing, each seed and the mean's interval; and who changes experts."""
    figure, (lost, shares) = subplots(1, 2, size=(13, 2.1 + 0.4 * len(rows)), sharey=True)
    figure.suptitle(experiment.title)
    plot_seeds(lost, {row["label"]: differences(row) for row in rows})
    for index, (key, name) in enumerate(SHARES.items()):
        means = [statistics.fmean(row[key]) for row in rows]
        style = {"color": PALETTE[index], "marker": MARKERS[index], "linestyle": "none"}
        shares.plot(means, range(len(rows)), label=name, **style)
    metric = rows[0]["metric"].replace("_", " ")
    lost.set_xlabel(f"{metric} lost by forced routing\n(each seed, mean and 95% interval)")
    shares.set(xlabel="share of the tokens, mean over layers and loops", xlim=(-0.03, 1.03))
    place = {"loc": "outside lower right", "ncols": 3, "fontsize": "small"}
    figure.legend(*shares.get_legend_handles_labels(), **place)
    for axis in (lost, shares):
        axis.grid(alpha=0.3)
    save(figure, out)
