"""The paper's vision experiments as data: which models each table and figure compares, and what is
printed for them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from widenet_jax.errors import BadInputError


@dataclass(frozen=True)
class Row:
    """One line of a table, one point or curve of a figure.

    Attributes:
      label: as printed.
      variant: of the model, at the paper's size.
      paper: top-1 in percent, NaN where training diverged, text for what is no number; None where
        the paper only draws it.
    """

    label: str
    variant: str
    paper: float | str | None = None

    @property
    def size(self) -> str:
        """ "b", "l" or "h"."""
        return self.variant.partition(",")[0].rpartition("_")[2]


@dataclass(frozen=True)
class Experiment:
    """A table or a figure.

    Attributes:
      name: on the command line.
      title: what it shows.
      rows: in the order printed.
      claim: what the text concludes from it.
      finetuned: on CIFAR-10, from the models that pretraining gave.
      within_size: rows of different sizes are not compared: an ablation of each size.
      falls: every row is said to be worse than the one before, without numbers.
      norms: the vector of the norms that is compared, "gamma" or "beta"; '' where accuracy is.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    claim: str
    finetuned: bool = False
    within_size: bool = False
    falls: bool = False
    norms: str = ""

    def of_sizes(self, sizes: Sequence[str]) -> "Experiment":
        """Only the rows of these sizes."""
        return replace(self, rows=tuple(row for row in self.rows if row.size in sizes))


TABLE_1 = Experiment(
    "table1",
    "Table 1: pretraining",
    (
        Row("ViT-B", "vit_b", 78.6),
        Row("ViT-L", "vit_l", 77.5),
        Row("ViT-MoE-B", "vit_moe_b", 77.9),
        Row("ViT-MoE-L", "vit_moe_l", 77.4),
        Row("WideNet-B", "widenet_b", 77.5),
        Row("WideNet-L", "widenet_l", 79.5),
        Row("WideNet-H", "widenet_h", 80.1),
    ),
    "WideNet-H is the best, and WideNet gains from depth where ViT and ViT-MoE lose by it.",
)

TABLE_3 = Experiment(
    "table3",
    "Table 3: the three modifications",
    (
        Row("WideNet-B", "widenet_b", 77.5),
        Row("  with shared LayerNorm", "widenet_b,share_norms=true", 76.3),
        Row("  without MoE", "widenet_b,moe=false", math.nan),
        Row("  without sharing", "vit_moe_b", 77.9),
        Row("WideNet-L", "widenet_l", 79.5),
        Row("  with shared LayerNorm", "widenet_l,share_norms=true", 78.3),
        Row("  without MoE", "widenet_l,moe=false", 76.9),
        Row("  without sharing", "vit_moe_l", 77.4),
        Row("WideNet-H", "widenet_h", 80.1),
        Row("  with shared LayerNorm", "widenet_h,share_norms=true", 76.6),
        Row("  without MoE", "widenet_h,moe=false", 79.0),
        Row("  without sharing", "vit_moe_h", "out of memory"),
    ),
    "Norms of their own raise accuracy in every size, and so do the experts, without which B "
    "diverges. Sharing costs B a little and raises L; H fits with it only.",
    within_size=True,
)

TABLE_4 = Experiment(
    "table4",
    "Table 4: comparable speed or computation",
    (
        Row("ViT-L", "vit_l", 77.5),
        Row("ViT-L, shared", "vit_l,share=true", 76.9),
        Row("WideNet-L, half the blocks", "widenet_l,depth=12", 78.2),
        Row("ViT-L, shared, FFN twice as wide", "vit_l,share=true,mlp_dim=8192", 75.8),
        Row("WideNet-L", "widenet_l", 79.5),
    ),
    "WideNet-L is ahead of ViT-L at half the blocks already, and of shared ViT-L however wide.",
)

TABLE_5 = Experiment(
    "table5",
    "Table 5: finetuning",
    (
        Row("ViT-B", "vit_b", 98.3),
        Row("ViT-L", "vit_l", 98.2),
        Row("ViT-MoE-B", "vit_moe_b", 98.5),
        Row("ViT-MoE-L", "vit_moe_l", 98.5),
        Row("WideNet-B", "widenet_b", 98.4),
        Row("WideNet-L", "widenet_l", 98.8),
    ),
    "WideNet-L is the best here, too.",
    finetuned=True,
)

# The paper does not say which size, nor which numbers between 4 and 16 experts.
FIGURE_2 = Experiment(
    "fig2",
    "Fig. 2: number of experts of ViT-MoE-B",
    tuple(Row(f"E = {e}", f"vit_moe_b,experts={e}") for e in (4, 8, 16)),
    "The more experts, the lower the test accuracy.",
    falls=True,
)

FIGURE_3 = Experiment(
    "fig3",
    "Fig. 3: groups of blocks with one routing, WideNet-B",
    tuple(Row(f"G = {g} of 12 blocks", f"widenet_b,routing_groups={g}") for g in (12, 6, 3, 2)),
    "The fewer routing operations, the lower the test accuracy.",
    falls=True,
)

_NORMS = (Row("ViT-B", "vit_b"), Row("WideNet-B", "widenet_b"))
_NORMS_CLAIM = "WideNet's norms lie further apart than ViT's."
FIGURE_4 = Experiment("fig4", "Fig. 4: divergence of gamma", _NORMS, _NORMS_CLAIM, norms="gamma")
FIGURE_5 = Experiment("fig5", "Fig. 5: divergence of beta", _NORMS, _NORMS_CLAIM, norms="beta")

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (TABLE_1, TABLE_3, TABLE_4, TABLE_5, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5)
}


def chosen(names: Sequence[str], sizes: Sequence[str]) -> list[Experiment]:
    """The experiments of those names ("all" for all), with the rows of those sizes.

    Raises:
      BadInputError: another name or size, or no such row.
    """
    for name in names:
        if name not in (*EXPERIMENTS, "all"):
            raise BadInputError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}, all")
    for size in sizes:
        if size not in ("b", "l", "h"):
            raise BadInputError(f"--sizes: there is no size {size!r}; there are b, l, h")
    found = [
        EXPERIMENTS[name].of_sizes(sizes) for name in EXPERIMENTS if {name, "all"} & set(names)
    ]
    for one in found:
        if not one.rows and one.name in names:
            raise BadInputError(f"--sizes={','.join(sizes)}: {one.name} has no such row")
    return [one for one in found if one.rows]
