"""Which rows an experiment has."""

import re
from pathlib import Path

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.models.sizes import CIFAR10_ROWS, IMAGENET_ROWS
from widenet_jax.tools.reproduce.experiments import EXPERIMENTS, chosen

SIZES = ("b", "l", "h")
ROOT = Path(__file__).parents[3]


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


@pytest.mark.parametrize("config", ["imagenet", "cifar10"])
def test_printed_accuracies_are_those_of_the_configs_headers(config: str):
    """Each config says what the paper got: its table was written from the paper as well."""
    lines = (ROOT / "configs" / f"{config}.py").read_text().split('"""')[1].splitlines()
    tables = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    header = next(line for line in tables if line[0] == "variant")
    column = next(i for i, name in enumerate(header) if "top-1" in name)
    said: dict[str, str] = {}
    for cells in tables:
        names = cells[0].split(" (")[0]
        grouped = re.fullmatch(r"(\w+_)\{b,l,h\}(.*)", names)
        names = [grouped[1] + size + grouped[2] for size in SIZES] if grouped else [names]
        said |= dict(zip(names, cells[column].split(", "), strict=False))
    experiments = [one for one in EXPERIMENTS.values() if one.finetuned == (config == "cifar10")]
    compared = 0
    for row in (row for one in experiments for row in one.rows if isinstance(row.paper, float)):
        if "routing_groups" not in row.variant:
            assert said[row.variant] == str(row.paper).replace("nan", "NaN"), row
            compared += 1
    assert compared == {"imagenet": 23, "cifar10": 6}[config]


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
