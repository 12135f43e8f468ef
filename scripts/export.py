#!/usr/bin/env python3
"""Exports a trained model: its parameters, config, class names and a model card, as plain files.

  python scripts/export.py --workdir=runs/mine --out=exported/mine
  python scripts/export.py --workdir=runs/mine --out=exported/mine --format=npz

The directory goes wherever a workdir goes in evaluate.py, predict.py and analyze.py, and into
--config.init_from for finetuning. Exit codes: 0 done, 2 bad input, 3 no whole checkpoint.
"""

import argparse
import json
import sys

from widenet_jax.checkpoint.checkpoints import absolute
from widenet_jax.cli.parser import Parser, exit_code_of
from widenet_jax.weights.exported import FORMATS, write_exported
from widenet_jax.weights.trained import read_model


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code_of(lambda: export(parser().parse_args(arguments)))


def parser() -> Parser:
    own = Parser(__doc__)
    own.add_argument("--workdir", required=True, help="a run, or an exported directory")
    own.add_argument("--out", required=True, help="a new directory")
    own.add_argument("--format", choices=list(FORMATS), default="safetensors")
    own.add_argument("--json", action="store_true", help="print one JSON object")
    return own


def export(options: argparse.Namespace) -> None:
    model = read_model(options.workdir)
    write_exported(absolute(options.out), model, file_format=options.format)
    if options.json:
        print(json.dumps({"out": options.out, "format": options.format, "step": model.step}))
    else:
        print(f"{options.out}: step {model.step:,}, {FORMATS[options.format]}")


if __name__ == "__main__":
    sys.exit(main())
