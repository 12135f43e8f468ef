"""The numbers that two papers print, each stated once.

Xue et al., "Go Wider Instead of Deeper", AAAI 2022 (WideNet): `PRETRAINING` to `TEXT`.
`scripts/reproduce.py`, `scripts/plan.py --counts` and `--paper` read the numbers from here; a test
compares them with the tables in the headers of `configs/imagenet.py` and `configs/cifar10.py`.

Csordas, Irie and Schmidhuber, "Approximating Two-Layer Feedforward Networks for Efficient
Transformers", 2023 (arXiv 2310.10837v3, sigma-MoE): `APPROXIMATIONS`. Nothing here imports JAX.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
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


class PrintedLanguageModel(NamedTuple):
    """A row of the tables of sigma-MoE: one feed-forward in language models of several sizes.

    Attributes:
      model: the feed-forward in words; indented where it is a change of a row above.
      options: of the model's name, as in `--config=configs/language_model.py:SIZE,OPTIONS`.
      results: size -> perplexity of the test set; of "e8" bits a byte. One run each.
      width, selected, active: G, K and the K of the top-K activation as multiples of the size's
        own (128, 4 and 128); None: as `options` have it. E G is the size's.
      further: size -> further options of the run of that size.
    """

    model: str
    options: str
    results: Mapping[str, float]
    width: float | None = None
    selected: float | None = None
    active: float | None = None
    further: Mapping[str, str] = MappingProxyType({})


def _row(
    model: str, options: str, sizes: str, *results: float | None, **shape: float
) -> PrintedLanguageModel:
    """Makes a row; None is a number that the paper does not print."""
    printed = zip(sizes.split(), results, strict=True)
    found = {size: result for size, result in printed if result is not None}
    return PrintedLanguageModel(model, options, found, **shape)


_WIKI = "wt_s wt_s_star wt_b e8"
_THREE = "wt_s wt_b e8"
_WEB = "c4_s c4_b pes2o_s pes2o_b"
_WIDE = {"width": 4, "selected": 1 / 4}  # K = 1, G = 512
# size -> the weight of the entropy loss in Table 4, where it is not the size's.
TABLE_4_ENTROPY = {"wt_s": 1e-4}

# Number of the table -> its rows. S-BASE and product keys are as they were run. Renormalised
# softmax is as described, and as run: its entropy loss saw the chosen experts alone. The loss of
# Switch is as described; in the runs it was E^2 times weaker. Table 10 repeats Table 4 with more.
APPROXIMATIONS: dict[str, tuple[PrintedLanguageModel, ...]] = {
    "1": (
        _row("dense", "preset=dense", _THREE, 11.81, 9.46, 1.08),
        _row("top-K, K = 64", "preset=top_k", "wt_s", 11.86, active=1 / 2),
        _row("top-K, K = 128", "preset=top_k", _THREE, 11.74, 9.26, 1.07),
        _row("top-K, K = 256", "preset=top_k", _THREE, 11.74, 9.34, 1.08, active=2),
        _row("top-K, K = 512", "preset=top_k", _THREE, 11.68, 9.36, 1.08, active=4),
    ),
    "3": (
        _row("dense", "preset=dense", f"{_THREE} {_WEB}", 11.81, 9.46, 1.08,
             23.76, 17.79, 14.34, 10.91),
        _row("sigma-MoE", "preset=sigma_moe", f"{_THREE} {_WEB}", 11.71, 9.44, 1.08,
             23.25, 17.46, 14.12, 10.91),
    ),
    "4": (
        _row("dense", "preset=dense", _WIKI, 11.81, 10.03, 9.46, 1.08),
        _row("sigma-MoE", "preset=sigma_moe", _WIKI, 11.59, 10.37, 9.44, 1.08),
        _row("  standard dropout", "preset=standard_dropout", _WIKI, 12.01, 10.27, 9.53, 1.08),
        _row("  softmax, renormalised", "preset=softmax_renormalized", _WIKI,
             11.89, 11.27, 9.58, 1.09),
        _row("  softmax, renormalised, as released", "preset=softmax_renormalized_released", _WIKI,
             11.89, 11.27, 9.58, 1.09),
        _row("  softmax", "preset=softmax", _WIKI, 12.05, 10.54, 9.62, 1.09),
        _row("  standard initialisation", "preset=standard_init", _WIKI, 11.80, 10.59, 9.67, 1.08),
        _row("  no entropy loss, no expert dropout", "preset=unregularized", _WIKI,
             11.83, 10.41, 9.51, 1.08),
        _row("  K = 8, G = 64", "preset=sigma_moe", _WIKI, 11.63, 10.30, 9.58, 1.08,
             width=1 / 2, selected=2),
        _row("  K = 2, G = 256", "preset=sigma_moe", _WIKI, 11.84, 10.44, 9.56, 1.09,
             width=2, selected=1 / 2),
        _row("  K = 1, G = 512", "preset=sigma_moe", _WIKI, 11.90, 10.83, 9.58, 1.09, **_WIDE),
        _row("  G = 64, twice the experts", "preset=sigma_moe", _WIKI, 11.81, 10.53, None, 1.08,
             width=1 / 2),
        _row("  K = 1", "preset=sigma_moe", _WIKI, 12.26, 11.30, None, 1.09, selected=1 / 4),
        _row("  K = 2", "preset=sigma_moe", _WIKI, 11.90, 10.66, None, 1.09, selected=1 / 2),
        _row("  K = 8", "preset=sigma_moe", _WIKI, 11.58, 10.22, None, 1.08, selected=2),
        _row("Switch, K = 1, G = 512", "preset=switch", _WIKI, 12.27, 11.24, 9.68, 1.08),
        _row("  Switch, G = 512, no dropout", "preset=switch_no_dropout", _WIKI,
             11.88, 11.10, 9.77, 1.10),
        _row("Switch, K = 4, G = 128", "preset=switch", _WIKI, 12.05, 11.37, None, 1.10,
             width=1, selected=1),
        _row("Switch, K = 1, G = 128", "preset=switch", _WIKI, 12.61, 11.89, None, 1.11, width=1),
        _row("  Switch, G = 128, no dropout", "preset=switch_no_dropout", _WIKI,
             12.35, 11.78, None, 1.10, width=1),
        _row("S-BASE, K = 4, G = 128", "preset=s_base_released", _WIKI, 13.01, 10.96, 10.50, 1.17),
        _row("S-BASE, K = 1, G = 512", "preset=s_base_released", _WIKI, 12.32, 11.31, 9.77, 1.32,
             **_WIDE),
    ),
    "5": (
        _row("dense", "preset=dense", _WEB, 23.76, 17.79, 14.34, 10.91),
        _row("sigma-MoE", "preset=sigma_moe", _WEB, 23.25, 17.46, 14.12, 10.91),
        _row("Switch", "preset=switch", _WEB, 24.47, 18.29, 14.74, 11.56),
        _row("S-BASE, K = 4", "preset=s_base_released", _WEB, 35.48, 18.53, 16.61, 11.72),
    ),
    "6": (
        _row("dense", "preset=dense", _THREE, 11.81, 9.46, 1.08),
        _row("product keys, as many values, softmax",
             "preset=product_key_values_softmax,combine_heads=before", _THREE, 14.11, 11.29, 1.20),
        _row("product keys, as many values, ReLU", "preset=product_key_values,combine_heads=before",
             _THREE, 13.32, 10.16, 1.12),
        _row("product keys, softmax", "preset=product_key_softmax,combine_heads=before", _THREE,
             13.96, 11.10, 1.16),
        _row("product keys, ReLU", "preset=product_key,combine_heads=before", _THREE,
             12.77, 9.98, 1.11),
        _row("  values of fan n^2", "preset=product_key_init,combine_heads=before", _THREE,
             12.75, 9.96, 1.11),
    ),
}  # fmt: skip


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
