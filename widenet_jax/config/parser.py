"""The command line that all commands share: flags, config fields, exit codes.

A command is a module of `widenet_jax.cli` with `main(argv=None) -> int`, which adds its flags to a
`Parser` and calls `Parser.run`. JAX is imported by the work, never by the command line, so that a
mistake is answered at once.
"""

import argparse
import json
import os
import re
import select
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from logging import CRITICAL, getLogger
from typing import Any, NoReturn

from absl import logging

from widenet_jax.config.fields import field_names
from widenet_jax.config.files import variant_options
from widenet_jax.config.imports import import_files
from widenet_jax.config.machine import NUMBERS, skip_absent_tpu
from widenet_jax.errors import INTERRUPTED, BadInputError, RunFailedError, raise_first, similar
from widenet_jax.files import without_nan

FIELD = "--config."
Options = argparse.Namespace
Argv = Sequence[str] | None  # the words after the program's name; None: sys.argv
PLACES = ("DIR", "FILE", "FILE.png", "PATH")  # metavars of files and directories
OUTPUTS = {"out", "overlay", "predictions"}  # flags of files to write
READER_GONE = 141  # what shells report of a process that SIGPIPE ended


class Parser(argparse.ArgumentParser):
    """Argument parser that raises BadInputError for mistakes, and accepts no abbreviated flags.

    The parsers of subcommands (`add_subparsers`) are of this class as well.

    Args:
      description: printed by --help.
      takes_fields: whether the command lets its user set fields of a config.
      options: of `argparse.ArgumentParser`.
    """

    def __init__(self, description: str = "", *, takes_fields: bool = True, **options: Any):
        options |= {"formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(description=description, allow_abbrev=False, **options)
        self.set_defaults(takes_fields=takes_fields)

    def run(self, work: Callable[[Options], int | None], argv: Argv = None) -> int:
        """Reads a command line, does the work with its options and returns the exit code."""
        return exit_code_of(lambda: work(self.read(argv)))

    def read(self, argv: Argv = None) -> Options:
        """Reads a command line.

        Args:
          argv: the words after the program's name.

        Returns:
          The options. Their `fields` lists every `--config.FIELD=VALUE` in its order. The value may
          also be a word by itself, as in `--config.seed 3`.

        Raises:
          BadInputError: an unknown flag, a missing or impossible value.
        """
        words, fields = split_fields(sys.argv[1:] if argv is None else argv)
        prose = (action for action in self._all_actions() if action.metavar == "TEXT")
        texts = {name for action in prose for name in action.option_strings}
        words = [word if word.partition("=")[0] in texts else with_home(word) for word in words]
        raise_first(self._unknown_flags(words))
        if self._subparsers:  # argparse does not mix positional words with flags there
            options, rest = self.parse_known_args(words)
        else:
            options, rest = self.parse_known_intermixed_args(words)
        options.fields = fields
        raise_first(self._mistakes(options, rest))
        import_files(getattr(options, "imports", []))
        return options

    def error(self, message: str) -> NoReturn:
        raise BadInputError(f"{message} (--help lists the flags)")

    def _mistakes(self, options: Options, rest: Sequence[str]) -> Iterator[str]:
        """Yields a line for each word that is no flag and each field or file that cannot be."""
        yield from (f"not a flag: {word!r}; flags are written --name=value" for word in rest)
        if not options.takes_fields:
            yield from (f"{one}: this command sets no field of a config" for one in options.fields)
        for action in self._all_actions():  # empty, as of an unset shell variable
            if (
                action.metavar in PLACES
                and getattr(options, action.dest, "x") == "" != action.default
            ):
                name = (action.option_strings or [action.metavar])[0]
                yield f"{name} is empty; name a file or directory, or leave it out"
        yield from replaced_inputs(options)

    def _unknown_flags(self, words: Sequence[str]) -> Iterator[str]:
        """Yields a line for each unknown flag, before argparse misses a required one."""
        actions = self._all_actions()
        known = {name.lstrip("-") for action in actions for name in action.option_strings}
        for word in words:
            name, _, value = word.removeprefix("--").partition("=")
            if word.startswith("--") and name not in known:
                hint = option_hint(name, value, words) or self._hint(name, known)
                yield f"there is no flag --{name}; {hint}"

    def _hint(self, name: str, known: Collection[str]) -> str:
        """Returns what to tell about an unknown flag: the field or the flag that may be meant."""
        from widenet_jax.config.names import same_name  # only a mistake needs it

        takes_fields = self.get_default("takes_fields") and not self._subparsers
        if takes_fields and (field := same_name(name, field_names())):
            return f"did you mean {FIELD}{field}?"
        near = similar(name, known)
        return f"did you mean --{near}?" if near else "--help lists the flags"

    def _all_actions(self) -> Iterator[argparse.Action]:
        """Yields what the command line may hold, also of subcommands."""
        for action in self._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                for subparser in action.choices.values():
                    yield from subparser._all_actions()


def replaced_inputs(options: Options) -> Iterator[str]:
    """Yields a line for each file to write that is a file to read, which would be lost."""
    words = [one.partition("=")[2] for one in options.fields]
    for name in vars(options).keys() - OUTPUTS:
        words += value if isinstance(value := getattr(options, name), list) else [value]
    words = [one for word in words if isinstance(word, str) for one in (word, word.split(":")[0])]
    inputs = [word for word in words if os.path.isfile(word)]  # a config's without its variant
    for name in OUTPUTS & vars(options).keys():
        out = getattr(options, name) or ""
        if os.path.isfile(out) and any(os.path.samefile(out, one) for one in inputs):
            yield f"--{name}={out} would replace an input; name another file"


def option_hint(name: str, value: str, words: Sequence[str]) -> str:
    """Returns what to tell of an unknown flag that is an option of the config's variants.

    Args:
      name: of the unknown flag.
      value: its value, perhaps "".
      words: all words; one of them may be --config=FILE or --config=FILE:VARIANT.

    Returns:
      "" where the flag is no such option.
    """
    found, option = re.search(r"--config[= ](\S+)", " ".join(words)), name.replace("-", "_")
    if not found or option not in variant_options(config := found[1]):
        return ""
    variant = config if ":" in config else f"{config}:VARIANT"
    return f"it is an option after the colon: --config={variant},{option}={value or '...'}"


def with_home(word: str) -> str:
    """Replaces ~ in `--out=~/x` by the home directory; shells do so in `--out ~/x` only."""
    name, equals, value = word.partition("=")
    return name + equals + (os.path.expanduser(value) if name.startswith("--") else value)


def split_fields(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates the command's own flags from those that set fields of the config.

    Returns:
      The command's own words, and `--config.FIELD=VALUE` for each field.

    Raises:
      BadInputError: a field without a value.
    """
    own: list[str] = []
    fields: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith(FIELD):
            own.append(word)
            continue
        value = word.partition("=")[2] if "=" in word else next(rest, "--")
        if value.startswith("--") and "=" not in word:
            raise BadInputError(f"{word} has no value; write {word}=VALUE")
        fields.append(f"{word.partition('=')[0]}={value}")
    return own, fields


def argument(convert: Callable, is_valid: Callable[[str], bool], problem: str) -> Callable:
    """Returns a type of argparse: it converts a text that is valid, and names others' problem."""

    def converted(text: str) -> Any:
        with suppress(ValueError):
            if is_valid(text):
                return convert(text)
        raise argparse.ArgumentTypeError(f"{text!r} must be {problem}")

    return converted


not_negative = argument(int, str.isdecimal, "a whole number of at least 0")
positive = argument(
    int, lambda text: text.isdecimal() and int(text), "a whole number of at least 1"
)
checkpoint = argument(
    str, lambda text: text in ("last", "best") or text.isdecimal(), "last, best or a step"
)
picture = argument(str, lambda text: text.endswith(".png"), "a file name that ends in .png")
seconds = argument(
    float, lambda text: 0 <= float(text) < threading.TIMEOUT_MAX, "a number of seconds"
)


def add_import_flag(parser: Parser) -> None:
    """Adds --import, for files that register parts; `Parser.read` imports them."""
    text = "a Python file that registers parts of its own; may be repeated"
    parser.add_argument(
        "--import", action="append", default=[], dest="imports", metavar="FILE.py", help=text
    )


def add_model_flags(
    parser: Parser, place: str = "of a run, an exported model, or the name of a shipped one"
) -> None:
    """Adds the flags that say which trained model a command takes, and --json.

    Args:
      parser: of the command.
      place: what the help says of --workdir.
    """
    parser.add_argument("--workdir", required=True, metavar="DIR", help=place)
    text = "of the run: last (the default), best by its primary metric, or a step that it keeps"
    parser.add_argument("--checkpoint", type=checkpoint, metavar="last|best|STEP", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_import_flag(parser)


def show(options: Options, found: Any, text: str) -> None:
    """Prints what a command found: as JSON with --json, else the text for people."""
    print(json.dumps(without_nan(found), default=str) if options.json else text)


def exit_code_of(run: Callable[[], int | None]) -> int:
    """Runs a command and reports what went wrong in one line on stderr.

    Returns:
      What `run` returns (0 for None); 2 for a BadInputError and for a file that cannot be read or
      written; 3 for a RunFailedError; 130 after Ctrl-C; 141 where the reader of stdout has left, as
      in `... | head -1`.
    """
    skip_absent_tpu(os.environ)
    os.environ.update(NUMBERS)
    if hasattr(sys.stdout, "reconfigure"):  # notebooks replace stdout
        sys.stdout.reconfigure(errors="surrogateescape")  # prints file names that are no UTF-8
    logging.set_verbosity(logging.FATAL)  # Orbax logs a traceback of each error reported here
    getLogger("asyncio").setLevel(CRITICAL)  # and asyncio one of each file of a failed save
    try:
        code = run() or 0
        sys.stdout.flush()  # so that a reader who has left is noticed here
        return code
    except SystemExit as end:  # argparse has printed the help
        return end.code or 0
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailedError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError) and reader_is_gone():
            # Python writes what is left of stdout when it exits, and would fail once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def reader_is_gone() -> bool:
    """Returns whether stdout is a pipe whose reading end is closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
