"""Packing of image sets in other layouts into ArrayRecord files."""

import glob
import sys
from functools import partial
from typing import Any

import tqdm

from widenet_jax.config.parser import Options, show
from widenet_jax.data import records
from widenet_jax.data.checks import problem_of
from widenet_jax.data.labelled import left_out_text
from widenet_jax.errors import BadInputError
from widenet_jax.vision.data import files
from widenet_jax.vision.data.folders import Holdout
from widenet_jax.vision.prepare import archives, convert, npz

MOST_NAMED = 5  # unreadable images that the warning names


def pack(options: Options) -> None:
    """Converts the set that `options` name into ArrayRecord files."""
    damaged: list[str] = []
    found = read_input(options, damaged)
    if not found:  # a TFDS set that is read where it is
        return
    splits = {name: examined(name, found, damaged, options.skip_bad) for name in found.splits}
    manifest = records.write_set(
        options.out,
        splits,
        class_names=found.class_names,
        provenance={"converter": options.command, "input": origin(options)},
        overwrite=options.overwrite,
    )
    counts = {name: entry["count"] for name, entry in manifest["splits"].items()}
    lines = [f"{counts_text(options.out, counts)}, {len(found.class_names)} classes", *found.notes]
    lines += [left_out_text(found.left_out)] if found.left_out else []
    info = {"path": options.out, "images": counts, "classes": len(found.class_names)}
    info |= {"damaged": damaged, "left_out": found.left_out, "notes": found.notes}
    show(options, info, "\n".join(lines))
    if damaged:
        more = "" if len(damaged) <= MOST_NAMED else f" and {len(damaged) - MOST_NAMED:,} more"
        named = "; ".join(damaged[:MOST_NAMED]) + more
        what = f"left out {len(damaged):,} images that cannot be read: {named}"
        if not options.skip_bad:
            what = (
                f"packed as they are, but cannot be read: {named}. Training stops at such an "
                "image, or replaces it with --config.data.on_bad_example=skip; --skip_bad leaves "
                "them out here"
            )
        print(f"warning: {what}", file=sys.stderr)


def read_input(options: Options, damaged: list[str]) -> convert.Converted | None:
    """Opens the files that `options` name, by the reader of their format."""
    if options.command == "tfds":
        builder = convert.prepare_tfds(options.name, options.data_dir)
        if options.out:
            return convert.read_tfds(builder)
        place, counts = tfds_counts(builder)
        show(options, {"path": place, "images": counts}, counts_text(place, counts))
        return None
    if options.command == "image_folder":
        holdout = Holdout(options.eval_fraction, field="eval_fraction")
        bad = damaged if options.skip_bad else None
        return convert.read_image_folder(options.input, holdout, bad)
    if options.command == "cifar10_binary":
        return archives.read_cifar10_binary(options.input)
    files = split_files(options.split)
    if options.command == "tar":
        return archives.read_tar(files, options.labels)
    if options.command == "npz":
        return npz.read_npz(files)
    from widenet_jax.vision.prepare import parquet  # pyarrow is slow to import

    columns = {"image_column": options.image_column, "label_column": options.label_column}
    return parquet.read_parquet(files, **columns)


def origin(options: Options) -> str | list[str]:
    """Returns what the set is packed from, as the user named it."""
    return next(filter(None, (getattr(options, k, None) for k in ("input", "split", "name"))))


def counts_text(place: str, counts: dict[str, int]) -> str:
    images = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"{place}: {images} images"


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
        if skip_bad:
            problem = problem_of(partial(files.decode, image, where))
        elif problem := files.examine(image).problem:
            problem = f"{where}: {problem}"
        if problem:
            damaged.append(problem)
        if not (problem and skip_bad):
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
