"""The papers' experiments at three scales: the runs, and which run starts from which.

At every scale L is deeper than B and H is deeper than L; where the paper halves L's blocks or
doubles a width, so does the scale. `Scale.about` states the differences from the paper.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from widenet_jax.config.imports import configs_module
from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.trials import VARIANT, Trial, expand, name_of
from widenet_jax.papers.experiments import (
    CHOICES,
    EXPERIMENTS,
    LANGUAGE_SIZES,
    METRICS,
    PaperExperiment,
    PaperRow,
    load,
)

sizes = configs_module("sizes")
variants = configs_module("variants")
K_OR_G = re.compile(r"\b([KG]) = \d+")  # in labels of feed-forwards
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
      settings: fields that tell its runs from another stage's of the same model.
    """

    config: str
    data: str = ""
    flags: tuple[str, ...] = ()
    variant: str = ""
    topology: str = ""
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)


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
      claims: of the rows of claims.toml: "RATE_AMOUNT" -> what trains them.
      about: of the runs on "images", "text" and of "language" models: the data and the differences
        from the paper, as printed above each table.
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
    about: Mapping[str, str]
    topologies: tuple[str, str] | None = None
    layer_topology: str = ""
    claims: Mapping[str, Stage] = dataclasses.field(default_factory=dict)

    def about_of(self, experiment: PaperExperiment) -> str:
        """Returns the data and the differences from the paper of an experiment."""
        kind = "language" if experiment.language else "text" if experiment.text else "images"
        return experiment.about or self.about[kind]

    def topology_of(self, config: str, *, finetuned: bool) -> str:
        """Returns the slice for the runs of a config file; needs `topologies`."""
        own = {stage.config: stage.topology for stage in self.language.values()}
        return own.get(config.partition(":")[0]) or self.topologies[int(finetuned)]


def scale_of(section: dict[str, Any], stages: Mapping[str, Stage]) -> Scale:
    """Makes the scale of a section of scales.toml, which names its stages."""
    fields = section | {
        name: stages[section[name]] for name in ("pretrain", "backbone", "finetune")
    }
    flags = tuple(fields.pop("finetune_text", ()))
    text = {name: stages[stage] for name, stage in section["text"].items()}
    fields["text"] = {k: replace(of, flags=flags) if of.variant else of for k, of in text.items()}
    fields["language"] = {size: stages[stage] for size, stage in section["language"].items()}
    return Scale(**fields)


def load_scales() -> dict[str, Scale]:
    """Reads scales.toml, and claims.toml for the scale that it names."""
    sections = load("scales.toml")
    stages = {
        name: Stage(**of | {"flags": tuple(of.get("flags", ()))})
        for name, of in sections.pop("stages").items()
    }
    of = CHOICES["stages"]  # one for each learning rate with each amount of training images
    sections[CHOICES["scale"]]["claims"] = {
        f"{family}_{amount}": Stage(
            of["config"],
            of["data"],
            flags=(*of["flags"], f"optimizer.learning_rate={rate}"),
            settings={"data.train_split": split},
        )
        for family, rate in of["rates"].items()
        for amount, split in of["amounts"].items()
    }
    return {name: scale_of(section, stages) for name, section in sections.items()}


