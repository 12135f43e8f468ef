"""Prepares images or text for training, or shows what training will see of them.

  python scripts/prepare_data.py check photos/
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

import glob
import sys
from collections.abc import Callable
from typing import Any

import tqdm

from widenet_jax.cli.parser import Argv, Options, Parser, not_negative, positive, show
from widenet_jax.cli.prepare_check import add_check
from widenet_jax.cli.prepare_stream import add_stream_command
from widenet_jax.cli.prepare_text import add_text_commands
from widenet_jax.config.files import load_config, override
from widenet_jax.data import records
from widenet_jax.data.images import file_checks, files
from widenet_jax.data.images.folders import Holdout, counts_text
from widenet_jax.data.input_files import read_regular
from widenet_jax.data.prepare import archives, convert, npz
from widenet_jax.errors import BadExampleError, BadInputError, check_range
from widenet_jax.files import write_bytes

MOST_NAMED = 5  # unreadable images that the warning names


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
    damaged: list[str] = []
    if options.command == "tfds":
        builder = convert.prepare_tfds(options.name, options.data_dir)
        if not options.out:
            report(options, *tfds_counts(builder))
            return
        found = convert.read_tfds(builder)
    else:
        found = read_input(options, damaged)
    origin = getattr(options, "input", None) or getattr(options, "split", None) or options.name
    splits = {name: examined(name, found, damaged, options.skip_bad) for name in found.splits}
    manifest = records.write_set(
        options.out,
        splits,
        class_names=found.class_names,
        provenance={"converter": options.command, "input": origin},
        overwrite=options.overwrite,
    )
    counts = {name: entry["count"] for name, entry in manifest["splits"].items()}
    more = {"damaged": damaged, "left_out": found.left_out, "notes": found.notes}
    report(options, options.out, counts, classes=len(found.class_names), **more)
    if damaged:
        more = "" if len(damaged) <= MOST_NAMED else f" and {len(damaged) - MOST_NAMED:,} more"
        named = f"{'; '.join(damaged[:MOST_NAMED])}{more}"
        told = (
            f"left out {len(damaged):,} images that cannot be read: {named}"
            if options.skip_bad
            else f"packed as they are, but cannot be read: {named}. Training stops at such an "
            "image, or replaces it with --config.data.on_bad_example=skip; --skip_bad leaves them "
            "out here"
        )
        print(f"warning: {told}", file=sys.stderr)


def read_input(options: Options, damaged: list[str]) -> convert.Converted:
    """Opens the files that `options` name, by the reader of their format."""
    if options.command == "image_folder":
        holdout = Holdout(options.eval_fraction, field="eval_fraction")
        return convert.read_image_folder(
            options.input, holdout, damaged if options.skip_bad else None
        )
    if options.command == "cifar10_binary":
        return archives.read_cifar10_binary(options.input)
    files = split_files(options.split)
    if options.command == "tar":
        return archives.read_tar(files, options.labels)
    if options.command == "npz":
        return npz.read_npz(files)
    from widenet_jax.data.prepare import parquet  # pyarrow is slow to import

    columns = {"image_column": options.image_column, "label_column": options.label_column}
    return parquet.read_parquet(files, **columns)


def report(options: Options, place: str, counts: dict[str, int], **more: Any) -> None:
    """Prints what was written: a line, or one JSON object that names all unreadable images."""
    classes = f", {more['classes']} classes" if "classes" in more else ""
    images = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    facts = {"path": place, "images": counts, **more}
    lines = [f"{place}: {images} images{classes}", *more.get("notes", ())]
    if left_out := more.get("left_out"):
        lines.append(f"{left_out.total():,} files left out ({counts_text(left_out)})")
    show(options, facts, "\n".join(lines))


def tfds_counts(builder: Any) -> tuple[str, dict[str, int]]:
    """Returns where the prepared set is and its images per split.

    Raises:
      BadInputError: the set is stored in a format that training cannot read.
    """
    stored = builder.info.file_format.value
    if stored != "array_record":
        raise BadInputError(
            f"tfds {builder.name}: already prepared as {stored} in {builder.data_dir}, which "
            "training cannot read; pass --out DIR to pack it"
        )
    return str(builder.data_dir), {k: v.num_examples for k, v in builder.info.splits.items()}


def examined(
    split: str, found: convert.Converted, damaged: list[str], skip_bad: bool
) -> convert.Examples:
    """Yields the examples of a split under a progress bar; names unreadable ones in `damaged`.

    With `skip_bad` they are left out, and each image is decoded, which finds more damage.
    """
    examples = tqdm.tqdm(found.splits[split], desc=split, total=found.counts[split], unit="image")
    for number, (label, image) in enumerate(examples):
        where = f"image {number:,} of {split}"
        problem = None
        if skip_bad:
            try:
                files.decode(image, where)
            except BadExampleError as error:
                problem = str(error)
        elif visible := file_checks.examine(image).problem:
            problem = f"{where}: {visible}"
        if problem:
            damaged.append(problem)
            if skip_bad:
                continue
        yield label, image


def split_files(options: list[str]) -> dict[str, list[str]]:
    """Maps NAME=FILE[,FILE...] options to {name: [file]}, wildcards expanded.

    Raises:
      BadInputError: an option of another form, or without a file.
    """
    files: dict[str, list[str]] = {}
    for option in options:
        name, separator, patterns = option.partition("=")
        if not separator or not name.isidentifier():
            raise BadInputError(f"--split {option}: expected NAME=FILE[,FILE...]")
        for pattern in patterns.split(","):
            found = sorted(glob.glob(pattern))
            if not found:
                raise BadInputError(f"--split {option}: no file {pattern}")
            files.setdefault(name, []).extend(found)
    return files


def show_preview(options: Options) -> None:
    """Draws augmented images of a config or every operation on a photo, or prints masked text."""
    config = None
    if options.config:
        config = override(load_config(options.config), options.fields)
        if "augment" not in config:
            from widenet_jax.data.prepare.text_preview import PREVIEWS

            if config.task.name not in PREVIEWS:
                known = " or ".join(PREVIEWS)
                raise BadInputError(
                    f"config.task.name={config.task.name}: no preview; needs {known}"
                )
            preview = PREVIEWS[config.task.name]
            sizes = {"num_records": options.num, "num_draws": options.draws or 2}
            for line in preview(config, seed=options.seed, **sizes):
                print(line)
            return
    if not options.out:
        raise BadInputError("preview of images needs --out=PNG")
    draw_images(options, config)


def tell(line: str) -> None:
    print(line, file=sys.stderr)


def draw_images(options: Options, config: Any) -> None:
    """Draws augmented images of a config, or without one every operation on a photo."""
    import cv2
    import numpy as np

    from widenet_jax.tools.analysis import preview  # imports JAX

    if config is None:
        check_range("--magnitude", options.magnitude, 0.0, 30.0)
        photo = read_regular(options.operations)
        image = files.decode(photo, options.operations)
        picture = preview.operations_sheet(image, options.magnitude, options.size, options.seed)
    else:
        sizes = {"num_images": options.num, "num_draws": options.draws or 6}
        picture = preview.augmentation_grid(config, seed=options.seed, note=tell, **sizes)
    png = cv2.imencode(".png", np.ascontiguousarray(picture[..., ::-1]))[1]
    write_bytes(options.out, png.tobytes())
    print(f"{options.out}: {picture.shape[1]} x {picture.shape[0]} pixels")
