"""The paper's experiments at three scales: which runs they are, and how the runs depend.

At every scale L is deeper than B and H deeper than L, half of L's blocks stand where the paper
halves them and twice the width where it doubles it. What differs is said in `Scale.about`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from widenet_jax.models.sizes import SIZES, parse_variant
from widenet_jax.tools.reproduce.experiments import Experiment, Row
from widenet_jax.tools.sweep.directory import Directory
from widenet_jax.tools.sweep.trials import VARIANT, Trial, expand, name_of

# Options that are numbers of blocks, features or groups, and the size's field they are a share of.
SHARE_OF = {"depth": "depth", "routing_groups": "depth", "mlp_dim": "mlp_dim"}


@dataclass(frozen=True)
class Stage:
    """A config file, the name of its image set under --data_dir ('' for none), fields to set."""

    config: str
    data: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scale:
    """
    Attributes:
      sizes: the paper's size -> (ours, its depth).
      pretrain: what Tables 1, 3, 4 and the figures train.
      backbone: what Table 5 starts from.
      finetune: what Table 5 trains.
      seeds: how many runs each model gets.
      topologies: slices that the plan is made for, of pretraining and finetuning; None where
        there is nothing to rent.
      about: what the images are.
    """

    sizes: dict[str, tuple[str, int]]
    pretrain: Stage
    backbone: Stage
    finetune: Stage
    seeds: int
    about: str
    topologies: tuple[str, str] | None = None


IMAGENET = Stage("configs/imagenet.py", "imagenet")
CIFAR10 = Stage("configs/cifar10.py", "cifar10")
TINY_IMAGENET = Stage("configs/tiny_imagenet.py", "tiny_imagenet")
_SHORT = ("duration=12 epochs", "optimizer.warmup=1 epoch", "evaluation.every=6 epochs")
DIGITS = Stage("configs/digits.py", "", (*_SHORT, "checkpoint.every=12 epochs"))

SCALES = {
    "paper": Scale(
        {size: (size, SIZES[size]["depth"]) for size in ("b", "l", "h")},
        *(IMAGENET, IMAGENET, CIFAR10),
        seeds=1,
        about="ImageNet-1K; finetuning on CIFAR-10 at 224 pixels",
        topologies=("v3-256", "v3-32"),
    ),
    "small": Scale(
        {"b": ("s", 4), "l": ("s", 8), "h": ("s", 12)},
        *(CIFAR10, TINY_IMAGENET, CIFAR10),
        seeds=3,
        about="CIFAR-10 from scratch, Table 5 from Tiny-ImageNet; 4, 8 and 12 blocks of width 128 "
        "(every second one of ViT-MoE with experts, which are as wide as the dense layers); 8 "
        "epochs of AdamW without mixup, RandAugment and dropout unless the command says otherwise",
    ),
    "smoke": Scale(
        {"b": ("tiny", 3), "l": ("tiny", 6), "h": ("tiny", 8)},
        *(DIGITS, DIGITS, DIGITS),
        seeds=1,
        about="8x8 digits, 12 epochs, 3, 6 and 8 blocks: shows that the command works, and nothing "
        "of what the paper claims",
    ),
}


@dataclass(frozen=True)
class Run:
    """A model trained at a scale; its seeds are trials.

    Attributes:
      stage: what trains it.
      variant: of the stage's config.
      backbone: the run it is finetuned from.
    """

    stage: Stage
    variant: str
    backbone: "Run | None" = None


def variant_at(scale: Scale, variant: str) -> str:
    """The paper's model at this scale: "widenet_l,depth=12" -> "widenet_s" for small.

    Numbers of blocks and widths keep their share of the size's own; what equals the size's own is
    left out, so that equal models are one run.
    """
    family, size, options = parse_variant(variant)
    name, depth = scale.sizes[size]
    own = SIZES[name] | {"depth": depth}
    for key, field in SHARE_OF.items():
        if key in options:
            options[key] = max(1, options[key] * own[field] // SIZES[size][field])
    options = {"depth": depth} | options
    anyway = SIZES[name] | {"routing_groups": options["depth"], "experts": 4}
    options = {key: value for key, value in options.items() if value != anyway.get(key)}
    texts = [f"{key}={str(value).lower()}" for key, value in options.items()]
    return ",".join([f"{family}_{name}", *texts])


def run_of(scale: Scale, experiment: Experiment, row: Row) -> Run:
    variant = variant_at(scale, row.variant)
    if experiment.finetuned:
        return Run(scale.finetune, variant, backbone=Run(scale.backbone, variant))
    return Run(scale.pretrain, variant)


def runs_of(scale: Scale, experiments: Iterable[Experiment]) -> list[Run]:
    """Every run once, backbones before what is finetuned from them."""
    wanted = [
        run_of(scale, experiment, row) for experiment in experiments for row in experiment.rows
    ]
    backbones = [run.backbone for run in wanted if run.backbone]
    first = [run for run in [*wanted, *backbones] if not run.backbone]
    return list(dict.fromkeys([*first, *wanted]))


def trial_of(
    run: Run, seed: int, directory: Directory, data_dir: str, flags: Sequence[str] = ()
) -> Trial:
    """One seed of a run.

    Args:
      run: what is trained.
      seed: of parameters, data order and dropout; a backbone's is that of the run on it.
      directory: where the trials' workdirs are, the backbone's among them.
      data_dir: holds the image sets.
      flags: `--config.FIELD=VALUE` that come after the stage's own.

    Raises:
      BadInputError: a flag that the config does not take.
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
    # Named without the directory, which may be moved, or called otherwise.
    named = settings | {"from": backbone.name.rpartition("-")[2]}
    return replace(trial, name=name_of(Path(run.stage.config).name, run.variant, named))
