"""Packs an image set for training, or draws what training will see. See docs and --help.

  python scripts/prepare_data.py image_folder --input imagenet/ --out packed/
  python scripts/prepare_data.py tar --split train=ILSVRC2012_img_train.tar --out packed/
  python scripts/prepare_data.py parquet --split train=train-*.parquet --split test=test-*.parquet --out packed/
  python scripts/prepare_data.py cifar10_binary --input cifar-10-binary.tar.gz --out packed/
  python scripts/prepare_data.py npz --split train=a.npz,b.npz --split test=c.npz --out packed/
  python scripts/prepare_data.py tfds cifar10 --data-dir tfds/           (needs TensorFlow)
  python scripts/prepare_data.py preview --config configs/digits.py --out grid.png
  python scripts/prepare_data.py preview --operations photo.jpg --magnitude 15 --out sheet.png

Train on a packed set with --config.data.source=array_record --config.data.path=packed/, on a TFDS
set with --config.data.source=tfds --config.data.name=cifar10 --config.data.path=tfds/.
Exit codes: 0 done, 2 bad input (one line on stderr).
"""  # noqa: E501

import argparse
import glob
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import tqdm

from widenet_jax.cli.parser import Parser, exit_code_of, positive
from widenet_jax.config.files import load_config, override
from widenet_jax.data import records
from widenet_jax.data.images import file_checks, files
from widenet_jax.data.prepare import archives, convert, preview
from widenet_jax.errors import BadInputError

