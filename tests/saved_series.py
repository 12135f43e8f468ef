"""Series of checkpoints of small arrays."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from etils import epath

from widenet_jax.checkpoint.series import FORMAT_VERSION, Series
from widenet_jax.errors import RunFailedError

META = {"format_version": FORMAT_VERSION, "fingerprint": "f"}


@contextmanager
def opened(directory: Path, *, keep: int = 2) -> Iterator[Series]:
    with closing(Series(epath.Path(directory), keep=keep)) as series:
        yield series


def save(series: Series, step: int, arrays: dict) -> None:
    series.save(step, arrays, META | {"step": step})
    series.wait()


def failure(directory: Path, step: int, arrays: dict) -> str:
    """Returns the line of a save that must fail."""
    try:
        with opened(directory) as series:
            save(series, step, arrays)
    except RunFailedError as error:
        return str(error)
    raise AssertionError("the save did not fail")
