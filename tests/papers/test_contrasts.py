"""Contrasts by hand: sums over seeds that all rows have, Holm, and equality within a margin."""

import math

import numpy as np
import pytest

from widenet_jax.papers import contrasts
from widenet_jax.papers.experiments import EXPERIMENTS, METRICS, Contrast, PaperExperiment
from widenet_jax.run.intervals import holm

ROWS = [
    {"label": "a", "by_seed": {0: 2.0, 1: 3.0, 2: 5.0}},
    {"label": "  b", "by_seed": {0: 1.0, 1: 1.5, 2: 3.0, 3: 9.0}},
    {"label": "c", "by_seed": {0: 0.5, 1: 0.5, 2: math.nan}},
]


def found(*wanted, margin: float = 0.1) -> list[contrasts.Found]:
    one = PaperExperiment(
        "x",
        "",
        "",
        metric=METRICS["bits"],
        contrasts=tuple(Contrast(*of) for of in wanted),
        margin=margin,
    )
    return contrasts.contrasts_of(one, ROWS)


def test_seeds_are_paired():
    """a - b is 1, 1.5 and 2; (a + c) - (b + b) is 2 + .5 - 2 and 3 + .5 - 3; seed 2 diverged."""
    one, two = found(("a - b", ["a"], ["b"]), ("four", ["a", "c"], ["b", "b"]))
    assert one.values == (1.0, 1.5, 2.0)
    assert one.mean == 1.5
    # t of two degrees of freedom at 97.5%: 4.303; the standard error is 0.5 / sqrt(3).
    np.testing.assert_allclose(one.interval, (1.5 - 1.2421, 1.5 + 1.2421), atol=1e-3)
    assert two.values == (0.5, 0.5)
    (missing,) = found(("lost", ["a"], ["d"]))
    assert (missing.values, missing.verdict) == ((), "undecided")


def test_p_values_are_corrected():
    """0.01 of four becomes 0.04, 0.02 of three 0.06, 0.03 of two at least what those before are."""
    assert holm([0.03, 0.01, math.nan, 0.02]) == pytest.approx(
        [0.06, 0.04, math.nan, 0.06], nan_ok=True
    )
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_verdicts():
    above = contrasts.Found("", (1.0, 1.1, 0.9), 0.01, 1.0, 0.1)
    below = contrasts.Found("", (-1.0, -1.1), 0.01, 1.0, 0.1)
    equal = contrasts.Found("", (0.01, -0.01), 0.9, 0.01, 0.1)
    neither = contrasts.Found("", (0.01, -0.01), 0.9, 0.2, 0.1)
    small = contrasts.Found("", (0.01, 0.011), 0.01, 0.01, 0.1)
    verdicts = [one.verdict for one in (above, below, equal, neither, small)]
    assert verdicts == ["above 0", "below 0", "equal", "undecided", "above 0, equal"]


def test_what_a_paper_claims_is_confirmed_or_refuted(tmp_path, drawn):
    """Claims of a sum above, below and below 0: found above, above and undecided."""
    values = ((1.0, 1.1, 0.9), (1.0, 1.2, 0.9), (0.1, -0.1, 0.2))
    of = [
        contrasts.Found(label, found, p, 1.0, 0.05, paper)
        for label, found, p, paper in zip(
            "abc", values, (0.01, 0.01, 0.9), (1, -1, -1), strict=True
        )
    ]
    wanted = ["above 0: confirmed", "above 0: refuted", "undecided"]
    assert [one.verdict for one in of] == wanted
    claims = EXPERIMENTS["claims"]
    text = " ".join(contrasts.markdown(claims, of).split())
    assert "| b | below 0 | +1.033 | +0.654 to +1.413 | 3 | 0.010 | above 0: refuted |" in text
    contrasts.draw(claims, of, tmp_path / "a.png")
    (axis,) = drawn[0].axes
    marks = {line.get_marker(): [*line.get_ydata()] for line in axis.lines[-2:]}
    assert marks == {">": [0], "<": [1, 2]}


def test_seeds_without_spread_have_no_test(tmp_path, drawn):
    """0.5 and 0.5, by a margin of 0.1 and of 0.6; a difference that rounding alone leaves is 0."""
    one, loops = found(("a - b", ["a"], ["b"]), margin=0.1), EXPERIMENTS["loops_value"]
    alike = {m: found(("four", ["a", "c"], ["b", "b"]), margin=m)[0] for m in (0.1, 0.6)}
    assert [of.verdict for of in alike.values()] == ["no spread over 2 seeds", "equal"]
    assert all(of.interval is None for of in alike.values())
    rounded = contrasts.Found("", (0.1 + 0.2 - 0.3, 0.0), math.nan, math.nan, 0.1)
    assert (rounded.verdict, rounded.interval) == ("equal", None)
    single = contrasts.Found("single", (0.5,), math.nan, math.nan, 0.1)
    assert (single.verdict, single.interval) == ("undecided", None)
    shown = [*one, alike[0.1], single]
    text = " ".join(contrasts.markdown(loops, shown).split())
    assert "| four | +0.5000 | no spread | 2 | | no spread over 2 seeds |" in text
    assert "| single | +0.5000 | one seed | 1 |" in text
    contrasts.draw(loops, shown, tmp_path / "a.png")
    (axis,) = drawn[0].axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["a - b", "four (no spread)", "single (one seed)"]
    # After the line at 0, of each: dots, the interval and the mean.
    assert [len(line.get_xdata()) for line in axis.lines[1:]] == [3, 2, 1, 2, 0, 1, 1, 0, 1]


def test_equality_needs_both_sides():
    """0.01 with a standard error of 0.001 is within 0.1, and not within 0.005."""
    ROWS.append({"label": "near", "by_seed": {0: 0.009, 1: 0.011, 2: 0.01, 3: 0.01}})
    ROWS.append({"label": "zero", "by_seed": dict.fromkeys(range(4), 0.0)})
    (wide,), (narrow,) = (found(("n", ["near"], ["zero"]), margin=m) for m in (0.1, 0.005))
    assert wide.p_equal < 1e-4 < 0.9 < narrow.p_equal


def test_contrasts_name_rows():
    for one in EXPERIMENTS.values():
        labels = {row.label.strip() for row in one.rows}
        for _, plus, minus, paper in one.contrasts:
            assert len(plus) == len(minus) and paper in (-1, 0, 1)
            assert {*plus, *minus} <= labels
