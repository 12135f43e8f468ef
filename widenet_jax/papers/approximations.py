"""The experiments of "Approximating Two-Layer Feedforward Networks" (sigma-MoE) as data.

Language models that differ in their feed-forwards alone. A table is one experiment for each of its
columns, the size of the model with its data; a scale may let one model stand for several sizes.
"""

from widenet_jax.config.files import configs_module
from widenet_jax.papers import printed as paper
from widenet_jax.papers.experiment import (
    BITS,
    PERPLEXITY,
    Metric,
    PaperExperiment,
    PaperRow,
)

language_sizes = configs_module("language_sizes")
SIZES = {
    "wt_s": "WikiText-103, small",
    "wt_s_star": "WikiText-103, small with 8 times the experts",
    "wt_b": "WikiText-103, big",
    "e8": "enwik8",
    "c4_s": "C4, small",
    "c4_b": "C4, big",
    "pes2o_s": "peS2o, small",
    "pes2o_b": "peS2o, big",
}
# Table -> its title, the row that others are compared with, and the paper's conclusion.
TABLES = {
    "1": (
        "top-K activation",
        "dense",
        "Keeping the K largest activations does not hurt; it helps a little.",
    ),
    "3": ("sigma-MoE", "dense", "sigma-MoE equals a dense model of as many parameters."),
    "4": (
        "variants of sigma-MoE, Switch and S-BASE (with Table 10)",
        "sigma-MoE",
        "sigma-MoE is ahead of Switch, S-BASE and softmax; initialisation, entropy loss, expert "
        "dropout and sigmoid each help; at equal K G more and smaller experts are better, down to "
        "G = 128.",
    ),
    "5": (
        "other mixtures on C4 and peS2o",
        "sigma-MoE",
        "sigma-MoE is ahead of Switch and S-BASE.",
    ),
    "6": ("product keys", "dense", "ReLU is ahead of softmax, and dense ahead of both."),
}


# Figure -> its title, the rows of Table 4 that it shows, the sizes, what it shows, the conclusion.
FIGURES = {
    "1": (
        "active units of the dense model (with Figs. 4 and 5)",
        ("dense",),
        ("wt_s", "wt_b", "e8"),
        "active",
        "Few hidden units are active: fewer than 200 of 2,053 in most blocks on WikiText-103.",
    ),
    "3": (
        "shares of the selection weight by expert",
        ("sigma-MoE", "softmax, renormalised", "softmax", "Switch, K = 1, G = 512",
         "S-BASE, K = 4, G = 128"),
        ("wt_s_star", "e8"),
        "shares",
        "Switch and renormalised softmax collapse to a few experts; the others use all.",
    ),
    "6": (
        "experts of sigma-MoE chosen together",
        ("sigma-MoE",),
        ("wt_s_star", "e8"),
        "together",
        "Experts are chosen in many combinations, and some pairs often.",
    ),
    "7": (
        "shares of the selection weight by expert, every block of sigma-MoE",
        ("sigma-MoE",),
        ("wt_s_star", "e8"),
        "shares",
        "No block collapses.",
    ),
}  # fmt: skip


# Figs. 2 and 8 to 11, by the size that they vary.
VARIED = {
    "embed_dim": "the width D, with as many hidden units as 4 D",
    "experts": "the number of experts E",
    "expert_dim": "the experts' width G",
}
# Scale -> the size of a layer; E = 0 stands for 4 D / G experts.
LAYER = {
    "paper": {
        "tokens": 32_768,
        "length": 512,
        "embed_dim": 1024,
        "expert_dim": 128,
        "experts": 0,
        "selected": 4,
    },
    "small": {
        "tokens": 4096,
        "length": 128,
        "embed_dim": 256,
        "expert_dim": 32,
        "experts": 0,
        "selected": 4,
    },
    "smoke": {
        "tokens": 256,
        "length": 128,
        "embed_dim": 64,
        "expert_dim": 16,
        "experts": 0,
        "selected": 4,
    },
}
# Scale -> the values that replace one of these numbers in a figure.
LAYER_SWEEPS = {
    "paper": {
        "embed_dim": (256, 512, 1024, 2048, 4096),
        "experts": (8, 16, 32, 64, 128),
        "expert_dim": (32, 64, 128, 256, 512),
    },
    "small": {
        "embed_dim": (64, 128, 256, 512, 1024),
        "experts": (8, 16, 32, 64, 128),
        "expert_dim": (16, 32, 64, 128),
    },
    "smoke": {"embed_dim": (32, 64), "experts": (8, 16), "expert_dim": (8, 16)},
}
# Comparisons that are no table of the paper: title, reference, conclusion, and for each row its
# label, its options, and the table and row whose number the paper prints for it. The paper ran
# S-BASE as released, and product keys with the heads' scores added.
OURS = {
    "zoo": (
        "every feed-forward at equal parameters",
        "dense",
        "sigma-MoE equals dense and is ahead of Switch, S-BASE and softmax; top-K does not hurt; "
        "with product keys ReLU is ahead of softmax, and dense ahead of both.",
        (
            ("dense", "preset=dense", ("1", "dense")),
            ("top-K activation", "preset=top_k", ("1", "top-K, K = 128")),
            ("product keys, ReLU", "preset=product_key", ("6", "product keys, ReLU")),
            ("product keys, softmax", "preset=product_key_softmax", ("6", "product keys, softmax")),
            ("Switch, K = 1, G = 512", "preset=switch", ("4", "Switch, K = 1, G = 512")),
            ("S-BASE, K = 4, balanced", "preset=s_base", None),
            (
                "S-BASE, K = 4, as released",
                "preset=s_base_released",
                ("4", "S-BASE, K = 4, G = 128"),
            ),
            ("softmax", "preset=softmax", ("4", "softmax")),
            ("sigma-MoE", "preset=sigma_moe", ("4", "sigma-MoE")),
        ),
    ),
    "parts": (
        "sigma-MoE without one of its parts",
        "sigma-MoE",
        "Initialisation, entropy loss, expert dropout and sigmoid each help.",
        (
            ("sigma-MoE", "preset=sigma_moe", ("4", "sigma-MoE")),
            ("no entropy loss", "preset=sigma_moe,entropy=0.0", None),
            ("standard init", "preset=standard_init", ("4", "standard initialisation")),
            ("no expert dropout", "preset=sigma_moe,expert_dropout=0.0", None),
            (
                "softmax, renormalised",
                "preset=softmax_renormalized",
                ("4", "softmax, renormalised"),
            ),
        ),
    ),
}
OUR_SIZES = ("wt_s", "wt_b", "e8")


