"""The paper's numbers and ours side by side, and what is said of them."""

import math

import numpy as np
import pytest

from widenet_jax.reproduce.experiments import FIGURE_3, FIGURE_4, TABLE_3, TABLE_4
from widenet_jax.reproduce.runs import DIVERGED, Measured
from widenet_jax.reproduce.scales import SCALES, run_of
from widenet_jax.reproduce.tables import compare, comparison, markdown, norms_markdown, rows_of
from widenet_jax.sweep.runner import DONE, FAILED, Outcome
from widenet_jax.sweep.trials import Trial

SMALL = SCALES["small"]
TRIAL = Trial("t", "configs/cifar10.py", {})


def measured(*accuracies: float | str) -> Measured:
    """Percents; NaN diverged, text is a status."""
    outcomes = []
    for a in accuracies:
        if isinstance(a, str):
            outcomes.append(Outcome(TRIAL, a))
        elif math.isnan(a):
            outcomes.append(Outcome(TRIAL, DIVERGED))
        else:
            result = {"test_accuracy": a / 100, "params": 1234}
            outcomes.append(Outcome(TRIAL, DONE, result=result))
    return Measured(tuple(outcomes), (), 567.8)


def rows_with(experiment, *of: Measured) -> list[dict]:
    runs = {}
    for row, found in zip(experiment.rows, of, strict=True):
        runs.setdefault(run_of(SMALL, experiment, row), found)
    return rows_of(experiment, SMALL, runs)


def row(paper: float | str | None, *accuracies: float) -> dict:
    of = measured(*accuracies)
    return {"paper": paper, "mean": of.mean, "std": of.std, "accuracies": of.accuracies}


def test_two_rows_stand_as_in_the_paper_or_not():
    assert compare(row(78.0, 50.0), row(77.0, 49.9)) == "as in the paper"
    assert compare(row(78.0, 49.9), row(77.0, 50.0)) == "the other way round"
    assert compare(row(78.0, 50.0), row(77.0, 50.0)) == "too close to tell"
    for other in (row(None, 1.0), row("out of memory", 1.0), row(math.nan, 1.0), row(78.0, 1.0)):
        assert compare(row(78.0, 50.0), other) is None
    assert compare(row(78.0, 50.0), row(77.0, math.nan)) is None
    assert compare(row(78.0, 50.0), row(77.0)) is None


@pytest.mark.parametrize(("gap", "verdict"), [(1.9, "too close to tell"), (2.1, "as in the paper")])
def test_nearer_than_two_standard_errors_is_too_close(gap: float, verdict: str):
    """Seeds at +-1 have s = sqrt(2); two of them s^2 / n = 1 each: an error of sqrt(1 + 1); seeds
    at +-1/sqrt(2) have s = 1, s^2 / n = 1/2 each: an error of 1, twice of which is 2.
    """
    half = 1 / math.sqrt(2)
    high, low = (row(p, m - half, m + half) for p, m in ((78.0, 50 + gap), (77.0, 50.0)))
    assert compare(high, low) == verdict


def test_a_table_with_everything_that_can_happen():
    rows = rows_with(
        TABLE_3.of_sizes(["b"]),
        measured(50.0, 52.0),
        measured(53.0, 55.0),
        measured(math.nan, 41.0),
        measured(FAILED, FAILED),
    )
    text = markdown(TABLE_3, SMALL, rows)
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    cells = {line[1].removeprefix("&nbsp;&nbsp;"): line[2:] for line in lines if len(line) > 4}
    assert cells["WideNet-B"][:5] == [
        "`widenet_s`",
        "1,234",
        "77.5",
        "51.00 ± 1.41 (2 seeds)",
        "568",
    ]
    assert cells["without MoE"][2:4] == ["NaN", "41.00 (1 seed); NaN in 1 of 2"]
    assert cells["without sharing"][1:4] == ["", "77.9", "2 failed"]
    assert "Of 1 pairs of rows that the paper's numbers order: 0 as in the paper, 1 the" in text
    assert "The other way round: WideNet-B 51.00, with shared LayerNorm 54.00" in text
    assert "without MoE diverged here" in text
    assert f"The paper: {TABLE_3.claim}" in text


def test_a_row_that_diverged_in_the_paper_only():
    (row,) = rows_with(TABLE_3.of_sizes(["b"]), *[measured(50.0)] * 4)[2:3]
    assert "without MoE diverged in the paper, and did not here." in comparison(TABLE_3, [row])


def test_equal_runs_are_named_once_and_compared_once():
    """Of 4 blocks 3 and 2 groups of 12 are one group: the last row is the third."""
    rows = rows_with(FIGURE_3, measured(50.0), measured(40.0), measured(30.0), measured(0.0))
    assert [row["same_as"] for row in rows] == [None, None, None, "G = 3"]
    assert "as G = 3" in markdown(FIGURE_3, SMALL, rows)


def test_table_4_has_the_papers_core_days():
    rows = rows_with(TABLE_4, *[measured(50.0)] * 5)
    assert [row["paper_core_days"] for row in rows] == [80, 70, 70, 90, 140]
    assert "paper, core-days" in markdown(TABLE_4, SMALL, rows)


def test_norms_in_numbers():
    """Means 1.5 and 3, twice as much; above in the second block only."""
    curves = {"ViT-B": np.array([2.0, 1.0]), "WideNet-B": np.array([1.0, 5.0])}
    text = norms_markdown(FIGURE_4, SMALL, curves)
    assert "| WideNet-B | 1.0000 | 5.0000 | 3.0000 |" in text
    assert "WideNet-B's mean is 2.00 times ViT-B's, and it is above in 1 of 2 blocks" in text
    assert "|" not in norms_markdown(FIGURE_4, SMALL, {})