MOST_NAMED = 5  # damaged images


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand; returns the exit code."""
    return exit_code_of(lambda: _run(*_parser().parse_known_args(arguments)))


def _run(options: argparse.Namespace, rest: list[str]) -> None:
    if options.command == "preview":
        _preview(options, rest)
    elif rest:
        raise BadInputError(f"there is no flag {rest[0]}; --help lists the flags")
    else:
        _convert(options)


def _parser() -> Parser:
    parser = Parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def converter(name: str, help_text: str, **takes: bool) -> Parser:
        command = commands.add_parser(name, help=help_text, description=help_text)
        if takes.get("splits"):
            command.add_argument(
                "--split",
                action="append",
                required=True,
                metavar="NAME=FILE[,FILE...]",
                help="files of one split, joined in order; wildcards allowed; repeat for others",
            )
        if takes.get("input"):
            command.add_argument("--input", required=True)
        command.add_argument("--out", required=name != "tfds", help="directory to write")
        command.add_argument("--overwrite", action="store_true", help="replace a set that is there")
        command.add_argument("--json", action="store_true", help="print one JSON object")
        return command

    converter("image_folder", "folders INPUT/SPLIT/CLASS/*.jpg", input=True)
    tar = converter("tar", "tar archives of class folders, or of one archive a class", splits=True)
    tar.add_argument("--labels", help='for flat archives: a file of lines "image-file-name class"')
    parquet = converter("parquet", "Hugging Face image parquet files", splits=True)
    parquet.add_argument("--image-column", default="image")
    parquet.add_argument("--label-column", default="label")
    converter("cifar10_binary", "the official cifar-10-binary.tar.gz", input=True)
    converter("npz", "packs of jpeg, offsets, labels, class_names", splits=True)
    tfds = converter(
        "tfds",
        "prepare a TensorFlow Datasets image set as array_record, or pack it into --out "
        "(needs TensorFlow)",
    )
    tfds.add_argument("name", help="e.g. cifar10 or imagenet2012")
    tfds.add_argument("--data-dir", help="TFDS's data directory")

    view = commands.add_parser("preview", help="a PNG of augmented images, or of every operation")
    what = view.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE[:ARGUMENT]", help="draw this config's images")
    what.add_argument("--operations", metavar="IMAGE", help="draw every operation on this photo")
    view.add_argument("--out", required=True, help="PNG file to write")
    view.add_argument("--num", type=positive, default=6, help="images (rows)")
    view.add_argument("--draws", type=positive, default=6, help="augmentations of each")
    view.add_argument("--magnitude", type=float, default=15.0, help="for --operations")
    view.add_argument("--size", type=positive, default=224, help="for --operations")
    view.add_argument("--seed", type=int, default=0)
    return parser


def _convert(options: argparse.Namespace) -> None:
    if options.command == "image_folder":
        found = convert.read_image_folder(options.input)
    elif options.command == "cifar10_binary":
        found = archives.read_cifar10_binary(options.input)
    elif options.command == "tfds":
        builder = convert.prepare_tfds(options.name, options.data_dir)
        if not options.out:
            _report(options, *_tfds_counts(builder))
            return
        found = convert.read_tfds(builder)
    elif options.command == "tar":
        found = archives.read_tar(_split_files(options.split), options.labels)
    elif options.command == "npz":
        found = convert.read_npz(_split_files(options.split))
    else:
        found = convert.read_parquet(
            _split_files(options.split),
            image_column=options.image_column,
            label_column=options.label_column,
        )
    origin = getattr(options, "input", None) or getattr(options, "split", None) or options.name
    damaged: list[str] = []
    manifest = records.write_set(
        options.out,
        {name: _watched(name, found, damaged) for name in found.splits},
        class_names=found.class_names,
        provenance={"converter": options.command, "input": origin},
        overwrite=options.overwrite,
    )
    counts = {name: entry["count"] for name, entry in manifest["splits"].items()}
    _report(options, options.out, counts, classes=len(found.class_names), damaged=damaged)
    if damaged:
        more = "" if len(damaged) <= MOST_NAMED else f" and {len(damaged) - MOST_NAMED:,} more"
        print(
            f"warning: packed as they are, but cannot be read: {'; '.join(damaged[:MOST_NAMED])}"
            f"{more}. Training stops at such an image, or replaces it with "
            "--config.data.on_bad_example=skip",
            file=sys.stderr,
        )


def _report(options: argparse.Namespace, place: str, counts: dict[str, int], **more: Any) -> None:
    """Says what is there now: a line, or one JSON object with all damaged images."""
    if options.json:
        print(json.dumps({"path": place, "images": counts, **more}))
    else:
        classes = f", {more['classes']} classes" if "classes" in more else ""
        images = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        print(f"{place}: {images} images{classes}")


def _tfds_counts(builder: Any) -> tuple[str, dict[str, int]]:
    """Where the prepared set is, and images a split; refuses one that training could not read."""
    stored = builder.info.file_format.value
    if stored != "array_record":
        raise BadInputError(
            f"tfds {builder.name}: already prepared as {stored} in {builder.data_dir}, which "
            "training cannot read; pass --out DIR to pack it"
        )
    return str(builder.data_dir), {k: v.num_examples for k, v in builder.info.splits.items()}


def _watched(
    split: str, found: convert.Converted, damaged: list[str]
) -> Iterator[tuple[int, bytes]]:
    """The examples of a split, with a progress bar; `damaged` gets a line for each broken file."""
    examples = tqdm.tqdm(found.splits[split], desc=split, total=found.counts[split], unit="image")
    for number, (label, image) in enumerate(examples):
        if problem := file_checks.examine(image).problem:
            damaged.append(f"image {number:,} of {split}: {problem}")
        yield label, image


def _split_files(options: list[str]) -> dict[str, list[str]]:
    """NAME=FILE[,FILE...] options to {name: [file]}, wildcards expanded."""
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


def _preview(options: argparse.Namespace, fields: list[str]) -> None:
    """`fields`: --config.FIELD=VALUE, as in training."""
    if options.operations:
        try:
            photo = Path(options.operations).read_bytes()
        except OSError as error:
            raise BadInputError(f"{options.operations}: {error.strerror}") from None
        image = files.decode(photo, options.operations)
        picture = preview.operations_sheet(image, options.magnitude, options.size, options.seed)
    else:
        config = load_config(options.config)
        override(config, ["prepare_data", *fields])
        picture = preview.augmentation_grid(
            config,
            num_images=options.num,
            num_draws=options.draws,
            seed=options.seed,
        )
    _write_png(options.out, picture)
    print(f"{options.out}: {picture.shape[1]} x {picture.shape[0]} pixels")


def _write_png(path: str, picture: np.ndarray) -> None:
    encoded = cv2.imencode(".png", np.ascontiguousarray(picture[..., ::-1]))[1]
    try:
        Path(path).write_bytes(encoded.tobytes())
    except OSError as error:
        raise BadInputError(f"--out {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
