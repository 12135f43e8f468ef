"""Measures wall-clock times on the devices of this machine.

  python scripts/benchmark.py train_step --config configs/digits.py:widenet_tiny
  python scripts/benchmark.py train_step --config configs/imagenet.py:widenet_l \\
      --config.batch_size=256 --config.model.moe.dispatch=gather
  python scripts/benchmark.py dispatch --images 16 --tokens 196 --examples_per_group 1 16
  python scripts/benchmark.py input --path DIR       JPEGs in DIR/train/CLASS/; beside tf.data where
                                                     TensorFlow is installed
  python scripts/benchmark.py text --config configs/text_pretrain.py:albert \\
      --config.data.path=DIR                         reading and masking a text set; beside
                                                     transformers where it is installed
  python scripts/benchmark.py checkpoint --config configs/imagenet.py:widenet_b --out DIR
                                                     saving to, and restoring from, a disk

Prints a table, or with --json a JSON list; --picture=FILE.png draws it. Exit codes: 0 done, 2 your
input, 3 the device ran out of memory.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widenet_jax.cli.parser import Parser, exit_code_of, not_negative, positive, seconds
from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError
from widenet_jax.weights.stored import set_fields

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from widenet_jax.experiment import DataFacts

Rows = list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return exit_code_of(lambda: run(*parser().read(argv)))


def parser() -> Parser:
    """Returns the parser of all benchmarks, each a subcommand."""
    made = Parser(__doc__)
    kinds = made.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")

    def kind(name: str, text: str) -> Parser:
        sub = kinds.add_parser(name, help=text)
        sub.add_argument("--json", action="store_true", help="print JSON and nothing else")
        sub.add_argument("--picture", type=Path, help="draw the table into this PNG file")
        sub.add_argument("--rounds", type=positive, default=5, help="rounds; the median counts")
        return sub

    def numbers(sub: Parser, **defaults: Sequence[int]) -> None:
        for name, default in defaults.items():
            sub.add_argument(f"--{name}", type=positive, nargs="+", default=list(default))

    def pipeline(sub: Parser) -> None:
        sub.add_argument("--batch_size", type=positive, default=64)
        sub.add_argument("--seconds", type=seconds, default=5.0, help="of each round")
        sub.add_argument(
            "--workers", type=not_negative, nargs="+", default=[0, 2], help="0 for threads"
        )

    def configs(sub: Parser) -> None:
        sub.add_argument("--config", nargs="+", required=True, metavar="FILE[:VARIANT]")
        sub.add_argument("--num_examples", type=positive, help="of a data set that is not known")
        sub.add_argument("--num_classes", type=positive, help="likewise")

    step = kind("train_step", "examples/s, MFU, memory and compile time of training")
    configs(step)
    step.add_argument("--steps", type=positive, default=10, help="steps in each round")

    checkpoint = kind("checkpoint", "time and bytes of saving and restoring")
    configs(checkpoint)
    checkpoint.add_argument("--out", type=Path, required=True, help="a new directory to write to")

    dispatch = kind("dispatch", "dispatch methods over sizes; every combination of the numbers")
    dispatch.add_argument("--method", nargs="+", help="all by default")
    dispatch.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    numbers(dispatch, images=[16], tokens=[196], examples_per_group=[1, 16], experts=[4])
    numbers(dispatch, selected=[2], embed_dim=[768], mlp_dim=[3072])

    images = kind("input", "images/s of reading and augmenting JPEGs, beside tf.data")
    images.add_argument("--path", required=True, help="an image folder: PATH/SPLIT/CLASS/x.jpg")
    images.add_argument("--split", default="train")
    images.add_argument("--image_size", type=positive, default=224)
    pipeline(images)

    text = kind("text", "sequences/s of reading and masking a text set, beside transformers")
    text.add_argument("--config", required=True, metavar="FILE[:VARIANT]")
    pipeline(text)
    return made


def run(options: argparse.Namespace, fields: Sequence[str]) -> None:
    """Measures, prints and draws."""
    of_configs = {"train_step": train_step, "checkpoint": checkpoint, "text": text_pipeline}
    if options.benchmark in of_configs:
        rows = of_configs[options.benchmark](options, fields)
    elif fields:
        raise BadInputError(f"{fields[0]}: {options.benchmark} sets no field of a config")
    else:
        rows = {"dispatch": dispatch, "input": input_pipeline}[options.benchmark](options)
    from widenet_jax.tools.benchmark.report import draw, table

    print(json.dumps(rows) if options.json else table(rows))
    if options.picture:
        draw(options.benchmark, rows, options.picture)


def read_configs(
    options: argparse.Namespace, fields: Sequence[str]
) -> list[tuple[str, "ConfigDict", "DataFacts"]]:
    """Returns (name, config, facts about its data) for each --config."""
    configs = [load_config(name) for name in options.config]
    for config in configs:
        set_fields(config, fields)
    from widenet_jax.tools.plan.facts import data_facts

    known = {key: getattr(options, key) for key in ("num_examples", "num_classes")}
    facts = [data_facts(config, **known) for config in configs]
    return list(zip(options.config, configs, facts, strict=True))


def train_step(options: argparse.Namespace, fields: Sequence[str]) -> Rows:
    configs = read_configs(options, fields)
    import jax

    from widenet_jax.tools.benchmark.train_step import train_step_row

    sizes = {"rounds": options.rounds, "steps": options.steps}
    return [train_step_row(*config, jax.devices(), **sizes) for config in configs]


def checkpoint(options: argparse.Namespace, fields: Sequence[str]) -> Rows:
    configs = read_configs(options, fields)
    if options.out.exists():
        raise BadInputError(f"--out={options.out} exists; give a new directory")
    import jax

    from widenet_jax.files import absolute
    from widenet_jax.tools.benchmark.checkpoint import checkpoint_row

    rows = []
    for number, config in enumerate(configs):
        workdir = absolute(str(options.out / str(number)))
        rows.append(checkpoint_row(*config, jax.devices(), workdir=workdir, rounds=options.rounds))
    return rows


def dispatch(options: argparse.Namespace) -> Rows:
    from widenet_jax.moe.dispatch import DISPATCHERS
    from widenet_jax.tools.benchmark.dispatch import LayerSize, dispatch_row, sizes

    choices = {name: getattr(options, name) for name in LayerSize.__annotations__}
    rows = [
        dispatch_row(method, size, dtype=options.dtype, rounds=options.rounds)
        for size in sizes(**choices)
        for method in options.method or DISPATCHERS
    ]
    if not rows:
        raise BadInputError(
            "no combination makes sense: --examples_per_group must divide --images, and --selected "
            "be at most --experts"
        )
    return rows


def input_pipeline(options: argparse.Namespace) -> Rows:
    from widenet_jax.tools.benchmark.input_pipeline import input_rows

    names = ("image_size", "batch_size", "workers", "rounds", "seconds")
    sizes = {name: getattr(options, name) for name in names}
    return input_rows(options.path, options.split, **sizes)


def text_pipeline(options: argparse.Namespace, fields: Sequence[str]) -> Rows:
    config = load_config(options.config)
    set_fields(config, fields)
    if config.data.source != "text":
        raise BadInputError(f"--config={options.config} does not read a prepared text set")
    from widenet_jax.tools.benchmark.text_pipeline import text_rows

    names = ("batch_size", "workers", "rounds", "seconds")
    return text_rows(config, **{name: getattr(options, name) for name in names})
