"""Prepares images or text for training, or shows what training will see of them.

  python scripts/prepare_data.py check photos/                      (or texts, tables, prepared sets)
  python scripts/prepare_data.py image_folder --input photos/ --eval_fraction 0.1 --out packed/
  python scripts/prepare_data.py tar --split train=ILSVRC2012_img_train.tar --out packed/
  python scripts/prepare_data.py parquet --split train=train-*.parquet --split test=test-*.parquet --out packed/
  python scripts/prepare_data.py cifar10_binary --input cifar-10-binary.tar.gz --out packed/
  python scripts/prepare_data.py npz --split train=a.npz,b.npz --split test=c.npz --out packed/
  python scripts/prepare_data.py tfds cifar10 --data-dir tfds/           (needs TensorFlow)
  python scripts/prepare_data.py tokenizer wiki/*.txt.gz --vocab_size 30000 --out tokenizer.json
  python scripts/prepare_data.py text wiki/*.txt.gz --tokenizer tokenizer.json --out prepared/
  python scripts/prepare_data.py stream enwik8 --splits train=90M,valid=5M,test=5M --out enwik8_set/
  python scripts/prepare_data.py preview --config configs/digits.py --out grid.png
  python scripts/prepare_data.py preview --config configs/text_pretrain.py --config.data.path=prepared/

Train on a prepared text with --config.data.source=text --config.data.path=prepared/, on a stream
with --config.data.source=token_stream --config.data.path=enwik8_set/, on a packed image set with
--config.data.source=array_record --config.data.path=packed/, on a TFDS set with
--config.data.source=tfds --config.data.name=cifar10 --config.data.path=tfds/.
Exit codes: 0 done, 2 your input (one line on stderr).
"""  # noqa: E501

import importlib
from typing import Any

from widenet_jax.cli.prepare_check import add_check
from widenet_jax.config.fields import override
from widenet_jax.config.files import load_config
from widenet_jax.config.parser import Argv, Options, Parser, not_negative, positive
from widenet_jax.errors import BadInputError
from widenet_jax.specs import resolve, task_spec, task_specs

# Each adds subcommands to the parser: `add_commands(commands)`.
COMMANDS = (
    "widenet_jax.vision.prepare.command",
    "widenet_jax.text.prepare.command",
    "widenet_jax.language.prepare.command",
)


def main(argv: Argv = None) -> int:
    """Runs one subcommand and returns its exit code."""
    parser = Parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_check(commands)
    for module in COMMANDS:
        importlib.import_module(module).add_commands(commands)
    add_preview(commands)
    return parser.run(lambda options: resolve(options.work)(options), argv)


def add_preview(commands: Any) -> None:
    """Adds the subcommand that shows training examples."""
    text = "a PNG of augmented images; masked or streamed text, printed"
    view = commands.add_parser("preview", help=text, description=text)
    view.set_defaults(work=preview)
    add = view.add_argument
    text = "draw this config's images, or print its texts"
    add("--config", metavar="FILE[:VARIANT]", required=True, help=text)
    add("--out", metavar="PNG", help="the file to write, for images")
    add("--num", type=positive, default=6, metavar="N", help="images (rows), or texts")
    text = "augmentations of each (default 6), or masks (2)"
    add("--draws", type=positive, metavar="N", help=text)
    add("--seed", type=not_negative, default=0)


def preview(options: Options) -> None:
    """Shows training examples of a config.

    Raises:
      BadInputError: the config's task has no preview.
    """
    config = override(load_config(options.config), options.fields)
    spec = task_spec(config.task.name)
    if spec.preview is None:
        known = " or ".join(other.name for other in task_specs() if other.preview)
        raise BadInputError(f"config.task.name={spec.name}: no preview; needs {known}")
    resolve(spec.preview)(config, options)
