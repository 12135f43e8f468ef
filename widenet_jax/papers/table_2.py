"""Table 2 whole: every text model with its four columns and their mean, the paper's beside ours."""

from collections.abc import Mapping

from widenet_jax.ops.plan import printed as paper
from widenet_jax.papers.experiment import (
    ACCURACY,
    BEST_F1,
    F1,
    Metric,
    PaperExperiment,
    PaperRow,
)
from widenet_jax.papers.experiments import TABLE_2
from widenet_jax.papers.runs import Measured, mean_of
from widenet_jax.papers.scales import Run, Scale, run_of, runnable
from widenet_jax.papers.tables import known
from widenet_jax.run.markdown import markdown_table

EXACT = Metric("exact", higher_is_better=True, label="exact match %", scale=100.0)
BEST_EXACT = Metric("best_exact", higher_is_better=True, label="exact match %", scale=100.0)
# Column -> its name, and the metrics that it averages. SQuAD2.0 is compared at the best threshold.
COLUMNS: dict[str, tuple[str, tuple[Metric, ...]]] = {
    "squad1": ("SQuAD1.1, F1/EM", (F1, EXACT)),
    "squad2": ("SQuAD2.0, F1/EM", (BEST_F1, BEST_EXACT)),
    "mnli": ("MNLI", (ACCURACY,)),
    "sst2": ("SST-2", (ACCURACY,)),
}


def table_2(scale: Scale, measured: Mapping[Run, Measured]) -> str:
    """Writes Table 2 in Markdown; a column without a run says so."""
    experiments = {one.text: one for one in runnable(scale, TABLE_2)}
    header = ["", "model here", "paper, parameters", "ours, parameters"]
    for name in (*(name for name, _ in COLUMNS.values()), "mean"):
        header += [f"paper, {name}", f"ours, {name}"]
    cells = [header]
    for printed in paper.TEXT:
        row = PaperRow(printed.model, printed.variant)
        pretrained = run_of(scale, experiments["pretraining"], row)
        own = measured.get(pretrained)
        line = [printed.model, f"`{pretrained.model}`", f"{printed.millions}M"]
        line.append(known(own and own.params, ",") or "not run")
        means = []
        for column in COLUMNS:
            ours = values_of(experiments.get(column), row, scale, measured)
            means.append(mean_of([value for value in ours if value is not None]))
            line += [said(as_tuple(getattr(printed, column))), said(ours)]
        finished = [mean for mean in means if mean is not None]
        whole = mean_of(finished) if len(finished) == len(COLUMNS) else None
        cells.append([*line, said((printed.mean,)), said((whole,))])
    note = "Ours: the mean over the seeds that are done; EM is the share of exact matches."
    title = f"## Table 2: text models\n\nOurs: {scale.about_text}. {note}"
    return f"{title}\n\n{markdown_table(cells)}\n"


def values_of(
    experiment: PaperExperiment | None,
    row: PaperRow,
    scale: Scale,
    measured: Mapping[Run, Measured],
) -> tuple[float | None, ...]:
    """Returns a column's means over the seeds; None where nothing has run."""
    of = measured.get(run_of(scale, experiment, row)) if experiment else None
    if of is None:
        return (None,)
    return tuple(mean_of(of.values(metric)) for metric in COLUMNS[experiment.text][1])


def as_tuple(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def said(values: tuple[float | None, ...]) -> str:
    """Formats a cell, such as "89.3/82.3"."""
    return "not run" if None in values else "/".join(f"{value:.1f}" for value in values)
