"""The rows of the experiments, and the printed numbers in the headers of the configs."""

import json
import re
from pathlib import Path

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan import printed as paper
from widenet_jax.papers.experiments import CHOICES_SHA256, EXPERIMENTS, chosen

ROOT = Path(__file__).parents[2]


def table_of(config: str) -> dict[str, dict[str, str]]:
    """Reads the table of variants in a config's docstring: variant -> column -> cell.

    A line of several models is split: "widenet_{b,l,h},moe=false | 3 | 9, 15, 23M | ...".
    """
    lines = (ROOT / "configs" / f"{config}.py").read_text().split('"""')[1].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| variant "))
    header, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines[first:] if "|" in line
    ]
    found = {}
    for cells in rows:
        name = cells[0].split(" (")[0]
        grouped = re.fullmatch(r"(\w+_)\{b,l,h\}(.*)", name)
        if not grouped:
            found[name] = dict(zip(header, cells, strict=True))
            continue
        for index, size in enumerate("blh"):
            own = [cell.split(", ")[index] if cell.count(", ") == 2 else cell for cell in cells]
            own = [f"{cell}M" if re.fullmatch(r"\d\d?", cell) else cell for cell in own[2:]]
            own = [*cells[:2], *own]
            found[grouped[1] + size + grouped[2]] = dict(zip(header, own, strict=True))
    return found


def text(value: float | str | None, unit: str = "") -> str:
    return "" if value is None else f"{value}{unit}".replace("nan", "NaN")


def test_pretraining_in_the_header_of_imagenet():
    """Rows of the header beyond the paper's numbers are from figures, which print no number."""
    table = table_of("imagenet")
    for printed in paper.PRETRAINING:
        row = table[printed.variant]
        assert row["table"] == printed.tables
        assert row["core-days"] == text(printed.core_days)
        if printed.tables:  # ViT-H is not in the paper: its size is computed
            assert row["params"] == text(printed.millions, "M")
            assert row["paper: top-1"] == text(printed.top_1)
    further = table.keys() - {row.variant for row in paper.PRETRAINING}
    assert {table[name]["paper: top-1"] for name in further} == {"a figure"}


@pytest.mark.parametrize("printed", paper.TEXT, ids=lambda row: row.variant)
def test_text_in_the_header_of_text_pretrain(printed: paper.PrintedText):
    """The mean follows from the columns; ALBERT: (85.8 + 78.55 + 81.5 + 90.3) / 4 = 84.0."""
    row = table_of("text_pretrain")[printed.variant]
    assert row["params"] == f"{printed.millions}M"
    assert row["SQuAD1.1"] == "{} / {}".format(*printed.squad1)
    assert row["SQuAD2.0"] == "{} / {}".format(*printed.squad2)
    scores = (row["MNLI"], row["SST-2"], row["mean"])
    assert scores == (str(printed.mnli), str(printed.sst2), str(printed.mean))
    both = sum(printed.squad1) / 2 + sum(printed.squad2) / 2
    assert (both + printed.mnli + printed.sst2) / 4 == pytest.approx(printed.mean, abs=0.051)


@pytest.mark.parametrize("table", ["1", "3", "4", "5"])
def test_a_table_has_the_rows_that_the_paper_lists(table: str):
    everything = (*paper.PRETRAINING, paper.OUT_OF_MEMORY, *paper.FINETUNING)
    listed = {row.variant: row.top_1 for row in everything if table in row.tables}
    rows = EXPERIMENTS[f"table{table}"].rows
    assert {row.variant: row.paper for row in rows} == listed
    assert len(rows) == len(listed)


def test_names_and_sizes():
    assert [one.name for one in chosen(["fig3", "table1", "fig3"])] == ["table1", "fig3"]
    both = [one.name for name in ("all", "sigma", "loops", "claims") for one in chosen([name])]
    assert both == list(EXPERIMENTS)
    (table3,) = chosen(["table3"], ["b"])
    assert [row.size for row in table3.rows] == ["b"] * 4
    # Table 4 compares models of size L only: "all" leaves it out, and its name is a mistake.
    assert "table4" not in [one.name for one in chosen(["all"], ["b"])]
    with pytest.raises(BadInputError, match="table4 has no row of that size"):
        chosen(["table4"], ["b"])
    with pytest.raises(BadInputError, match="sizes='s' is unknown; choose one of b, l, h"):
        chosen(["all"], ["s"])


def test_the_columns_of_a_language_table():
    """Rows without a printed number are left out; metrics fall; a model is printed beside ours."""
    of = {one.language: one for one in chosen(["sigma_table4"])}
    assert [len(one.rows) for one in of.values()] == [22, 22, 15, 22]
    assert of["wt_b"].rows[-1].paper == 9.77 and of["e8"].rows[-1].paper == 1.32
    for size, one in of.items():
        assert one.metric.name == ("bits_per_byte" if size == "e8" else "perplexity")
        assert not one.metric.higher_is_better
    (zoo,) = [one for one in chosen(["sigma_zoo"]) if one.language == "wt_s"]
    numbers = {row.label: row.paper for row in zoo.rows}
    assert numbers["dense"] == 11.81 and numbers["sigma-MoE"] == 11.59
    assert numbers["S-BASE, K = 4, balanced"] is None
    assert numbers["S-BASE, K = 4, as released"] == 13.01  # as the paper ran it


def test_kept_results_of_claims_are_of_these_choices():
    """Every line of docs/log/claims.jsonl has the hash of claims.toml, and no run comes twice."""
    text = (Path(__file__).parents[2] / "docs" / "log" / "claims.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["choices_sha256"] for line in lines} == {CHOICES_SHA256}
    assert len({line["trial"] for line in lines}) == len(lines)
    assert not any("data.path" in field for line in lines for field in line["fields"])
    assert all(re.match(r"2026-\d\d-\d\d: .", one) for one in EXPERIMENTS["claims"].deviations)
