"""Contrasts of an experiment: their rows, their table and their picture."""

import math
from dataclasses import replace

from widenet_jax.ops.sweep.seeds import Found
from widenet_jax.papers import contrasts
from widenet_jax.papers.experiments import EXPERIMENTS, METRICS, Contrast, PaperExperiment


def test_the_rows_of_a_contrast():
    """a - b is 1 and 1.5; (a + a) - (b + c) is 4 - 1.5 and 6 - 2; a row may wait for its run."""
    by_seed = {"a": {0: 2.0, 1: 3.0}, "  b": {0: 1.0, 1: 1.5, 3: 9.0}, "c": {0: 0.5, 1: 0.5}}
    rows = [{"label": label, "by_seed": of} for label, of in by_seed.items()]
    sums = (("one", ["a"], ["b"], -1), ("two", ["a", "a"], ["b", "c"]), ("lost", ["a"], ["d"]))
    wanted = tuple(Contrast(*one) for one in sums)
    of = PaperExperiment("x", "", "", metric=METRICS["bits"], contrasts=wanted, margin=0.1)
    found = contrasts.contrasts_of(of, rows)
    assert [one.values for one in found] == [(1.0, 1.5), (2.5, 4.0), ()]
    assert [(one.label, one.paper, one.margin) for one in found[:2]] == [
        ("one", -1, 0.1), ("two", 0, 0.1),
    ]  # fmt: skip


def test_what_a_paper_claims_is_confirmed_or_refuted(tmp_path, drawn):
    """Claims of a sum above, below and below 0: found above, above and undecided."""
    values = ((1.0, 1.1, 0.9), (1.0, 1.2, 0.9), (0.1, -0.1, 0.2))
    of = [
        Found(label, found, p, 1.0, 0.05, paper)
        for label, found, p, paper in zip(
            "abc", values, (0.01, 0.01, 0.9), (1, -1, -1), strict=True
        )
    ]
    claims = EXPERIMENTS["claims"]
    text = " ".join(contrasts.markdown(claims, of).split())
    assert "| b | below 0 | +1.033 | +0.654 to +1.413 | 3 | 0.010 | above 0: refuted |" in text
    assert "Provisional: not all contrasts have the 6 seeds" in text
    whole = [replace(one, values=one.values * 2) for one in of]
    assert "Provisional" not in contrasts.markdown(claims, whole)
    contrasts.draw(claims, of, tmp_path / "a.png")
    (axis,) = drawn[0].axes
    marks = {line.get_marker(): [*line.get_ydata()] for line in axis.lines[-2:]}
    assert marks == {">": [0], "<": [1, 2]}


def test_seeds_without_spread_have_no_interval(tmp_path, drawn):
    values = {"a - b": (1.0, 1.5, 2.0), "four": (0.5, 0.5), "single": (0.5,)}
    shown = [Found(label, of, math.nan, math.nan, 0.1) for label, of in values.items()]
    loops = EXPERIMENTS["loops_value"]
    text = " ".join(contrasts.markdown(loops, shown).split())
    assert "| four | +0.5000 | no spread | 2 | | no spread over 2 seeds |" in text
    assert "| single | +0.5000 | one seed | 1 |" in text
    contrasts.draw(loops, shown, tmp_path / "a.png")
    (axis,) = drawn[0].axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["a - b", "four (no spread)", "single (one seed)"]
    # After the line at 0, of each: dots, the interval and the mean.
    assert [len(line.get_xdata()) for line in axis.lines[1:]] == [3, 2, 1, 2, 0, 1, 1, 0, 1]


def test_contrasts_name_rows():
    for one in EXPERIMENTS.values():
        labels = {row.label.strip() for row in one.rows}
        for _, plus, minus, paper in one.contrasts:
            assert len(plus) == len(minus) and paper in (-1, 0, 1)
            assert {*plus, *minus} <= labels
