"""What scripts share: a user's mistake is one line and exit code 2, a failed run exit code 3."""

import argparse
import sys
from collections.abc import Callable

from absl import logging

from widenet_jax.errors import BadInputError, RunFailedError


def exit_code(command: Callable[[], object]) -> int:
    """Runs it; 0, or the code of what went wrong, which is said in one line on stderr."""
    logging.set_verbosity(logging.ERROR)  # Orbax warns of what is as it should be
    try:
        command()
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailedError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 3
    except OSError as error:  # a place that cannot be written
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def positive(text: str) -> int:
    """For argparse: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)
