"""The numbers in paper.py and in the headers of the configs, each written from the paper."""

import re
from pathlib import Path

import pytest

from widenet_jax.ops.plan import printed as paper
from widenet_jax.papers.printed import APPROXIMATIONS

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


@pytest.mark.parametrize("printed", paper.PRETRAINING, ids=lambda row: row.variant)
def test_pretraining_in_the_header_of_imagenet(printed: paper.Printed):
    row = table_of("imagenet")[printed.variant]
    assert row["table"] == printed.tables
    assert row["core-days"] == text(printed.core_days)
    if printed.tables:  # ViT-H is not in the paper: its size is computed
        assert row["params"] == text(printed.millions, "M")
        assert row["paper: top-1"] == text(printed.top_1)


@pytest.mark.parametrize("printed", paper.FINETUNING, ids=lambda row: row.variant)
def test_finetuning_in_the_header_of_cifar10(printed: paper.Printed):
    row = table_of("cifar10")[printed.variant]
    slip = " (a slip)" if printed.slip else ""
    assert row["params (paper)"] == f"{printed.millions}M{slip}"
    assert row["paper's top-1"] == text(printed.top_1)


def test_the_headers_list_no_other_model_with_a_number():
    """The two further rows are from figures, which print no number."""
    further = table_of("imagenet").keys() - {row.variant for row in paper.PRETRAINING}
    assert {table_of("imagenet")[name]["paper: top-1"] for name in further} == {"a figure"}
    assert table_of("cifar10").keys() == {row.variant for row in paper.FINETUNING}


@pytest.mark.parametrize("row", paper.TEXT, ids=lambda row: row.variant)
def test_the_mean_of_table_2_follows_from_its_columns(row: paper.PrintedText):
    """ALBERT: (85.8 + 78.55 + 81.5 + 90.3) / 4 = 84.0."""
    both = sum(row.squad1) / 2 + sum(row.squad2) / 2
    assert (both + row.mnli + row.sst2) / 4 == pytest.approx(row.mean, abs=0.051)


@pytest.mark.parametrize("printed", paper.TEXT, ids=lambda row: row.variant)
def test_text_in_the_header_of_text_pretrain(printed: paper.PrintedText):
    row = table_of("text_pretrain")[printed.variant]
    assert row["params"] == f"{printed.millions}M"
    assert row["SQuAD1.1"] == "{} / {}".format(*printed.squad1)
    assert row["SQuAD2.0"] == "{} / {}".format(*printed.squad2)
    scores = (row["MNLI"], row["SST-2"], row["mean"])
    assert scores == (str(printed.mnli), str(printed.sst2), str(printed.mean))


def test_the_header_of_language_model():
    """Every row is one of Tables 1, 4 and 6, with its options there."""
    text = (ROOT / "configs" / "language_model.py").read_text()
    lines = text.partition("| row ")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(lines) == 17
    printed = [
        (row.options, *(f"{row.results.get(size, 0):.2f}" for size in ("wt_s", "wt_b", "e8")))
        for table in "146"
        for row in APPROXIMATIONS[table]
    ]
    for line in lines:
        _, preset, *results = (cell.strip() for cell in line.strip("|").split("|"))
        options = f"preset={preset.partition(',selected')[0]}"
        assert (options, *results) in printed, line
