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
  python scripts/prepare_data.py preview --operations photo.jpg --magnitude 15 --out sheet.png

Train on a prepared text with --config.data.source=text --config.data.path=prepared/, on a stream
with --config.data.source=token_stream --config.data.path=enwik8_set/, on a packed image set with
--config.data.source=array_record --config.data.path=packed/, on a TFDS set with
--config.data.source=tfds --config.data.name=cifar10 --config.data.path=tfds/.
Exit codes: 0 done, 2 your input (one line on stderr).
"""  # noqa: E501

from collections.abc import Callable
from typing import Any

from widenet_jax.cli.prepare_check import add_check
from widenet_jax.config.files import load_config, override
from widenet_jax.config.parser import Argv, Options, Parser, not_negative, positive
from widenet_jax.errors import BadInputError
from widenet_jax.language.prepare.command import add_stream_command
from widenet_jax.text.prepare.command import add_text_commands


def main(argv: Argv = None) -> int:
    """Runs one subcommand and returns its exit code."""
    parser = Parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_converters(commands)
    add_check(commands)
    add_text_commands(commands)
    add_stream_command(commands)
    text = "a PNG of augmented images or of every operation; masked or streamed text, printed"
    view = commands.add_parser("preview", help=text, description=text)
    view.set_defaults(work=show_preview)
    add = view.add_argument
    what = view.add_mutually_exclusive_group(required=True)
    text = "draw this config's images, or print its texts"
    what.add_argument("--config", metavar="FILE[:VARIANT]", help=text)
    what.add_argument("--operations", metavar="IMAGE", help="draw every operation on this photo")
    add("--out", metavar="PNG", help="the file to write, for images")
    add("--num", type=positive, default=6, metavar="N", help="images (rows), or texts")
    text = "augmentations of each (default 6), or masks (2)"
    add("--draws", type=positive, metavar="N", help=text)
    add("--magnitude", type=float, default=15.0, metavar="M", help="for --operations")
    add("--size", type=positive, default=224, metavar="PIXELS", help="for --operations")
    add("--seed", type=not_negative, default=0)
    return parser.run(lambda options: options.work(options), argv)


def add_converters(commands: Any) -> None:
    """Adds a subcommand for each format that image sets come in."""

    def converter(name: str, text: str, place: str) -> Callable[..., Any]:
        command = commands.add_parser(name, help=text, description=text, takes_fields=False)
        command.set_defaults(work=pack)
        add = command.add_argument
        if place == "--split":
            text = "files of one split, joined in order; wildcards allowed; repeat for others"
            add("--split", action="append", required=True, metavar="NAME=FILE,...", help=text)
        elif place == "--input":
            add("--input", required=True, metavar="PATH")
        add("--out", required=name != "tfds", metavar="DIR", help="where the packed set goes")
        add("--overwrite", action="store_true", help="replace a set that is there")
        add("--skip_bad", action="store_true", help="leave out images that cannot be read")
        add("--json", action="store_true", help="print one JSON object")
        return add

    add = converter(
        "image_folder", "folders INPUT/SPLIT/CLASS/*.jpg or INPUT/CLASS/*.jpg", "--input"
    )
    text = "of INPUT/CLASS/*.jpg, the part that becomes the split val, by file name"
    add("--eval_fraction", type=float, default=0.0, metavar="SHARE", help=text)
    text = "tar archives of class folders, or of one archive a class"
    add = converter("tar", text, "--split")
    text = 'for an archive without folders: a file of lines "image-file-name class"'
    add("--labels", metavar="FILE", help=text)
    add = converter("parquet", "Hugging Face image parquet files", "--split")
    add("--image-column", default="image")
    add("--label-column", default="label")
    converter("cifar10_binary", "the official cifar-10-binary.tar.gz", "--input")
    converter("npz", "packs of jpeg, offsets, labels, class_names", "--split")
    text = "prepare a TensorFlow Datasets image set as array_record, or pack it into --out "
    add = converter("tfds", text + "(needs TensorFlow)", "NAME")
    add("name", help="e.g. cifar10 or imagenet2012")
    add("--data-dir", metavar="DIR", help="TFDS's data directory")


def pack(options: Options) -> None:
    """Converts the set that `options` name into ArrayRecord files."""
    from widenet_jax.vision.prepare import command as prepare_images

    prepare_images.pack(options)


def show_preview(options: Options) -> None:
    """Draws augmented images of a config or every operation on a photo, or prints masked text."""
    config = None
    if options.config:
        config = override(load_config(options.config), options.fields)
        if "augment" not in config:
            from widenet_jax.text.prepare.preview import PREVIEWS

            if config.task.name not in PREVIEWS:
                known = " or ".join(PREVIEWS)
                raise BadInputError(
                    f"config.task.name={config.task.name}: no preview; needs {known}"
                )
            preview = PREVIEWS[config.task.name]
            for line in preview(
                config, seed=options.seed, num_records=options.num, num_draws=options.draws or 2
            ):
                print(line)
            return
    if not options.out:
        raise BadInputError("preview of images needs --out=PNG")
    from widenet_jax.vision.prepare.command import draw_images

    draw_images(options, config)
