"""Which rows the experiments have."""

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan import printed as paper
from widenet_jax.papers.experiments import EXPERIMENTS, PAPER_SIZES, chosen
from widenet_jax.papers.printed import APPROXIMATIONS


@pytest.mark.parametrize("table", ["1", "3", "4", "5"])
def test_a_table_has_the_rows_that_the_paper_lists(table: str):
    everything = (*paper.PRETRAINING, paper.OUT_OF_MEMORY, *paper.FINETUNING)
    listed = {row.variant: row.top_1 for row in everything if table in row.tables}
    rows = EXPERIMENTS[f"table{table}"].rows
    assert {row.variant: row.paper for row in rows} == listed
    assert len(rows) == len(listed)


def test_names_and_sizes():
    assert [one.name for one in chosen(["fig3", "table1", "fig3"], PAPER_SIZES)] == [
        "table1",
        "fig3",
    ]
    both = [one.name for name in ("all", "sigma") for one in chosen([name], PAPER_SIZES)]
    assert both == list(EXPERIMENTS)
    (table3,) = chosen(["table3"], ["b"])
    assert [row.size for row in table3.rows] == ["b"] * 4
    # Table 4 compares models of size L only: "all" leaves it out, and its name is a mistake.
    assert "table4" not in [one.name for one in chosen(["all"], ["b"])]
    with pytest.raises(BadInputError, match="table4 has no row of that size"):
        chosen(["table4"], ["b"])
    with pytest.raises(BadInputError, match="no experiment 'table6'; choose from table1, table2"):
        chosen(["table6"], PAPER_SIZES)
    with pytest.raises(BadInputError, match="--sizes=s: unknown size; choose from b, l, h"):
        chosen(["all"], ["s"])


@pytest.mark.parametrize("number", APPROXIMATIONS)
def test_a_column_of_a_language_table_has_the_rows_with_a_number(number: str):
    printed = APPROXIMATIONS[number]
    for one in chosen([f"sigma_table{number}"], PAPER_SIZES):
        there = {row.model: row.results[one.language] for row in printed if one.language in row[2]}
        assert {row.label: row.paper for row in one.rows} == there
        assert len(one.rows) == len(there)
        assert one.reference in there
        assert one.metric.name == ("bits_per_byte" if one.language == "e8" else "perplexity")
        assert not one.metric.higher_is_better


def test_our_comparison_shows_the_paper_beside_what_it_ran():
    """S-BASE ran as released; the balanced one has no number."""
    (zoo,) = [one for one in chosen(["sigma_zoo"], PAPER_SIZES) if one.language == "wt_s"]
    numbers = {row.label: row.paper for row in zoo.rows}
    assert numbers["dense"] == 11.81 and numbers["sigma-MoE"] == 11.59
    assert numbers["S-BASE, K = 4, balanced"] is None
    assert numbers["S-BASE, K = 4, as released"] == 13.01
