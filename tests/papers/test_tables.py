"""Tables with the paper's numbers and ours, and the sentences below them."""

import math
from dataclasses import replace

import pytest

from widenet_jax.ops.sweep.seeds import mean_of
from widenet_jax.ops.sweep.trials import Outcome, Status, Trial
from widenet_jax.papers.experiments import EXPERIMENTS, TOP_1, chosen
from widenet_jax.papers.runs import Measured
from widenet_jax.papers.scales import SCALES, run_of
from widenet_jax.papers.tables import (
    INTERVALS,
    TEXT_COLUMNS,
    compared,
    markdown,
    paper_sign,
    rows_of,
    sign_of,
    table_2,
    verdict,
)

SMALL = SCALES["small"]
TRIAL = Trial("t", "configs/cifar10.py", {})


def measured(*values: float | str, metric: str = "accuracy", **more: object) -> Measured:
    """Seeds with these results; NaN is a seed that diverged, text is another status."""
    outcomes = []
    for value in values:
        if isinstance(value, str) or math.isnan(value):
            status = value if isinstance(value, str) else Status.DIVERGED
            outcomes.append(Outcome(TRIAL, status))
        else:
            result = {f"test_{metric}": value, "params": 1234, **more}
            outcomes.append(Outcome(TRIAL, Status.DONE, result=result))
    return Measured(tuple(outcomes))


def percents(*values: float | str) -> Measured:
    """Seeds with these accuracies of 263 images."""
    shares = (value if isinstance(value, str) else value / 100 for value in values)
    return measured(*shares, unit="images", test_images=263)


def bits(*values: float) -> Measured:
    """Seeds with these bits a byte."""
    return measured(*values, metric="bits_per_byte")


def zoo_with(found: dict[str, Measured]) -> str:
    """Returns the page of the zoo of enwik8's size, of rows by their label."""
    (zoo,) = [one for one in chosen(["sigma_zoo"]) if one.language == "e8"]
    runs = {run_of(SMALL, zoo, row): found.get(row.label, Measured(())) for row in zoo.rows}
    return markdown(zoo, SMALL, rows_of(zoo, SMALL, runs))


def rows_with(experiment, *of: Measured) -> list[dict]:
    runs = {}
    for row, found in zip(experiment.rows, of, strict=True):
        runs.setdefault(run_of(SMALL, experiment, row), found)
    return rows_of(experiment, SMALL, runs)


def row(*accuracies: float) -> dict:
    of = percents(*accuracies)
    values = of.values(TOP_1)
    statuses = [outcome.status for outcome in of.outcomes]
    return {"mean": mean_of(values), "values": values, "statuses": statuses}


def compare(one: dict, other: dict, sign: int) -> str:
    return verdict(sign_of(one, other), sign)


def test_two_rows_stand_as_in_the_paper_or_not():
    assert compare(row(50.0), row(49.9), sign=1) == "as in the paper"
    assert compare(row(50.0), row(49.9), sign=-1) == "the other way round"
    assert compare(row(50.0), row(50.0), sign=1) == "too close to tell"
    assert compare(row(50.0), row(math.nan), sign=1) == "with a seed that diverged"
    assert compare(row(50.0, math.nan), row(40.0), sign=1) == "with a seed that diverged"
    # Seeds that do not vary decide by their sign, unless it is by rounding.
    assert compare(row(50.0, 50.0), row(49.0, 49.0), sign=-1) == "the other way round"
    near = row(50.0 * (1 + 1e-14), 50.0)
    assert compare(row(50.0, 50.0), near, sign=-1) == "too close to tell"


@pytest.mark.parametrize(("gap", "verdict"), [(2.2, "too close to tell"), (2.3, "as in the paper")])
def test_a_difference_within_the_noise_of_seeds_is_too_close(gap: float, verdict: str):
    """Three seeds at -1, 0, 1 around each mean: s = 1, an error of sqrt(1/3 + 1/3) = 0.8165, and
    4 degrees of freedom; 5% lie beyond t = 2.776: gaps of 2.267 and more are significant.
    """
    high, low = (row(mean - 1, mean, mean + 1) for mean in (50 + gap, 50.0))
    assert compare(high, low, sign=1) == verdict


def test_a_table_compares_within_a_size_and_a_figure_neighbours():
    """Table 3 has 4 + 4 + 4 rows, hence 6 pairs in each size."""
    rows = rows_with(EXPERIMENTS["table3"], *[percents(50.0)] * 12)
    assert len(compared(EXPERIMENTS["table3"], rows)) == 18
    figure = rows_with(EXPERIMENTS["fig3"], *[percents(50.0)] * 4)  # the last row equals the third
    pairs = compared(EXPERIMENTS["fig3"], figure)
    labels = [(one["label"][-9:], other["label"][-9:]) for one, other in pairs]
    assert labels == [("ery block", "2nd block"), ("2nd block", "4th block")]
    assert [paper_sign(EXPERIMENTS["fig3"], *pair) for pair in pairs] == [1, 1]
    table = EXPERIMENTS["table3"]
    expected = [paper_sign(table, *pair) for pair in compared(table, rows)]
    # B: above shared norms; NaN gives no order; below no sharing, as shared norms are.
    assert expected[:6] == [1, 0, -1, 0, -1, 0]
    assert expected[12:] == [1, 1, 0, -1, 0, 0]  # H without sharing: out of memory