def metric_of(size: str) -> Metric:
    """Returns what the paper prints for a size."""
    return BITS if size == "e8" else PERPLEXITY


def row_of(model: paper.PrintedLanguageModel, size: str) -> PaperRow:
    """Makes a row; `scales.run_of` gives it a variant."""
    return PaperRow(model.model, size, model.results.get(size), model)


def as_in_table_4(model: paper.PrintedLanguageModel) -> paper.PrintedLanguageModel:
    """Gives a row with the entropy loss the weights of that loss in Table 4."""
    experts = language_sizes.language_model(
        *language_sizes.parse_language_variant(f"wt_s,{model.options}")
    )["moe"]
    losses = experts["losses"] if experts else {}
    if not any(losses.get(loss) for loss in language_sizes.ENTROPY_OF.values()):
        return model
    weights = {size: f"entropy={weight}" for size, weight in paper.TABLE_4_ENTROPY.items()}
    return model._replace(further=weights)


def table(number: str) -> tuple[PaperExperiment, ...]:
    """Makes an experiment of each column of a table."""
    title, reference, claim = TABLES[number]
    rows = paper.APPROXIMATIONS[number]
    if number == "4":
        rows = tuple(map(as_in_table_4, rows))
    return tuple(
        PaperExperiment(
            f"sigma_table{number}_{size}",
            f"sigma-MoE, Table {number}: {title}; {about}",
            tuple(row_of(row, size) for row in rows if size in row.results),
            claim,
            metric=metric_of(size),
            language=size,
            reference=reference,
        )
        for size, about in SIZES.items()
        if any(size in row.results for row in rows)
    )


def ours(name: str) -> tuple[PaperExperiment, ...]:
    """Makes an experiment of each size of a comparison of `OURS`, with the options of Table 4."""
    title, reference, claim, lines = OURS[name]
    printed = {(t, row.model.strip()): row for t, of in paper.APPROXIMATIONS.items() for row in of}
    rows = [
        as_in_table_4(
            paper.PrintedLanguageModel(label, options, printed[where].results if where else {})
        )
        for label, options, where in lines
    ]
    return tuple(
        PaperExperiment(
            f"sigma_{name}_{size}",
            f"sigma-MoE: {title}; {SIZES[size]}",
            tuple(row_of(row, size) for row in rows),
            claim,
            metric=metric_of(size),
            language=size,
            reference=reference,
        )
        for size in OUR_SIZES
    )


def figure(number: str) -> tuple[PaperExperiment, ...]:
    """Makes an experiment of each size of a figure."""
    title, labels, sizes, selection, claim = FIGURES[number]
    models = {row.model.strip(): row for row in reversed(paper.APPROXIMATIONS["4"])}
    return tuple(
        PaperExperiment(
            f"sigma_fig{number}_{size}",
            f"sigma-MoE, Fig. {number}: {title}; {SIZES[size]}",
            tuple(row_of(models[label], size) for label in labels),
            claim,
            metric=metric_of(size),
            language=size,
            selection=selection,
        )
        for size in sizes
    )


def layers() -> tuple[PaperExperiment, ...]:
    """Makes an experiment of each size that the figures of single layers vary."""
    claim = "Experts take less time and memory than a dense layer, the more so the wider it is."
    return tuple(
        PaperExperiment(
            f"sigma_fig2_{size}",
            f"sigma-MoE, Figs. 2 and 8 to 11: time and memory of one layer over {about}",
            (),
            claim,
            layer=size,
        )
        for size, about in VARIED.items()
    )


# Name on the command line -> its experiments.
APPROXIMATIONS = {
    "sigma_fig2": layers(),
    **{f"sigma_table{number}": table(number) for number in TABLES},
    **{f"sigma_fig{number}": figure(number) for number in FIGURES},
    **{f"sigma_{name}": ours(name) for name in OURS},
}
