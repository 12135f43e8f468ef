"""Prepares images or text for training, or shows what training will see of them.

  python scripts/prepare_data.py check photos/                      (or texts, tables, prepared sets)
  python scripts/prepare_data.py image_folder --input photos/ --eval_fraction 0.1 --out packed/
  python scripts/prepare_data.py tar --split train=ILSVRC2012_img_train.tar --out packed/
  python scripts/prepare_data.py webdataset --split 'train=train-{0000..1023}.tar' --out packed/
  python scripts/prepare_data.py parquet --split train=train-*.parquet --split test=test-*.parquet --out packed/
  python scripts/prepare_data.py cifar10_binary --input cifar-10-binary.tar.gz --out packed/
  python scripts/prepare_data.py cifar_python --input cifar-100-python.tar.gz --out packed/
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
import itertools
import os
from typing import Any

from widenet_jax.config.fields import override
from widenet_jax.config.files import load_config
from widenet_jax.config.parser import Argv, Options, Parser, not_negative, picture, positive, show
from widenet_jax.corpus.readers import FORMATS
from widenet_jax.errors import choose, refuse
from widenet_jax.files import is_remote
from widenet_jax.specs import resolve, task_spec, task_specs

# Each adds subcommands to the parser: `add_commands(commands)`.
COMMANDS = (
    "widenet_jax.vision.prepare.command",
    "widenet_jax.text.prepare.command",
    "widenet_jax.language.prepare.command",
)
CHECK = """Reads data to its end and names all that training or a preparation could not read.

PATH is an image or a folder with images; files of many images (.tar, .npz, .parquet), whose names
begin with their splits; a set that this command has prepared; or a text file or a folder of them,
all but hidden files: text, JSON lines and parquet as the commands text and stream read them, .tsv
and .csv tables (with --label_column also the others), and SQuAD's JSON. Where a training split lies
among others, a class that it lacks is a mistake, as in a run. A table
that has texts but no label column, as GLUE's test.tsv, is named and passes, unless no table has the
given --label_column. A language model of bytes reads text of any encoding."""
COLUMNS = ("text_column", "pair_column", "label_column", "label_names")
SHOWN = 20  # mistakes of a file or split; --json has all
# Each checks a path, or returns None of a path that is not for it: (path, options).
CHECKS = ("widenet_jax.vision.prepare.check:findings", "widenet_jax.text.prepare.check:check")
# Kind of a prepared set -> what reads it to its end: (directory, splits).
SETS = {
    "images": "widenet_jax.vision.prepare.check:findings_in_packed",
    "text": "widenet_jax.text.prepare.check:check_set",
    "stream": "widenet_jax.language.prepare.preparation:check_set",
}


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
    add("--config", metavar="FILE[:VARIANT]", required=True, help="whose images or texts to show")
    add("--out", type=picture, metavar="FILE.png", help="the file to write, for images")
    add("--num", type=positive, default=6, metavar="N", help="images (rows), or texts")
    add("--draws", type=positive, metavar="N", help="augmentations of each (6), or masks (2)")
    add("--seed", type=not_negative, default=0)


def preview(options: Options) -> None:
    """Shows training examples of a config.

    Raises:
      BadInputError: the config's task has no preview.
    """
    config = override(load_config(options.config), options.fields)
    spec = task_spec(config.task.name)
    known = " or ".join(other.name for other in task_specs() if other.preview)
    refuse(f"config.task.name={spec.name}", (not spec.preview, f"no preview; needs {known}"))
    resolve(spec.preview)(config, options)


def add_check(commands: Any) -> None:
    """Adds the subcommand that names what cannot be read."""
    what = "name the images, texts and records that cannot be read"
    command = commands.add_parser("check", help=what, description=CHECK, takes_fields=False)
    command.set_defaults(work=read_to_the_end)
    add = command.add_argument
    add("path", metavar="PATH")
    add("--format", choices=["auto", *FORMATS], default="auto", help="of text files")
    for name in COLUMNS:
        add(f"--{name}", default="", metavar="NAME", help=f"config.data.{name} of a table")
    add("--scores", action="store_true", help="labels are numbers to learn, not classes")
    add("--labels", metavar="FILE", help="of an archive without folders, as for the command tar")
    add("--json", action="store_true", help="print one JSON object")


def read_to_the_end(options: Options) -> None:
    """Prints a line for each file, line or record that training would not read, and the notes.

    Raises:
      BadInputError: some cannot be read, or there is nothing to check.
    """
    from widenet_jax.corpus.inputs import TFDS_INFO
    from widenet_jax.data.records import MANIFEST, read_manifest

    path = options.path
    of_tfds = os.path.exists(os.path.join(path, TFDS_INFO))
    preview_it = "look at its examples by scripts/prepare_data.py preview"
    refuse(
        path,
        (is_remote(path), "check reads local files; copy it here and check the copy"),
        (not os.path.exists(path), "no such file or directory"),
        (of_tfds, f"a set of TFDS, which a run checks as it opens it; {preview_it}"),
    )
    if os.path.exists(os.path.join(path, MANIFEST)):
        manifest = read_manifest(path, None)
        kind, field = manifest.get("kind", "images"), f"{path}/{MANIFEST}: kind"
        checked = resolve(choose(SETS, kind, field=field))(path, [*manifest["splits"]])
    else:
        checked = next(filter(None, (resolve(check)(path, options) for check in CHECKS)))
    lines = []
    for place, problems in checked.problems.items():
        lines += problems[:SHOWN]
        if len(problems) > SHOWN:
            lines.append(f"{place}: {len(problems) - SHOWN:,} more (--json lists all)")
    every, notes = list(itertools.chain.from_iterable(checked.problems.values())), [*checked.notes]
    text = f"{path}: {checked.what}; {len(every):,} problems"
    result = {"path": path, "read": checked.what, "problems": every, "notes": notes}
    show(options, result, "\n".join([*lines, *notes, text]))
    refuse(path, (every, f"{len(every):,} problems; {checked.advice}"))
