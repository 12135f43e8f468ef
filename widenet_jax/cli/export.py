"""Exports an image classifier: parameters, config, class names and a model card, as plain files.

  python scripts/export.py --workdir=runs/mine --out=exported/mine
  python scripts/export.py --workdir=runs/mine --out=exported/mine --format=npz

evaluate.py, predict.py and analyze.py take the directory as their --workdir, and a run finetunes
it with --config.init_from. Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

import argparse
import json
from collections.abc import Sequence

from widenet_jax.cli.parser import Parser, exit_code_of
from widenet_jax.errors import choose


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return exit_code_of(lambda: export(parser().read(argv, takes_fields=False)[0]))


def parser() -> Parser:
    made = Parser(__doc__)
    add = made.add_argument
    add("--workdir", required=True, metavar="DIR", help="of a run, or an exported model")
    add("--out", required=True, metavar="DIR", help="a new directory")
    add("--format", default="safetensors", help="safetensors or npz")
    add("--json", action="store_true", help="print one JSON object")
    return made


def export(options: argparse.Namespace) -> None:
    from widenet_jax.files import absolute
    from widenet_jax.weights.exported import FORMATS, check_image_classifier, write_exported
    from widenet_jax.weights.trained import read_model

    file = choose(FORMATS, options.format, field="format")
    model = read_model(options.workdir)
    check_image_classifier(model, options.workdir)
    write_exported(absolute(options.out), model, file_format=options.format)
    if options.json:
        print(json.dumps({"out": options.out, "format": options.format, "step": model.step}))
    else:
        print(f"{options.out}: step {model.step:,}, {file}")
