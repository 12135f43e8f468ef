"""Command lines of the scripts: a mistake is one line and exit code 2, as everywhere."""

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from absl import logging

from widenet_jax.errors import BadInputError, RunFailedError


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are BadInputError, and whose options are never guessed at.

    `parse_known_args` leaves what it does not know, as `--config.FIELD=VALUE`, in its order.
    Subcommands' parsers (`add_subparsers`) are such, too. To be used inside `exit_code_of`.
    """

    def __init__(self, description: str = "", **options: Any):
        options |= {"allow_abbrev": False}
        options |= {"formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(description=description, **options)

    def error(self, message: str) -> NoReturn:
        raise BadInputError(f"{message} (--help lists the flags)")

    def names(self) -> list[str]:
        """ "config", "workdir", ...: for "did you mean"."""
        return [option.lstrip("-") for action in self._actions for option in action.option_strings]


def positive(text: str) -> int:
    """For argparse: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def exit_code_of(run: Callable[[], int | None]) -> int:
    """What `run` returns, 0 for nothing; what went wrong is said in one line on stderr.

    2 for a BadInputError and for a file that cannot be read or written, 3 for a RunFailedError.
    """
    logging.set_verbosity(logging.FATAL)  # Orbax logs tracebacks of what is said in one line
    try:
        return run() or 0
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailedError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
