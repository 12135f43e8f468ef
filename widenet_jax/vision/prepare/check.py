"""Decoding of images, to name all that training could not read."""

import mimetypes
import os
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from functools import partial

import tqdm

from widenet_jax.config.parser import Options
from widenet_jax.data.blocks import FEW_BAD, FEW_BAD_SHARE
from widenet_jax.data.input_files import read_regular
from widenet_jax.data.labelled import left_out_text
from widenet_jax.data.records import Check, Checked, problem_of
from widenet_jax.errors import BadInputError
from widenet_jax.vision.data.files import decode
from widenet_jax.vision.data.folders import kind_left_out, walk
from widenet_jax.vision.data.packed import ArrayRecord

ADVICE = (
    "replace or remove them, or train with --config.data.on_bad_example=skip (configs/finetune.py "
    "has it), which takes {few} of a split, but no more than {share:.0%}; for more, with a "
    "config.data.max_bad_fraction above {bad:.2g}"
)


def check(path: str, options: Options) -> Checked | None:
    """Decodes an image, or every image in a folder; None where there are other files alone."""
    images, left_out, empty = [], {}, []
    for file in walk(path) if os.path.isdir(path) else [path]:
        if os.path.isdir(file):
            empty.append(file)
        elif kind := kind_left_out(os.path.basename(file)):
            left_out[file] = kind
        else:
            images.append(file)
    if not images and not left_out:
        raise BadInputError(f"{path}: an empty folder, so there is nothing to check")
    if not images and not all(_hidden(file, path) or _is_image(file) for file in left_out):
        return None
    with futures.ThreadPoolExecutor() as pool:
        lines = pool.map(problem_of, [partial(check_file, file) for file in images])
        found = list(tqdm.tqdm(lines, desc="check", total=len(images), unit="image"))
    problems = {file: [line] for file, line in zip(images, found, strict=True) if line}
    notes = [f"{file}: left out ({kind})" for file, kind in left_out.items()]
    notes += [f"{file}: an empty folder" for file in empty]
    what = f"{len(images):,} images"
    if left_out:
        what += f", {left_out_text(Counter(left_out.values()))}"
    bad = len(problems) / max(1, len(images))
    return Checked(what, problems, notes, ADVICE.format(few=FEW_BAD, share=FEW_BAD_SHARE, bad=bad))


def check_file(path: str) -> None:
    """Raises BadInputError unless an image file can be decoded."""
    try:
        decode(read_regular(path), path)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}; replace or remove it") from None


def checks_of_set(directory: str, split: str) -> Iterator[Check]:
    """Yields a check of each image of a packed set."""
    source = ArrayRecord(directory, split)
    for index in range(len(source)):
        yield lambda index=index: decode(source[index]["image"], source.describe(index))


def _hidden(path: str, root: str) -> bool:
    return any(part.startswith(".") for part in path.removeprefix(root).split(os.sep))


def _is_image(path: str) -> bool:
    return (mimetypes.guess_type(path)[0] or "").startswith("image/")
