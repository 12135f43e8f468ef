"""The papers' experiments as data: the models that each table and figure compares."""

from collections.abc import Sequence

from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan import printed as paper
from widenet_jax.papers.approximations import APPROXIMATIONS
from widenet_jax.papers.experiment import (
    ACCURACY,
    BEST_F1,
    F1,
    MLM_LOSS,
    PAPER_SIZES,
    PaperExperiment,
    PaperRow,
)


def rows_printed(
    labels: dict[str, str], printed: Sequence[paper.Printed] = paper.PRETRAINING
) -> tuple[PaperRow, ...]:
    """Makes rows with the paper's top-1.

    Args:
      labels: label of each row -> variant.
      printed: where the numbers stand.
    """
    top_1 = {row.variant: row.top_1 for row in (*printed, paper.OUT_OF_MEMORY)}
    return tuple(PaperRow(label, variant, top_1[variant]) for label, variant in labels.items())


def ablations_of(size: str) -> tuple[PaperRow, ...]:
    """Makes the four rows of Table 3 for a size; indented labels belong to the row above."""
    name = f"WideNet-{size.upper()}"
    labels = {
        name: f"widenet_{size}",
        "  with shared LayerNorm": f"widenet_{size},share_norms=true",
        "  without MoE": f"widenet_{size},moe=false",
        "  without sharing": f"vit_moe_{size}",
    }
    return rows_printed(labels)


TABLE_1 = PaperExperiment(
    "table1",
    "Table 1: pretraining",
    rows_printed({row.model: row.variant for row in paper.PRETRAINING if "1" in row.tables}),
    "WideNet-H is the best, and WideNet gains from depth where ViT and ViT-MoE lose by it.",
)

TABLE_3 = PaperExperiment(
    "table3",
    "Table 3: the three modifications",
    tuple(row for size in PAPER_SIZES for row in ablations_of(size)),
    "Separate norms raise accuracy in every size, and so do the experts, without which B diverges. "
    "Sharing costs B a little and helps L; H fits into memory only with it.",
    within_size=True,
)

_TABLE_4 = {
    "ViT-L": "vit_l",
    "ViT-L, shared": "vit_l,share=true",
    "WideNet-L, half the blocks": "widenet_l,depth=12",
    "ViT-L, shared, FFN twice as wide": "vit_l,share=true,mlp_dim=8192",
    "WideNet-L": "widenet_l",
}
TABLE_4 = PaperExperiment(
    "table4",
    "Table 4: comparable speed or computation",
    rows_printed(_TABLE_4),
    "WideNet-L is ahead of ViT-L already at half the blocks, and of shared ViT-L at both widths.",
)

TABLE_5 = PaperExperiment(
    "table5",
    "Table 5: finetuning",
    rows_printed({row.model: row.variant for row in paper.FINETUNING}, paper.FINETUNING),
    "WideNet-L is the best after finetuning, too.",
    finetuned=True,
)

# The paper names neither the size nor the numbers of experts between 4 and 16.
FIGURE_2 = PaperExperiment(
    "fig2",
    "Fig. 2: number of experts of ViT-MoE-B",
    tuple(PaperRow(f"E = {e}", f"vit_moe_b,experts={e}") for e in (4, 8, 16)),
    "The more experts, the lower the test accuracy.",
    worsens=True,
)

FIGURE_3 = PaperExperiment(
    "fig3",
    "Fig. 3: groups of blocks with one routing, WideNet-B",
    tuple(
        PaperRow(f"G = {g} of 12 blocks", f"widenet_b,routing_groups={g}") for g in (12, 6, 3, 2)
    ),
    "The fewer routing operations, the lower the test accuracy.",
    worsens=True,
)

_NORMS = (PaperRow("ViT-B", "vit_b"), PaperRow("WideNet-B", "widenet_b"))
_NORMS_CLAIM = "WideNet's norms lie further apart than ViT's."
FIGURE_4 = PaperExperiment(
    "fig4", "Fig. 4: divergence of gamma", _NORMS, _NORMS_CLAIM, norms="gamma"
)
FIGURE_5 = PaperExperiment("fig5", "Fig. 5: divergence of beta", _NORMS, _NORMS_CLAIM, norms="beta")


def columns_of_table_2() -> tuple[PaperExperiment, ...]:
    """Makes an experiment of each column of Table 2, and one of the pretraining before them."""
    columns = {
        "pretraining": ("masked language modelling", MLM_LOSS, lambda row: None),
        "squad1": ("SQuAD1.1", F1, lambda row: row.squad1[0]),
        "squad2": ("SQuAD2.0", BEST_F1, lambda row: row.squad2[0]),
        "mnli": ("MNLI, matched", ACCURACY, lambda row: row.mnli),
        "sst2": ("SST-2", ACCURACY, lambda row: row.sst2),
    }
    return tuple(
        PaperExperiment(
            f"table2_{name}",
            f"Table 2: {title}",
            tuple(PaperRow(row.model, row.variant, printed(row)) for row in paper.TEXT),
            "WideNet is ahead of ALBERT, with more experts further, and with 8 and 16 of BERT.",
            metric=metric,
            text=name,
        )
        for name, (title, metric, printed) in columns.items()
    )


TABLE_2 = columns_of_table_2()

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        TABLE_1,
        *TABLE_2,
        TABLE_3,
        TABLE_4,
        TABLE_5,
        FIGURE_2,
        FIGURE_3,
        FIGURE_4,
        FIGURE_5,
        *(one for group in APPROXIMATIONS.values() for one in group),
    )
}
# Names on the command line that stand for several experiments.
GROUPS = {
    "table2": tuple(one.name for one in TABLE_2),
    **{name: tuple(one.name for one in group) for name, group in APPROXIMATIONS.items()},
    "sigma": tuple(one.name for group in APPROXIMATIONS.values() for one in group),
    "all": tuple(name for name, one in EXPERIMENTS.items() if not name.startswith("sigma_")),
}


def chosen(names: Sequence[str], sizes: Sequence[str]) -> list[PaperExperiment]:
    """Returns the experiments of those names or `GROUPS`, with the rows of those sizes.

    Raises:
      BadInputError: an unknown name or size, or an experiment named without a row of those sizes.
    """
    for name in names:
        if name not in (*EXPERIMENTS, *GROUPS):
            known = ", ".join([*EXPERIMENTS, *GROUPS])
            raise BadInputError(f"there is no experiment {name!r}; choose from {known}")
    for size in sizes:
        if size not in PAPER_SIZES:
            known = ", ".join(PAPER_SIZES)
            raise BadInputError(f"--sizes={size}: unknown size; choose from {known}")
    wanted = {name for given in names for name in GROUPS.get(given, [given])}
    found = [one.of_sizes(sizes) for name, one in EXPERIMENTS.items() if name in wanted]
    for one in found:
        if not one.rows and not one.layer and one.name in names:
            raise BadInputError(f"--sizes={','.join(sizes)}: {one.name} has no row of that size")
    return [one for one in found if one.rows or one.layer]
