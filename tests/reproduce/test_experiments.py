"""Which rows an experiment has."""

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.models.sizes import CIFAR10_ROWS, IMAGENET_ROWS
from widenet_jax.reproduce.experiments import EXPERIMENTS, chosen

SIZES = ("b", "l", "h")


def variants(name: str) -> set[str]:
    return {row.variant for row in EXPERIMENTS[name].rows}


def test_the_rows_are_those_whose_parameters_are_printed():
    """models/sizes.py lists the printed parameter counts; ViT-MoE-H ran out of memory."""
    printed = {variant for table, _, variant, _ in IMAGENET_ROWS if table != "not printed"}
    assert variants("table1") | variants("table3") | variants("table4") == printed | {"vit_moe_h"}
    assert variants("table1") == {v for table, _, v, _ in IMAGENET_ROWS if table == "Table 1"}
    assert variants("table5") == {variant for _, _, variant, _ in CIFAR10_ROWS}


def test_a_model_has_one_printed_number_in_all_tables_of_pretraining():
    numbers: dict[str, set] = {}
    for name in ("table1", "table3", "table4"):
        for row in EXPERIMENTS[name].rows:
            numbers.setdefault(row.variant, set()).add(str(row.paper))
    assert max(map(len, numbers.values())) == 1


def test_names_and_sizes():
    assert [one.name for one in chosen(["fig3", "table1", "fig3"], SIZES)] == ["table1", "fig3"]
    assert len(chosen(["all"], SIZES)) == len(EXPERIMENTS)
    (table3,) = chosen(["table3"], ["b"])
    assert [row.size for row in table3.rows] == ["b"] * 4
    # Table 4 compares models of size L only: "all" leaves it out, by name it is a mistake.
    assert "table4" not in [one.name for one in chosen(["all"], ["b"])]
    with pytest.raises(BadInputError, match="table4 has no such row"):
        chosen(["table4"], ["b"])
    with pytest.raises(BadInputError, match=r"no experiment 'table2'; there are table1, table3"):
        chosen(["table2"], SIZES)
    with pytest.raises(BadInputError, match="no size 's'"):
        chosen(["all"], ["s"])
