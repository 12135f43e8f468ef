#!/usr/bin/env python3
"""Wall clock on the devices at hand.

  python scripts/benchmark.py train_step --config configs/digits.py:widenet_tiny
  python scripts/benchmark.py train_step --config configs/imagenet.py:widenet_l \\
      --config.batch_size=256 --config.model.moe.dispatch=gather
  python scripts/benchmark.py dispatch --images 16 --tokens 196 --images_per_group 1 16
  python scripts/benchmark.py input --path DIR       JPEGs in DIR/train/CLASS/; beside tf.data where
                                                     TensorFlow is installed
  python scripts/benchmark.py checkpoint --config configs/imagenet.py:widenet_b --out DIR
                                                     saving to, and restoring from, a disk

Each prints a table, or with --json a JSON list; --picture=FILE.png draws it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widenet_jax.cli.parser import Parser, exit_code_of, positive
from widenet_jax.config.files import load_config, override
from widenet_jax.errors import BadInputError

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from widenet_jax.experiment import DataFacts

Rows = list[dict[str, Any]]


def parser() -> Parser:
    own = Parser(__doc__)
    kinds = own.add_subparsers(dest="benchmark", required=True)

    def kind(name: str, text: str) -> Parser:
        sub = kinds.add_parser(name, help=text)
        sub.add_argument("--json", action="store_true", help="print JSON and nothing else")
        sub.add_argument("--picture", type=Path, help="draw the table into this PNG file")
        sub.add_argument("--rounds", type=positive, default=5, help="the median of which counts")
        return sub

    def numbers(sub: Parser, **defaults: Sequence[int]) -> None:
        for name, default in defaults.items():
            sub.add_argument(f"--{name}", type=positive, nargs="+", default=list(default))

    def configs(sub: Parser) -> None:
        sub.add_argument("--config", nargs="+", required=True, metavar="FILE[:VARIANT]")
        sub.add_argument("--num_examples", type=positive, help="of an image set that is not known")
        sub.add_argument("--num_classes", type=positive, help="likewise")

    step = kind("train_step", "images/s, MFU, memory and compile time of training")
    configs(step)
    step.add_argument("--steps", type=positive, default=10, help="in a row a round")

    checkpoint = kind("checkpoint", "what saving and restoring take, and how much is written")
    configs(checkpoint)
    checkpoint.add_argument("--out", type=Path, required=True, help="a new directory to write to")

    dispatch = kind("dispatch", "dispatch methods over sizes; every combination of the numbers")
    dispatch.add_argument("--method", nargs="+", help="all by default")
    dispatch.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    numbers(dispatch, images=[16], tokens=[196], images_per_group=[1, 16], experts=[4])
    numbers(dispatch, selected=[2], embed_dim=[768], mlp_dim=[3072])

    images = kind("input", "images/s of reading and augmenting JPEGs, beside tf.data")
    images.add_argument("--path", required=True, help="an image folder: PATH/SPLIT/CLASS/x.jpg")
    images.add_argument("--split", default="train")
    images.add_argument("--image_size", type=positive, default=224)
    images.add_argument("--batch_size", type=positive, default=64)
    images.add_argument("--seconds", type=float, default=5.0, help="a turn")
    images.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="0 for threads")
    return own


def read_configs(
    arguments: argparse.Namespace, overrides: Sequence[str]
) -> list[tuple[str, "ConfigDict", "DataFacts"]]:
    """(name, config, facts about its data) of every --config."""
    configs = [load_config(name) for name in arguments.config]
    for config in configs:
        override(config, ["benchmark.py", *overrides])
    from widenet_jax.tools.plan.facts import data_facts

    known = {key: getattr(arguments, key) for key in ("num_examples", "num_classes")}
    facts = [data_facts(config, **known) for config in configs]
    return list(zip(arguments.config, configs, facts, strict=True))


def train_step(arguments: argparse.Namespace, overrides: Sequence[str]) -> Rows:
    configs = read_configs(arguments, overrides)
    import jax

    from widenet_jax.tools.benchmark.train_step import train_step_row

    sizes = {"rounds": arguments.rounds, "steps": arguments.steps}
    return [train_step_row(*config, jax.devices(), **sizes) for config in configs]


def checkpoint(arguments: argparse.Namespace, overrides: Sequence[str]) -> Rows:
    configs = read_configs(arguments, overrides)
    if arguments.out.exists():
        raise BadInputError(f"--out={arguments.out} exists; give a new directory")
    import jax

    from widenet_jax.checkpoint.checkpoints import absolute
    from widenet_jax.tools.benchmark.checkpoint import checkpoint_row

    return [
        checkpoint_row(
            *config,
            jax.devices(),
            workdir=absolute(str(arguments.out / str(number))),
            rounds=arguments.rounds,
        )
        for number, config in enumerate(configs)
    ]


def dispatch(arguments: argparse.Namespace) -> Rows:
    from widenet_jax.moe.dispatch import DISPATCHERS
    from widenet_jax.tools.benchmark.dispatch import dispatch_row, sizes

    names = ("images", "tokens", "images_per_group", "experts", "selected", "embed_dim", "mlp_dim")
    choices = {name: getattr(arguments, name) for name in names}
    rows = [
        dispatch_row(method, size, dtype=arguments.dtype, rounds=arguments.rounds)
        for size in sizes(**choices)
        for method in arguments.method or DISPATCHERS
    ]
    if not rows:
        raise BadInputError(
            "no combination makes sense: --images_per_group must divide --images, and --selected "
            "be at most --experts"
        )
    return rows


def input_pipeline(arguments: argparse.Namespace) -> Rows:
    from widenet_jax.tools.benchmark.input_pipeline import input_rows

    return input_rows(
        arguments.path,
        arguments.split,
        image_size=arguments.image_size,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
    )


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 2 for a mistake, 3 where the device ran out of memory."""
    return exit_code_of(lambda: measure(*parser().parse_known_args(argv)))


def measure(arguments: argparse.Namespace, rest: Sequence[str]) -> None:
    """Measures, prints and draws."""
    if arguments.benchmark in ("train_step", "checkpoint"):
        of_configs = {"train_step": train_step, "checkpoint": checkpoint}
        rows = of_configs[arguments.benchmark](arguments, rest)
    elif rest:
        raise BadInputError(f"there is no flag {rest[0]}; --help lists the flags")
    else:
        rows = {"dispatch": dispatch, "input": input_pipeline}[arguments.benchmark](arguments)
    from widenet_jax.tools.benchmark.report import draw, table

    print(json.dumps(rows) if arguments.json else table(rows))
    if arguments.picture:
        draw(arguments.benchmark, rows, arguments.picture)


if __name__ == "__main__":  # worker processes import this file again
    sys.exit(main(sys.argv[1:]))
