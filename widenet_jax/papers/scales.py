"""The papers' experiments at three scales: the runs, and which run starts from which.

At every scale L is deeper than B and H is deeper than L; where the paper halves L's blocks or
doubles a width, so does the scale. `Scale.about` states the differences from the paper.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from widenet_jax.config.files import configs_module
from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.trials import VARIANT, Trial, expand, name_of
from widenet_jax.papers import approximations
from widenet_jax.papers.experiment import BITS, PAPER_SIZES, PaperExperiment, PaperRow
from widenet_jax.papers.printed import PrintedLanguageModel

sizes = configs_module("sizes")
language_sizes = configs_module("language_sizes")
# Options that count blocks, groups or features -> the size's field that they are a share of.
SHARE_OF = {"depth": "depth", "routing_groups": "depth", "mlp_dim": "mlp_dim"}


@dataclass(frozen=True)
class Stage:
    """A config file and the settings that a scale gives it.

    Attributes:
      config: the file.
      data: name of its set under --data_dir; "" for an embedded set.
      flags: FIELD=VALUE for all its runs.
      variant: what the config's argument begins with where a text model is finetuned; the size of
        a language model.
      topology: TPU slice that its runs are planned for and launched on, where it is not the
        scale's.
    """

    config: str
    data: str
    flags: tuple[str, ...] = ()
    variant: str = ""
    topology: str = ""


@dataclass(frozen=True)
class Scale:
    """Which models stand for the paper's, and the data that they are trained on.

    Attributes:
      sizes: the paper's size -> (our size, its depth).
      pretrain: trains the models of Tables 1, 3, 4 and the figures.
      backbone: trains the models that Table 5 starts from.
      finetune: trains the models of Table 5.
      text: trains the models of Table 2: "pretraining", and the sets to finetune them on.
      text_size: what the name of a text model ends with, such as "_s".
      language: the paper's size -> what trains the language models that stand for it.
      layer: the sizes of single layers that are timed; E = 0 stands for 4 D / G experts.
      layer_sweeps: the values of the size that a figure varies.
      seeds: number of runs of each model.
      about: the data and the differences from the paper, as printed above each table.
      about_text: the same for Table 2.
      about_language: the same for the language models.
      topologies: TPU slices that pretraining and finetuning are planned for and launched on; None
        where the runs need no accelerator.
      layer_topology: the slice that single layers are priced for; "": they are measured here.
    """

    sizes: dict[str, tuple[str, int]]
    pretrain: Stage
    backbone: Stage
    finetune: Stage
    text: Mapping[str, Stage]
    text_size: str
    language: Mapping[str, Stage]
    layer: Mapping[str, int]
    layer_sweeps: Mapping[str, tuple[int, ...]]
    seeds: int
    about: str
    about_text: str
    about_language: str
    topologies: tuple[str, str] | None = None
    layer_topology: str = ""

    def about_of(self, experiment: PaperExperiment) -> str:
        """Returns the data and the differences from the paper of an experiment."""
        if experiment.language:
            return self.about_language
        return self.about_text if experiment.text else self.about

    def topology_of(self, config: str, *, finetuned: bool) -> str:
        """Returns the slice for the runs of a config file; needs `topologies`."""
        own = {stage.config: stage.topology for stage in self.language.values()}
        return own.get(config.partition(":")[0]) or self.topologies[int(finetuned)]


LANGUAGE_CONFIG = "configs/language_model.py"

IMAGENET = Stage("configs/imagenet.py", "imagenet")
CIFAR10 = Stage("configs/cifar10.py", "cifar10")
TINY_IMAGENET = Stage("configs/tiny_imagenet.py", "tiny_imagenet")
_SHORT = ("duration=12 epochs", "optimizer.warmup=1 epoch", "evaluation.every=6 epochs")
DIGITS = Stage("configs/digits.py", "", (*_SHORT, "checkpoint.every=12 epochs"))

TEXT = {
    "pretraining": Stage("configs/text_pretrain.py", "wikipedia_books"),
    "squad1": Stage("configs/squad.py", "squad", variant="v1"),
    "squad2": Stage("configs/squad.py", "squad", variant="v2"),
    "mnli": Stage("configs/glue.py", "MNLI", variant="mnli"),
    "sst2": Stage("configs/glue.py", "SST-2", variant="sst2"),
}
_SMALL = (
    "duration=5 epochs",
    "optimizer.warmup=0.5 epochs",
    "optimizer.learning_rate=3e-4",
    "batch_size=32",
    "evaluation.every=1 epoch",
)
SMALL_TEXT = {name: replace(stage, flags=_SMALL) for name, stage in TEXT.items()} | {
    "pretraining": Stage("configs/text_pretrain.py", "wikipedia_s")
}
TINY_TEXT = {"pretraining": Stage("configs/text_tiny.py", "")}

SETS = {"wt": "wikitext103", "e8": "enwik8", "c4": "c4", "pes2o": "pes2o"}
LANGUAGE = {
    size: Stage(LANGUAGE_CONFIG, SETS[size.partition("_")[0]], variant=size, topology="v3-8")
    for size in approximations.SIZES
}
# A model of bytes stands for a small and for the smallest model, which both have 16 experts.
_BYTES = Stage(LANGUAGE_CONFIG, "bytes", variant="byte_s")
_SHORT_TINY = ("duration=300 steps", "evaluation.every=300 steps", "checkpoint.every=300 steps")
_TINY_BYTES = Stage(LANGUAGE_CONFIG, "", _SHORT_TINY, variant="tiny")

SCALES = {
    "paper": Scale(
        sizes={size: (size, sizes.SIZES[size]["depth"]) for size in PAPER_SIZES},
        pretrain=IMAGENET,
        backbone=IMAGENET,
        finetune=CIFAR10,
        text=TEXT,
        text_size="",
        language=LANGUAGE,
        layer=approximations.LAYER["paper"],
        layer_sweeps=approximations.LAYER_SWEEPS["paper"],
        seeds=1,
        about="ImageNet-1K; finetuning on CIFAR-10 at 224 pixels",
        about_text="Wikipedia and BookCorpus",
        about_language="as the paper, but for the two unused scalars of a block; ours is of the "
        "validation split, the paper's of the test split",
        topologies=("v3-256", "v3-32"),
        layer_topology="v3-8",
    ),
    "small": Scale(
        sizes={"b": ("s", 4), "l": ("s", 8), "h": ("s", 12)},
        pretrain=CIFAR10,
        backbone=TINY_IMAGENET,
        finetune=CIFAR10,
        text=SMALL_TEXT,
        text_size="_s",
        language=dict.fromkeys(("wt_s", "e8"), _BYTES),
        layer=approximations.LAYER["small"],
        layer_sweeps=approximations.LAYER_SWEEPS["small"],
        seeds=3,
        about="CIFAR-10 from scratch, Table 5 from Tiny-ImageNet; 4, 8 and 12 blocks of width 128 "
        "(every second one of ViT-MoE with experts, which are as wide as the dense layers); 8 "
        "epochs of AdamW without mixup, RandAugment and dropout unless the command says otherwise",
        about_text="Wikipedia; 4 blocks of width 128 without dropout, 128 tokens, pretrained for "
        "7,300 steps of 32 sequences unless the command says otherwise",
        about_language="bytes of your text; 3 blocks of width 128, memory of 128 bytes, 2,000 "
        "steps of 16 x 128 bytes unless the command says otherwise; G = 32 stands for 128; no "
        "dropout but of experts, so no rows about dropout within them",
    ),
    "smoke": Scale(
        sizes={"b": ("tiny", 3), "l": ("tiny", 6), "h": ("tiny", 8)},
        pretrain=DIGITS,
        backbone=DIGITS,
        finetune=DIGITS,
        text=TINY_TEXT,
        text_size="_tiny",
        language=dict.fromkeys(("wt_s", "e8"), _TINY_BYTES),
        layer=approximations.LAYER["smoke"],
        layer_sweeps=approximations.LAYER_SWEEPS["smoke"],
        seeds=1,
        about="8x8 digits, 12 epochs, 3, 6 and 8 blocks: shows that the command works, and tests "
        "none of the paper's claims",
        about_text="the embedded novel, a few minutes a model: shows that the command works, and "
        "tests none of the paper's claims",
        about_language="bytes of the embedded novel, seconds a model: shows that the command "
        "works, and tests none of the paper's claims; no rows about dropout within experts",
    ),
}


@dataclass(frozen=True)
class Run:
    """A model to train at a scale; each of its seeds is a trial.

    Attributes:
      stage: trains it.
      variant: of the stage's config.
      backbone: the run that it is finetuned from; None for training from scratch.
    """

    stage: Stage
    variant: str
    backbone: "Run | None" = None

    @property
    def model(self) -> str:
        """The model's name at this scale."""
        return self.backbone.variant if self.backbone else self.variant


