"""Decoding of images, to name all that training could not read."""

import hashlib
import math
import mimetypes
import os
import re
from collections import Counter
from collections.abc import Collection, Sequence

import tqdm

from widenet_jax.config.files import load_config
from widenet_jax.config.parser import Options
from widenet_jax.corpus.inputs import COLUMN
from widenet_jax.data.blocks import in_threads, too_many_bad, tried
from widenet_jax.data.checks import Checked, run_checks
from widenet_jax.data.labelled import alike_text, left_out_text, names_text
from widenet_jax.data.sources import open_splits
from widenet_jax.errors import BadInputError, refuse
from widenet_jax.vision.data.files import decode
from widenet_jax.vision.data.folders import ImageFolder, files_below, read_photo
from widenet_jax.vision.prepare import archives, arrays, packing

TAR = re.compile(r"\.(tar(\.\w+)?|tgz)$")
DARK = 16  # 12-bit values in 16 bits decode to less, and so do masks
LEAST = 5  # images; a class with fewer is named


def findings(path: str, options: Options) -> Checked | None:
    """Decodes an image, or every image in a folder; None where there are other files alone."""
    images, left_out, empty = files_below(path)
    nothing = not images and not left_out
    refuse(path, (nothing, "an empty folder, so there is nothing to check"))
    if not images:
        others = [file for file in left_out if not _hidden(file, path)]
        packs = findings_in_packs(others, path, options)
        if packs or not all(map(_is_image, others)):
            return packs
    same: dict[bytes, list[str]] = {}  # by their hash
    dark: list[str] = []
    bar = tqdm.tqdm(images, desc="check", unit="image")
    found = in_threads(lambda file: tried(note_pixels, file, same, dark)[1], bar)
    problems = {file: [line] for file, line in zip(images, found, strict=True) if line}
    notes = [f"{file}: left out ({kind})" for file, kind in left_out.items()]
    notes += [f"{file}: an empty folder" for file in empty]
    visible = [file for file in images if not _hidden(file, path)]
    notes += class_notes(visible, path) if os.path.isdir(path) else []
    if copies := sorted(sorted(files) for files in same.values() if len(files) > 1):
        names = names_text([names_text(files, " = ") for files in copies], "; ")
        told = f"images with copies, which evaluation may get: {len(copies):,} ({names})"
        notes.append(f"{path}: {told}")
    if dark:
        told = f"images without a pixel of {DARK} or more, of 255: {len(dark):,}"
        names = names_text(sorted(dark))
        notes.append(f"{path}: {told} ({names}): 12 bits or class numbers? rescale them")
    config = load_config("configs/finetune.py")
    train, evaluation = config.data.train_split, config.data.eval_split
    places = [os.path.relpath(file, path).split(os.sep) for file in visible]
    folders = {folder for folder, *names in places if names}
    # Such as test images whose labels are not published.
    flat = folders - {train, evaluation} - {folder for folder, *names in places if names[1:]}
    divided = train in folders
    names = sorted(folders - flat - {train} if divided else ()) or [evaluation]
    fields = [{**config.data, "path": path, "eval_split": name} for name in names]
    opened = [tried(open_splits, config, data, None, kind=BadInputError) for data in fields]
    refusals = [*dict.fromkeys(refusal for _, refusal in opened if refusal)]
    if divided:
        notes += [f"{path}/{name}: no class folders: not for training" for name in sorted(flat)]
    elif len(folders) > 1:
        notes += [f"{path}: not for training: {refusal}" for refusal in refusals]
    advice = {}
    if problems:
        splits = [] if refusals else [source for both, _ in opened for source in both]
        advice["advice"] = repair(splits, problems, config.data.max_bad_fraction)
    problems |= {path: refusals} if divided else {}
    kinds = Counter(left_out.values())
    what = [f"{len(images):,} images", *([left_out_text(kinds)] if kinds else [])]
    return Checked(", ".join(what), problems, notes, **advice)


def reader_of(file: str, text: str) -> str:
    """Returns the packer's reader of a file that holds many images; "" of other files.

    `text` is the column of a corpus, see `arrays.image_column`.
    """
    name = os.path.basename(file).lower()
    if name.endswith(".npz"):
        return "arrays:read_npz"
    if name.endswith(".parquet"):
        return "arrays:read_parquet" if arrays.image_column(file, text) else ""
    if not TAR.search(name):
        folder = os.path.basename(os.path.dirname(os.path.abspath(file)))
        return "cifar:read_python" if folder in archives.PICKLES else ""
    if cifar := re.search("cifar-10-(binary)|cifar-100?-(python)", name):
        return f"cifar:read_{cifar[1] or cifar[2]}"
    return "archives:read_" + ("webdataset" if archives.is_webdataset(file) else "tar")


