"""The subcommand `check` of `prepare_data.py`: names what cannot be read."""

import itertools
import os
from concurrent import futures
from typing import TYPE_CHECKING, Any

from widenet_jax.config.parser import Options, show
from widenet_jax.corpus.readers import FORMATS
from widenet_jax.errors import BadInputError, choose
from widenet_jax.files import is_remote
from widenet_jax.specs import resolve

if TYPE_CHECKING:
    from widenet_jax.data.checks import Checked

CHECK = """Reads data to its end and names all that training or a preparation could not read.

PATH is an image or a folder with images; a set that this command has prepared; or a text file or a
folder of them, all but hidden files: text, JSON lines and parquet as the commands text and stream
read them, .tsv and .csv tables (with --label_column also the others), and SQuAD's JSON. A table
that has texts but no label column, as GLUE's test.tsv, is named and passes, unless no table has the
given --label_column. A language model of bytes reads text of any encoding."""
COLUMNS = ("text_column", "pair_column", "label_column")
SHOWN = 20  # mistakes of a file or split; --json has all
AT_ONCE = 4096  # records that wait for a thread
# Each checks a path, or returns None of a path that is not for it: (path, options).
CHECKS = ("widenet_jax.vision.prepare.check:check", "widenet_jax.text.prepare.check:check")
# Kind of a prepared set -> the checks of a split, (directory, split), and what a record is called.
SETS = {
    "images": ("widenet_jax.vision.prepare.check:checks_of_set", "images"),
    "text": ("widenet_jax.text.prepare.check:checks_of_set", "sequences"),
    "stream": ("widenet_jax.language.prepare.preparation:checks_of_set", "files of tokens"),
}


def add_check(commands: Any) -> None:
    """Adds the subcommand that names what cannot be read."""
    what = "name the images, texts and records that cannot be read"
    command = commands.add_parser("check", help=what, description=CHECK, takes_fields=False)
    command.set_defaults(work=check)
    add = command.add_argument
    add("path", metavar="PATH")
    add("--format", choices=["auto", *FORMATS], default="auto", help="of text files")
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
        report(options, check_set(path))
    else:
        found = (resolve(check)(path, options) for check in CHECKS)
        report(options, next(checked for checked in found if checked))


def check_set(directory: str) -> "Checked":
    """Reads every record of all splits of a set that `scripts/prepare_data.py` wrote.

    Raises:
      BadInputError: dataset.json is missing, damaged, or of an unknown kind.
    """
    import tqdm

    from widenet_jax.data import records
    from widenet_jax.data.checks import Checked, problem_of

    manifest = records.read_manifest(directory, None)
    field = f"{directory}/{records.MANIFEST}: kind"
    name, unit = choose(SETS, manifest.get("kind", "images"), field=field)
    count, problems = 0, {}
    with futures.ThreadPoolExecutor() as pool, tqdm.tqdm(desc="check", unit="record") as bar:
        for split in manifest["splits"]:
            lines: dict[str, None] = {}  # all records of a damaged shard have the same line
            try:
                checks = resolve(name)(directory, split)
                while some := list(itertools.islice(checks, AT_ONCE)):
                    lines |= dict.fromkeys(filter(None, pool.map(problem_of, some)))
                    count += len(some)
                    bar.update(len(some))
            except BadInputError as error:  # the split cannot be opened
                lines[str(error)] = None
            problems[f"{directory}, split {split}"] = list(lines)
    return Checked(f"{count:,} {unit}", problems)


def report(options: Options, found: "Checked") -> None:
    """Prints the mistakes in data, and the notes; raises BadInputError where there are mistakes."""
    lines = []
    for place, problems in found.problems.items():
        lines += problems[:SHOWN]
        if len(problems) > SHOWN:
            lines.append(f"{place}: {len(problems) - SHOWN:,} more")
    every = list(itertools.chain.from_iterable(found.problems.values()))
    text = f"{options.path}: {found.what}; {len(every):,} problems"
    facts = {"path": options.path, "read": found.what, "problems": every, "notes": [*found.notes]}
    show(options, facts, "\n".join([*lines, *found.notes, text]))
    if every:
        raise BadInputError(f"{options.path}: {len(every):,} problems; {found.advice}")
