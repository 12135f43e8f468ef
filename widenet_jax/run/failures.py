"""What ends a run early: the messages, and errors of the system turned into one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
from etils import epath

from widenet_jax.checkpoint.series import CannotWriteError, is_full, space_text
from widenet_jax.errors import (
    BadExampleError,
    BadInputError,
    NoAccessError,
    NoAnswerError,
    RunFailedError,
    first_line,
)
from widenet_jax.files import is_gone
from widenet_jax.run.stopping import Stop, StopRequestedError

ADVICE = (
    "In a new --workdir a lower config.optimizer.learning_rate or a longer config.optimizer.warmup "
    "may help"
)


class CallbackError(Exception):
    """Carries what `on_evaluation` raised to the place where the run saves its state."""


@contextmanager
def errors_in_one_line(workdir: epath.Path, stop: Stop) -> Iterator[None]:
    """Turns what can end a run early into errors that `main` prints as one line."""
    try:
        yield
    except Exception as error:
        if (ending := ending_of(error, workdir, stop)) is None:
            raise
        raise ending from (error if isinstance(ending, RunFailedError) else None)


def ending_of(error: Exception, workdir: epath.Path, stop: Stop) -> Exception | None:
    """Returns the error of one line that stands for one that ends a run; None for all others."""
    match error:
        case NoAccessError() | RunFailedError(__cause__=NoAccessError()):
            return BadInputError(str(error))
        case StopRequestedError():
            return stop.stopped(0)
        case BadExampleError():
            return BadInputError(
                f"{error}; or skip such examples: --config.data.on_bad_example=skip (up to a share "
                "of config.data.max_bad_fraction; a few of a small set)"
            )
        case CannotWriteError(__cause__=NoAnswerError()):
            return None  # as it is; the store cannot be asked what is there
        case CannotWriteError() | FileNotFoundError():
            ours = str(getattr(error, "filename", workdir)).startswith(str(workdir))
            if ours and is_gone(workdir / "config.json"):
                return RunFailedError(gone_text(workdir))
        case OSError() if full := is_full(error):
            lack, mend = space_text(workdir)
            return RunFailedError(
                f"--workdir={workdir}: {full}{lack}; {mend}, and run the same command again to "
                "resume from the last checkpoint"
            )
        case jax.errors.JaxRuntimeError() if "RESOURCE_EXHAUSTED" in str(error):
            return RunFailedError(
                f"a device is out of memory ({first_line(error)}); give it less at a time: "
                "--config.optimizer.accumulation_steps=2, --config.model.remat=block, or a smaller "
                "--config.batch_size (in evaluation --config.evaluation.batch_size)"
            )
    return None


def not_finite(what: str, more: str = "") -> RunFailedError:
    """Returns the error of a number that is not finite; `more` stands before the advice."""
    return RunFailedError(f"{what} earlier checkpoints are kept. {more}{ADVICE}")


def gone_text(workdir: epath.Path) -> str:
    """Returns the message of a run whose workdir was taken away."""
    return (
        f"--workdir={workdir}: its config.json is gone, so the directory or this file was deleted "
        "or moved during the run; put it back (every checkpoint's meta/metadata has the config) "
        "and run the same command again to resume, or start again in a new --workdir"
    )
