"""Printed sizes and results of the papers' models, as plain data: read by the plan and by papers.

Xue et al., "Go Wider Instead of Deeper", AAAI 2022 (WideNet): `PRETRAINING` to `TEXT`. A test
compares them with the tables in the headers of `configs/imagenet.py` and `configs/cifar10.py`.
Csordas, Irie and Schmidhuber, "Approximating Two-Layer Feedforward Networks for Efficient
Transformers", 2023 (arXiv 2310.10837v3, sigma-MoE): `LANGUAGE_COUNTS`.
"""

import math
from typing import NamedTuple


class Printed(NamedTuple):
    """A model of the paper and the figures printed for it.

    Attributes:
      variant: the model's name as in `--config=configs/imagenet.py:VARIANT`.
      model: the model's name in words.
      tables: numbers of the tables that list the model; "" where none does.
      millions: parameters in millions; None where they are not printed.
      top_1: test accuracy in percent, NaN where training diverged, text where the paper prints
        text, None where it prints nothing.
      core_days: cost of 300 epochs on ImageNet in TPUv3 core-days; None where it is not printed.
      slip: the printed parameter count contradicts the other rows of its table.
    """

    variant: str
    model: str
    tables: str
    millions: int | None
    top_1: float | str | None
    core_days: int | None = None
    slip: bool = False


# ImageNet-1K: Tables 1, 3 and 4. Rows that name the same run stand once.
PRETRAINING = (
    Printed("vit_b", "ViT-B", "1", 87, 78.6),
    Printed("vit_l", "ViT-L", "1, 4", 305, 77.5, core_days=80),
    Printed("vit_h", "ViT-H", "", None, None),
    Printed("vit_moe_b", "ViT-MoE-B", "1, 3", 128, 77.9),
    Printed("vit_moe_l", "ViT-MoE-L", "1, 3", 406, 77.4),
    Printed("widenet_b", "WideNet-B", "1, 3", 29, 77.5),
    Printed("widenet_l", "WideNet-L", "1, 3, 4", 40, 79.5, core_days=140),
    Printed("widenet_h", "WideNet-H", "1, 3", 63, 80.1),
    Printed("widenet_b,share_norms=true", "WideNet-B, shared LayerNorm", "3", 29, 76.3),
    Printed("widenet_l,share_norms=true", "WideNet-L, shared LayerNorm", "3", 40, 78.3),
    Printed("widenet_h,share_norms=true", "WideNet-H, shared LayerNorm", "3", 63, 76.6),
    Printed("widenet_b,moe=false", "WideNet-B without MoE", "3", 9, math.nan),
    Printed("widenet_l,moe=false", "WideNet-L without MoE", "3", 15, 76.9),
    Printed("widenet_h,moe=false", "WideNet-H without MoE", "3", 23, 79.0),
    Printed("vit_l,share=true", "ViT-L shared, FFN 4096", "4", 15, 76.9, core_days=70),
    Printed("vit_l,share=true,mlp_dim=8192", "ViT-L shared, FFN 8192", "4", 24, 75.8, core_days=90),
    Printed("widenet_l,depth=12", "WideNet-L, 12 blocks", "4", 40, 78.2, core_days=70),
)

# Table 3's WideNet-H without parameter sharing, which the paper could not train.
OUT_OF_MEMORY = Printed("vit_moe_h", "WideNet-H without sharing", "3", None, "out of memory")

# CIFAR-10, Table 5: 10 classes and no representation layer. The printed sizes of ViT-L and
# WideNet-B are slips: no setting that gives the other four rows gives them.
FINETUNING = (
    Printed("vit_b", "ViT-B", "5", 85, 98.3),
    Printed("vit_l", "ViT-L", "5", 305, 98.2, slip=True),
    Printed("vit_moe_b", "ViT-MoE-B", "5", 126, 98.5),
    Printed("vit_moe_l", "ViT-MoE-L", "5", 404, 98.5),
    Printed("widenet_b", "WideNet-B", "5", 27, 98.4, slip=True),
    Printed("widenet_l", "WideNet-L", "5", 38, 98.8),
)


class PrintedText(NamedTuple):
    """A text model of Table 2 and the figures printed for it, in percent.

    Attributes:
      variant: the model's name as in `--config=configs/text_pretrain.py:VARIANT`.
      model: the model's name in words.
      millions: parameters of backbone and pooler in millions (BERT's is truncated, not rounded).
      squad1, squad2: (F1, exact match) on the development sets.
      mnli, sst2: accuracy on the development sets; the median of 5 runs.
      mean: (mean of squad1 + mean of squad2 + mnli + sst2) / 4, as printed.
    """

    variant: str
    model: str
    millions: int
    squad1: tuple[float, float]
    squad2: tuple[float, float]
    mnli: float
    sst2: float
    mean: float


# Table 2. The rows of ALBERT and BERT stand in ALBERT's Table 4 (Lan et al. 2020; all shared, and
# nothing shared, E = 128), with 81.6 and 82.0 for ALBERT's MNLI there.
TEXT = (
    PrintedText("albert", "ALBERT", 12, (89.3, 82.3), (80.0, 77.1), 81.5, 90.3, 84.0),
    PrintedText("bert", "BERT", 89, (89.9, 82.8), (80.3, 77.3), 83.2, 91.5, 85.0),
    PrintedText("widenet_4", "WideNet-4", 26, (89.6, 82.7), (80.6, 77.4), 82.6, 91.1, 84.7),
    PrintedText("widenet_8", "WideNet-8", 45, (90.0, 82.7), (80.6, 77.7), 83.3, 91.9, 85.2),
    PrintedText("widenet_16", "WideNet-16", 83, (90.9, 83.8), (81.0, 77.9), 84.1, 92.2, 85.8),
)


class PrintedCount(NamedTuple):
    """A parameter count that sigma-MoE's paper prints.

    Attributes:
      variant: the model's name as in `--config=configs/language_model.py:VARIANT`.
      model: the model's name in words.
      params: parameters.
      exact: to the last one; otherwise params is rounded to 10,000.
      vocab_size: V.
    """

    variant: str
    model: str
    params: int
    exact: bool
    vocab_size: int


# Its counts include 2 scalars a block of the attention, of which we have none. E8 counts the 205
# bytes that occur in enwik8.
LANGUAGE_COUNTS = (
    PrintedCount("wt_s", "WT-S, dense", 47_260_136, True, 8000),
    PrintedCount("wt_s,preset=sigma_moe", "WT-S, sigma-MoE", 47_260_248, True, 8000),
    PrintedCount("wt_s_star", "WT-S*, dense", 237_700_000, False, 8000),
    PrintedCount("wt_s_star,preset=sigma_moe", "WT-S*, sigma-MoE", 237_000_000, False, 8000),
    PrintedCount("wt_b", "WT-B, dense", 262_480_000, False, 8000),
    PrintedCount("wt_b,preset=sigma_moe", "WT-B, sigma-MoE", 262_460_000, False, 8000),
    PrintedCount("e8", "E8, dense", 41_230_000, False, 205),
    PrintedCount("e8,preset=sigma_moe", "E8, sigma-MoE", 41_240_000, False, 205),
)
