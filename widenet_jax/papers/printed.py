"""The results that the paper of sigma-MoE prints, each stated once.

Csordas, Irie and Schmidhuber, "Approximating Two-Layer Feedforward Networks for Efficient
Transformers", 2023 (arXiv 2310.10837v3). Nothing here imports JAX. The numbers of WideNet's paper
and the parameter counts of both stand in `ops/plan/printed.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


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