def findings_in_packs(files: Sequence[str], place: str, options: Options) -> Checked | None:
    """Reads files of many images as a packer does; None where there are none.

    Their names begin with their splits, as of train_1.npz and train-00000-of-00002.parquet.
    """
    text = options.text_column or COLUMN
    readers = {file: reader_of(file, text) for file in files}
    reader = next(filter(None, readers.values()), "")
    if not reader:
        return None
    splits: dict[str, list[str]] = {}
    chosen = [file for file in files if readers[file] == reader]
    for file in chosen:
        split = re.match("[a-z]*", os.path.basename(file).lower())[0]
        splits.setdefault(split or place, []).append(file)
    one = chosen[0] if TAR.search(chosen[0].lower()) else os.path.dirname(chosen[0]) or "."
    column = arrays.image_column(chosen[0], text) if "parquet" in reader else ""
    found = packing.read_set(
        Options(
            reader=f"widenet_jax.vision.prepare.{reader}",
            input=one if "cifar" in reader else splits,
            image_column="" if column in arrays.IMAGE_COLUMNS else column,  # "": as the packer does
            label_column=options.label_column,
            labels=options.labels,
        )
    )
    rest = [f"{file}: left out" for file in files if readers[file] != reader]
    found.notes = [*rest, *found.notes]
    return findings_in_set(found, place)


def class_notes(images: Sequence[str], path: str) -> list[str]:
    """Returns lines on the images of each class folder under `path`, and on those in none."""
    counts, root = Counter(map(os.path.dirname, images)), os.path.dirname(os.path.join(path, ""))
    stray = counts.pop(root, 0)
    sizes, notes = sorted((count, folder) for folder, count in counts.items()), []
    for parent in sorted({os.path.dirname(folder) for folder in counts}):
        own = [(n, os.path.basename(f)) for n, f in sizes if os.path.dirname(f) == parent]
        low, high = (f"{count:,} ({name})" for count, name in (own[0], own[-1]))
        notes.append(f"{parent}: class folders: {len(own):,}, with {low} to {high} images")
        notes += filter(None, [alike_text(sorted(name for _, name in own))])
    notes += [f"{folder}: images: only {count}" for count, folder in sizes if count < LEAST]
    if stray and sizes:
        names = [os.path.basename(file) for file in images if os.path.dirname(file) == root]
        notes.append(f"{root}: images in no class folder: {stray:,} ({names_text(names)})")
    return notes


def repair(splits: Sequence[ImageFolder], problems: Collection[str], limit: float) -> str:
    """Says what to do about images that cannot be read, which configs/finetune.py may skip."""
    bad, shares, advice = set(map(os.path.normpath, problems)), [], "replace or remove them"
    for source in splits:
        size = len(source)
        here = sum(os.path.normpath(source.describe(index)) in bad for index in range(size))
        if too_many_bad(here, size, num_examples=max(size, 1), limit=limit, what="images"):
            shares.append(here / size)
    if shares:
        least = math.ceil(1000 * max(shares)) / 1000
        return f"{advice}, or skip so many with --config.data.max_bad_fraction={least:g}"
    return f"{advice}, or leave them: configs/finetune.py skips so few" if splits else advice


def note_pixels(path: str, same: dict[bytes, list[str]], dark: list[str]) -> None:
    """Decodes an image file; adds it to those with the same bytes, and to those almost black."""
    content = read_photo(path)
    if decode(content, path).max() < DARK:
        dark.append(path)
    same.setdefault(hashlib.sha256(content).digest(), []).append(path)


def findings_in_packed(directory: str, _: Sequence[str]) -> Checked:
    """Reads every image of a packed set."""
    return findings_in_set(packing.read_packed(Options(input=directory)), directory)


def findings_in_set(found: packing.Converted, place: str) -> Checked:
    """Reads a set as a packer does, and writes nothing."""
    splits = {f"{place}, split {split}": found.checks(split) for split in found.splits}
    checked = run_checks(splits, "images")
    readable = any((*found.present.values(), *checked.problems.values()))
    refuse(place, (not readable, "no image in it"))
    _, problem = tried(found.check_classes, kind=BadInputError)
    problems = {**checked.problems, place: [f"{place}: {problem}"] if problem else []}
    return checked._replace(problems=problems, notes=found.lines())


def _hidden(path: str, root: str) -> bool:
    return any(part.startswith(".") for part in path.removeprefix(root).split(os.sep))


def _is_image(path: str) -> bool:
    return (mimetypes.guess_type(path)[0] or "").startswith("image/")