def test_a_table_with_everything_that_can_happen():
    rows = rows_with(
        EXPERIMENTS["table3"].of_sizes(["b"]),
        percents(50.0, 52.0),
        percents(53.0, 55.0),
        percents(math.nan, 100 * 81 / 263),
        percents(Status.FAILED, Status.FAILED),
    )
    text = markdown(EXPERIMENTS["table3"], SMALL, rows)
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    cells = {line[1].removeprefix("&nbsp;&nbsp;"): line[2:] for line in lines if len(line) > 4}
    # Student's t of one degree of freedom: 12.706 standard errors of 1; Wilson: 25.53 to 36.62.
    ours = ["`widenet_s`", "1,234", "77.5", "51.00 ± 1.41 (2 seeds; 95%: 38.29 to 63.71)"]
    assert cells["WideNet-B"][:4] == ours
    assert cells["without MoE"][2:4] == ["NaN", "30.80 (1 seed; 95%: 25.53 to 36.62); 1 diverged"]
    assert text.endswith(f"- {INTERVALS}\n")
    assert cells["without sharing"][1:4] == ["", "77.9", "2 failed"]
    # Welch's t of 51 and 54, s = 1.41 each: 3 / 1.41 = 2.12 at 2 degrees of freedom, p = 0.17.
    assert "Pairs of rows that the paper orders: 1; 1 too close to tell." in text
    assert "Too close to tell: WideNet-B 51.00 against with shared LayerNorm 54.00." in text
    assert "Welch" in text
    assert f"The paper: {EXPERIMENTS['table3'].claim}" in text


def test_equal_runs():
    """With 4 blocks, 3 and 2 groups of 12 both become one group: the last row equals the third."""
    experiment = EXPERIMENTS["fig3"]
    text = markdown(
        experiment, SMALL, rows_with(experiment, *[percents(50.0 - i) for i in range(4)])
    )
    assert "as in every 4th block" in text
    assert "Pairs of rows that the paper orders: 2; 2 as in the paper." in text


def test_rows_are_compared_with_one_of_them():
    """Lower is better. Against dense (2.00, s = 0.01): 0.1 is significant, 0.01 is not.

    The paper has dense 1.08, top-K 1.07, Switch and softmax 1.08 and 1.09, sigma-MoE 1.08.
    """
    three = lambda mean: bits(mean - 0.01, mean, mean + 0.01)  # noqa: E731
    found = {
        "dense": three(2.0),
        "top-K activation": three(2.1),
        "softmax": three(1.9),
        "sigma-MoE": three(2.01),
        "Switch, K = 1, G = 512": bits(2.5, math.nan),
        "S-BASE, K = 4, balanced": bits(2.2),
    }
    text = zoo_with(found)
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    cells = {line[1]: line[2:] for line in lines if len(line) > 4 and set(line[1]) != {"-"}}
    assert cells[""][2:4] == ["paper, bits a byte", "ours, bits a byte"]
    assert cells["top-K activation"][2:4] == [
        "1.07",
        "2.100 ± 0.010 (3 seeds; 95%: 2.075 to 2.125)",
    ]
    assert {name: line[4] for name, line in cells.items() if line[4]} == {
        "": "against dense",
        "top-K activation": "worse",
        "softmax": "better",
        "sigma-MoE": "undecided",
        "Switch, K = 1, G = 512": "a seed diverged",
        "S-BASE, K = 4, balanced": "worse by one seed",
    }
    assert "round: top-K activation 2.100 against dense 2.000;" in text
    assert "Pairs of rows that the paper orders: 2; 2 the other way round." in text


def test_comparisons_without_a_test_say_so():
    """Both rows' seeds are alike, or one of them has a single seed."""
    for seeds, told in (((1.9, 1.9), "better without spread"), ((1.9,), "better by one seed")):
        text = zoo_with({"dense": bits(2.0, 2.0), "softmax": bits(*seeds)})
        assert "| 2.000 (2 seeds; no spread) |" in " ".join(text.split()) and f"| {told}" in text


def test_paired_comparisons_show_each_seed():
    experiment = EXPERIMENTS["loops_value"]
    done = [
        Outcome(Trial("t", "c", {"seed": k}), Status.DONE, result={"test_bits_per_byte": bits})
        for k, bits in enumerate((2.5, 2.75))
    ]
    experiment = replace(experiment, rows=experiment.rows[:1])
    text = markdown(experiment, SMALL, rows_with(experiment, Measured(tuple(done))))
    assert "| 2.5000, 2.7500 |" in " ".join(text.split()) and "paper, " not in text


def test_a_table_says_what_was_done_otherwise_than_fixed():
    told = "2026-11-28: five seeds, as many as the hours allowed"
    experiment = replace(EXPERIMENTS["claims"], rows=(), deviations=(told,))
    text = markdown(experiment, SMALL, rows_with(experiment))
    assert text.count("Not as fixed before the first run") == 1 and told in text


def test_a_column_whose_seeds_diverged_leaves_no_mean():
    found = {}
    for column, value in {"squad1": 0.8, "squad2": 0.7, "mnli": math.nan, "sst2": 0.6}.items():
        one = EXPERIMENTS[f"table2_{column}"]
        more = {f"test_{TEXT_COLUMNS[column]}": value}
        of = measured(value, metric=one.metric.name, **more)
        found[run_of(SMALL, one, one.rows[0])] = of
    row = next(line for line in table_2(SMALL, found).splitlines() if line.startswith("| ALBERT"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[3::2] == ["80.0/80.0", "70.0/70.0", "NaN", "60.0", "NaN"]
