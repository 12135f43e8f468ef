"""The subcommand `check` of `prepare_data.py`: names what cannot be read."""

import mimetypes
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from etils import epath

from widenet_jax.config.parser import Options, show
from widenet_jax.corpus.readers import READERS
from widenet_jax.errors import BadInputError
from widenet_jax.files import is_remote

CHECK = """Reads data to its end and names all that training or a preparation could not read.

PATH is an image or a folder with images; a set that this command has prepared; or a text file or a
folder of them, all but hidden files: text, JSON lines and parquet as the commands text and stream
read them, .tsv and .csv tables (with --label_column also the others), and SQuAD's JSON. A table
that has texts but no label column, as GLUE's test.tsv, is named and passes, unless no table has the
given --label_column. A language model of bytes reads text of any encoding."""
COLUMNS = ("text_column", "pair_column", "label_column")
SHOWN = 20  # mistakes of a file or split; --json has all


def add_check(commands: Any) -> None:
    """Adds the subcommand that names what cannot be read."""
    what = "name the images, texts and records that cannot be read"
    command = commands.add_parser("check", help=what, description=CHECK, takes_fields=False)
    command.set_defaults(work=check)
    add = command.add_argument
    add("path", metavar="PATH")
    add("--format", choices=["auto", *READERS], default="auto", help="of text files")
    for name in COLUMNS:
        add(f"--{name}", default="", metavar="NAME", help=f"config.data.{name} of a table")
    add("--json", action="store_true", help="print one JSON object")


def check(options: Options) -> None:
    """Prints a line for each file, line or record that training would not read.

    Raises:
      BadInputError: some cannot be read, or there is nothing to check.
    """
    from widenet_jax.corpus.inputs import TFDS_INFO
    from widenet_jax.data.records import MANIFEST
    from widenet_jax.vision.data.folders import IMAGE_SUFFIXES

    path = options.path
    if is_remote(path):
        raise BadInputError(f"{path}: check reads local files; copy it here and check the copy")
    if not os.path.exists(path):
        raise BadInputError(f"{path}: no such file or directory")
    if os.path.exists(os.path.join(path, TFDS_INFO)):
        raise BadInputError(
            f"{path}: a set of TFDS, which a run checks as it opens it; look at its examples by "
            "scripts/prepare_data.py preview"
        )
    if os.path.exists(os.path.join(path, MANIFEST)):
        from widenet_jax.cli.check_sets import check_set

        report(options, *check_set(path))
    elif os.path.isfile(path) and path.lower().endswith(IMAGE_SUFFIXES):
        from widenet_jax.vision.prepare.check_images import problem_of

        report(options, "1 image", {path: list(filter(None, [problem_of(path)]))})
    elif files := text_files(options):
        from widenet_jax.text.prepare.check_texts import check_files

        columns = {name: getattr(options, name) for name in COLUMNS}
        report(options, *check_files(files, columns, options.format))
    else:
        check_folder(options)


def text_files(options: Options) -> list[str]:
    """Returns the files that are read as text: all but hidden ones, as the command text reads them.

    Returns [] of a folder that holds an image, only pictures of other formats, or nothing.
    """
    from widenet_jax.corpus.inputs import files_below
    from widenet_jax.vision.data.folders import kind_left_out
    from widenet_jax.vision.prepare.check_images import walk

    if not os.path.isdir(options.path):
        return [options.path]
    if any(kind_left_out(os.path.basename(path)) is None for path in walk(options.path)):
        return []
    files = sorted(files_below(epath.Path(options.path)))
    kinds = [mimetypes.guess_type(path)[0] or "" for path in files]
    return [] if all(kind.startswith("image/") for kind in kinds) else files


def report(
    options: Options, what: str, problems: Mapping[str, list[str]], notes: Sequence[str] = ()
) -> None:
    """Prints the mistakes in data, and the notes; raises BadInputError where there are mistakes."""
    lines = []
    for place, found in problems.items():
        lines += found[:SHOWN]
        if len(found) > SHOWN:
            lines.append(f"{place}: {len(found) - SHOWN:,} more")
    every = list(chain.from_iterable(problems.values()))
    text = f"{options.path}: {what}; {len(every):,} problems"
    facts = {"path": options.path, "read": what, "problems": every, "notes": list(notes)}
    show(options, facts, "\n".join([*lines, *notes, text]))
    if every:
        raise BadInputError(f"{options.path}: {len(every):,} problems; repair what is named")


def check_folder(options: Options) -> None:
    """Prints a line for each image that cannot be read, and for each file that is no image.

    Raises:
      BadInputError: some images cannot be read.
    """
    from widenet_jax.data.chunks import FEW_BAD, FEW_BAD_SHARE
    from widenet_jax.vision.data.folders import left_out_text
    from widenet_jax.vision.prepare.check_images import check_images

    found = check_images(options.path)
    lines = [*found.unreadable, *(f"{path}: left out ({kind})" for path, kind in found.left_out)]
    lines += [f"{path}: an empty folder" for path in found.empty]
    bad = len(found.unreadable)
    text = f"{options.path}: {found.images:,} images, {bad:,} of them unreadable"
    if found.left_out:
        text += f"; {left_out_text(found.counts)}"
    facts = {**found._asdict(), "left_out": found.counts}
    show(options, facts, "\n".join([*lines, text]))
    if bad:
        raise BadInputError(
            f"{options.path}: {bad:,} of {found.images:,} images cannot be read; replace or "
            "remove them, or train with --config.data.on_bad_example=skip (configs/finetune.py has "
            f"it), which takes {FEW_BAD} of a split, but no more than {FEW_BAD_SHARE:.0%}; for "
            f"more, with a config.data.max_bad_fraction above {bad / found.images:.2g}"
        )