def variant_at(scale: Scale, variant: str) -> str:
    """Returns the model that stands for the paper's: "widenet_l,depth=12" -> "widenet_s" in small.

    Numbers of blocks, groups and features keep their share of the size's default. Options that
    equal the default are left out, so that equal models get one name and become one run.
    """
    family, size, options = sizes.parse_variant(variant)
    name, depth = scale.sizes[size]
    own = sizes.SIZES[name] | {"depth": depth}
    for key, field in SHARE_OF.items():
        if key in options:
            options[key] = max(1, options[key] * own[field] // sizes.SIZES[size][field])
    options = {"depth": depth} | options
    default = sizes.SIZES[name] | {"routing_groups": options["depth"], "experts": 4}
    options = {key: value for key, value in options.items() if value != default.get(key)}
    texts = [f"{key}={str(value).lower()}" for key, value in options.items()]
    return ",".join([f"{family}_{name}", *texts])


def run_of(scale: Scale, experiment: PaperExperiment, row: PaperRow) -> Run:
    """Returns the run behind a row."""
    if experiment.language:
        stage = scale.language[experiment.language]
        variant = language_variant(stage.variant, row.language)
        return Run(stage, first_names(stage.variant)[variant])
    if experiment.text:
        pretrained = Run(scale.text["pretraining"], row.variant + scale.text_size)
        stage = scale.text[experiment.text]
        if not stage.variant:
            return pretrained
        return Run(stage, f"{stage.variant},model={pretrained.variant}", backbone=pretrained)
    variant = variant_at(scale, row.variant)
    if experiment.finetuned:
        return Run(scale.finetune, variant, backbone=Run(scale.backbone, variant))
    return Run(scale.pretrain, variant)


def runnable(scale: Scale, experiments: Iterable[PaperExperiment]) -> list[PaperExperiment]:
    """Leaves out the experiments whose data a scale does not have.

    Raises:
      BadInputError: none is left.
    """
    experiments = list(experiments)
    left = [
        of_scale(scale, one)
        for one in experiments
        if (not one.text or one.text in scale.text)
        and (not one.language or one.language in scale.language)
    ]
    if not left:
        names = ", ".join(one.name for one in experiments)
        raise BadInputError(f"this --scale has no data for {names}; choose another scale")
    return left


def of_scale(scale: Scale, experiment: PaperExperiment) -> PaperExperiment:
    """Returns the experiment with the rows and the metric that the scale's runs have.

    Models of bytes are compared by bits a byte, whatever the paper prints.
    """
    size = experiment.language
    if not size or scale.language[size].variant == size:
        return experiment
    own = scale.language[size].variant
    rows = tuple(row for row in experiment.rows if is_at_size(own, row.language))
    return replace(experiment, rows=rows, metric=BITS, paper_label=experiment.metric.label)


def is_at_size(size: str, model: PrintedLanguageModel) -> bool:
    """Tells whether a size has a row's model: rows about dropout within experts need dropout."""
    _, options = language_sizes.parse_language_variant(f"wt_s,{model.options}")
    return bool(language_sizes.SIZES[size]["dropout"]) or "hidden_dropout" not in options


def language_variant(size: str, model: PrintedLanguageModel) -> str:
    """Returns the name of the language model of a size: "byte_s,preset=sigma_moe,selected=8"."""
    base = language_sizes.SIZES[size]
    shares = (
        ("mlp_dim", model.width, base["width"]),
        ("selected", model.selected, base["selected"]),
        ("num_active", model.active, base["num_active"]),
    )
    options = [f"{name}={max(1, round(x * own))}" for name, x, own in shares if x is not None]
    further = [model.further[size]] if size in model.further else []
    return ",".join([size, model.options, *options, *further])


@functools.cache
def first_names(size: str) -> dict[str, str]:
    """Maps each row's name at a size to the first one that is the same model, as their run."""
    experiments = [one for group in approximations.APPROXIMATIONS.values() for one in group]
    rows = [row.language for one in experiments for row in one.rows]
    names = [language_variant(size, row) for row in rows if is_at_size(size, row)]
    models = [
        repr(language_sizes.language_model(*language_sizes.parse_language_variant(name)))
        for name in names
    ]
    first = dict(zip(reversed(models), reversed(names), strict=True))
    return {name: first[model] for name, model in zip(names, models, strict=True)}


def runs_of(scale: Scale, experiments: Iterable[PaperExperiment]) -> list[Run]:
    """Lists every run once, backbones before the runs finetuned from them."""
    wanted = [run_of(scale, one, row) for one in experiments for row in one.rows]
    backbones = [run.backbone for run in wanted if run.backbone]
    first = [run for run in [*wanted, *backbones] if not run.backbone]
    return list(dict.fromkeys([*first, *wanted]))


def trial_of(
    run: Run, seed: int, directory: Directory, data_dir: str, flags: Sequence[str] = ()
) -> Trial:
    """Makes the trial of one seed of a run.

    Args:
      run: the model to train.
      seed: of parameters, data order and dropout; the backbone has the same seed.
      directory: holds the trials' workdirs, the backbone's among them.
      data_dir: holds the image sets.
      flags: `--config.FIELD=VALUE`, applied after the stage's fields.

    Raises:
      BadInputError: the config has no such field or value.
    """
    settings = {VARIANT: run.variant, "seed": seed}
    data = [f"--config.data.path={data_dir}/{run.stage.data}"] if run.stage.data else []
    own = [f"--config.{flag}" for flag in run.stage.flags]
    all_flags = [*data, *own, *flags]
    if run.backbone is None:
        return expand(run.stage.config, [settings], all_flags)[0]
    backbone = trial_of(run.backbone, seed, directory, data_dir, flags)
    from_backbone = settings | {"init_from": directory.workdir(backbone)}
    (trial,) = expand(run.stage.config, [from_backbone], all_flags)
    # The name leaves out the directory, so that a moved workdir still holds the same trials.
    named = settings | {"from": backbone.name.rpartition("-")[2]}
    return replace(trial, name=name_of(Path(run.stage.config).name, run.variant, named))
