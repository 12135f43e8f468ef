"""What the commands that prepare text share: flags, the reading of inputs, the report."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from widenet_jax.config.machine import usable_cores
from widenet_jax.config.parser import Options, positive, show
from widenet_jax.corpus.readers import FORMATS
from widenet_jax.data.input_files import check_apart
from widenet_jax.errors import BadInputError

if TYPE_CHECKING:
    from widenet_jax.corpus.readers import Input

Add = Callable[..., Any]  # `add_argument` of a subcommand


def add_command(commands: Any, name: str, what: str, work: Callable[[Options], None]) -> Add:
    """Adds a subcommand that reads text, and the flags that say how.

    Args:
      commands: of `scripts/prepare_data.py`.
      name: of the subcommand.
      what: its line in the list of commands.
      work: called with the options. Its docstring is what --help prints.
    """
    form = {"help": what, "description": inspect.getdoc(work), "takes_fields": False}
    command = commands.add_parser(name, **form)
    command.set_defaults(work=work)
    add = command.add_argument
    text = "of the files; by default from their names and beginnings"
    add("--format", choices=["auto", *FORMATS], default="auto", help=text)
    add("--text_column", metavar="NAME", help="of tables, parquet and JSON lines (default text)")
    add("--tfds_split", default="train", metavar="NAME", help="of a TFDS set")
    add("--json", action="store_true", help="print one JSON object")
    return add


def add_set_command(commands: Any, name: str, what: str, work: Callable[[Options], None]) -> Add:
    """Adds a subcommand that prepares a set of text; arguments as of `add_command`."""
    add = add_command(commands, name, what, work)
    add("inputs", nargs="+", metavar="INPUT", help="the text")
    add("--valid", action="append", default=[], metavar="INPUT", help="validation text; repeat")
    add("--out", required=True, metavar="DIR", help="where the set goes")
    text = "processes; by default as many as there are cores"
    add("--workers", type=positive, default=usable_cores(), metavar="N", help=text)
    add("--overwrite", action="store_true", help="replace a set that is there")
    return add


def units_of(
    splits: Mapping[str, Sequence[str]], options: Options
) -> "dict[str, list[list[Input]]]":
    """Returns the units of work of each split's inputs, as the flags say; [] of no inputs.

    Raises:
      BadInputError: as `plan`; or a file is in two splits.
    """
    from widenet_jax.corpus.inputs import plan

    form = options.format, options.tfds_split
    units = {split: plan(paths, *form) if paths else [] for split, paths in splits.items()}
    read = {split: [part.path for unit in of for part in unit] for split, of in units.items()}
    check_apart(read, "text")
    return units


def column_of(units: "Sequence[Sequence[Input]]", options: Options) -> str:
    """Returns the column of the texts in the inputs that have columns.

    Raises:
      BadInputError: --text_column is given, and no input has columns.
    """
    from widenet_jax.corpus.inputs import COLUMN
    from widenet_jax.corpus.readers import RAW_READERS

    inputs = [part for unit in units for part in unit]
    if options.text_column and all(part.format not in RAW_READERS for part in inputs):
        first = f" ({inputs[0].path} is read as --format={inputs[0].format})" if inputs else ""
        raise BadInputError(
            f"--text_column={options.text_column}: no input has columns{first}; leave it out, or "
            "choose a --format with columns"
        )
    return options.text_column or COLUMN


def report(options: Options, manifest: Mapping[str, Any], counts: str, *more: str) -> None:
    """Prints the manifest of a set, or a line for each split: `counts` formatted by its entry."""
    from widenet_jax.corpus.lost_text import describe

    splits = manifest["splits"].items()
    lines = [f"{options.out}: {split} {counts.format(**entry)}" for split, entry in splits]
    lines += [f"{split}: {text}" for split, entry in splits if (text := describe(entry))]
    show(options, {"path": options.out, **manifest}, "\n".join([*lines, *more]))