SCALES = load_scales()


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
    family, size, options = variants.parse(variant, variants.IMAGES)[:3]
    name, depth = scale.sizes[size]
    own = sizes.IMAGE_SIZES[name] | {"depth": depth}
    for key, field in SHARE_OF.items():
        if key in options:
            options[key] = max(1, options[key] * own[field] // sizes.IMAGE_SIZES[size][field])
    options = {"depth": depth} | options
    default = sizes.IMAGE_SIZES[name] | {"routing_groups": options["depth"], "experts": 4}
    options = {key: value for key, value in options.items() if value != default.get(key)}
    texts = [f"{key}={str(value).lower()}" for key, value in options.items()]
    return ",".join([f"{family}_{name}", *texts])


def run_of(scale: Scale, experiment: PaperExperiment, row: PaperRow) -> Run:
    """Returns the run behind a row."""
    if row.stage:
        return Run(scale.claims[row.stage], row.variant)
    if experiment.language:
        stage = scale.language[experiment.language]
        return Run(stage, first_names(stage.variant)[language_variant(stage.variant, row)])
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
    known = {"", *scale.text, *scale.language, *scale.claims}
    left = [
        of_scale(scale, one)
        for one in experiments
        if {one.text, one.language, *(row.stage for row in one.rows)} <= known
    ]
    if not left:
        names = ", ".join(one.name for one in experiments)
        raise BadInputError(f"this --scale has no data for {names}; choose another scale")
    return left


def of_scale(scale: Scale, experiment: PaperExperiment) -> PaperExperiment:
    """Returns the experiment with the rows, names and metric that the scale's runs have.

    Models of bytes are compared by bits a byte, whatever the paper prints.
    """
    if not experiment.language:
        return experiment
    own = scale.language[experiment.language].variant
    if own == experiment.language:
        return experiment
    rows = tuple(replace(r, label=label_at(own, r)) for r in experiment.rows if is_at_size(own, r))
    paper, metric = LANGUAGE_SIZES[experiment.language], METRICS["bits"]
    title = f"{experiment.title.removesuffix(paper)}{own} in place of {paper}"
    label = experiment.metric.label
    return replace(experiment, title=title, rows=rows, metric=metric, paper_label=label)


def label_at(size: str, row: PaperRow) -> str:
    """Returns a row's label with K and G of a size: "K = 1, G = 128 (paper: G = 512)"."""
    section = variants.model_section(language_variant(size, row))
    part = section["moe"] or section["top_k_mlp"] or {}
    own = {"K": part.get("num_selected_experts", part.get("num_active")), "G": part.get("mlp_dim")}
    label = K_OR_G.sub(lambda found: f"{found[1]} = {own[found[1]]}", row.label)
    others = [found[0] for found in K_OR_G.finditer(row.label) if found[0] not in label]
    return f"{label} (paper: {', '.join(others)})" if others else label


def is_at_size(size: str, row: PaperRow) -> bool:
    """Tells whether a size has a row's model: rows about dropout within experts need dropout."""
    options = variants.parse(f"wt_s,{row.variant}", variants.LANGUAGE).options
    return bool(sizes.LANGUAGE_SIZES[size]["dropout"]) or "hidden_dropout" not in options


def language_variant(size: str, row: PaperRow) -> str:
    """Returns the name of the language model of a size: "byte_s,preset=sigma_moe,selected=8"."""
    own = sizes.LANGUAGE_SIZES[size] | {"mlp_dim": sizes.LANGUAGE_SIZES[size]["width"]}
    options = [f"{name}={max(1, round(x * own[name]))}" for name, x in row.shape.items()]
    further = [f"entropy={row.entropy[size]}"] if size in row.entropy else []
    return ",".join([size, row.variant, *options, *further])


@functools.cache
def first_names(size: str) -> dict[str, str]:
    """Maps each row's name at a size to the first one that is the same model, as their run."""
    every = [one for one in EXPERIMENTS.values() if one.language and not one.contrasts]
    own = [one for one in EXPERIMENTS.values() if one.language == size]
    rows = [row for one in own or every for row in one.rows]
    names = [language_variant(size, row) for row in rows if is_at_size(size, row)]
    first: dict[str, str] = {}
    return {name: first.setdefault(repr(variants.model_section(name)), name) for name in names}


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
    settings = {VARIANT: run.variant, "seed": seed, **run.stage.settings}
    data = [f"--config.data.path={data_dir}/{run.stage.data}"] if run.stage.data else []
    all_flags = [*data, *(f"--config.{flag}" for flag in run.stage.flags), *flags]
    if run.backbone is None:
        return expand(run.stage.config, [settings], all_flags)[0]
    backbone = trial_of(run.backbone, seed, directory, data_dir, flags)
    from_backbone = settings | {"init_from": directory.workdir(backbone)}
    (trial,) = expand(run.stage.config, [from_backbone], all_flags)
    # The name leaves out the directory, so that a moved workdir still holds the same trials.
    named = settings | {"from": backbone.name.rpartition("-")[2]}
    return replace(trial, name=name_of(Path(run.stage.config).name, run.variant, named))
