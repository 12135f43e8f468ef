"""Preparation of a set of text: units of work in worker processes.

A unit's files get their names once they are whole, and its counts are stored in a part file. So a
preparation may be killed at any time: run it again, and it continues with the units that have no
part file. The bytes of the set depend neither on that nor on the number of workers.
`dataset.json` is written last.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Protocol

import tqdm
from etils import epath

from widenet_jax.corpus.inputs import TFDS_INFO
from widenet_jax.corpus.readers import Input
from widenet_jax.corpus.tokenizer import FILE, Tokenizer
from widenet_jax.data import records
from widenet_jax.data.pipeline import start_worker
from widenet_jax.errors import BadInputError, RunFailedError, first_line
from widenet_jax.files import file_sha256, is_remote, write_json

PLAN = ".preparation.json"  # settings of the preparation that a directory holds
PART = ".part-"
UNFINISHED = ".writing-"  # prefix of a file that is being written


class Preparation(Protocol):
    """What is made of the inputs: everything that decides the bytes of a set.

    Attributes:
      units: the work.
      tokenizer: stored in the set; None for a set of bytes.
      settings: as JSON holds them: all that decides the bytes but the content of the inputs.
    """

    units: Sequence[Sequence[Input]]
    tokenizer: Tokenizer | None

    @property
    def settings(self) -> dict[str, Any]: ...

    def prepare_unit(self, directory: Path, unit: int) -> dict[str, Any]:
        """Writes the files of one unit; returns its counts, "inputs_sha256" among them."""
        ...

    def is_whole(self, directory: Path, unit: int, part: Mapping[str, Any]) -> bool:
        """Whether the files of a unit with these counts are there."""
        ...

    def finish(self, directory: Path, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the manifest without the provenance, after what is left to be written.

        Raises:
          BadInputError: a split is empty.
        """
        ...


def prepare(
    preparation: Preparation,
    directory: str | Path,
    workers: int,
    provenance: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Prepares a set under a progress bar, or resumes a preparation that was interrupted.

    Args:
      preparation: what to make.
      directory: where; created if absent. A finished set of the same settings is left as it is.
      workers: processes; at most one works on a unit.
      provenance: kept in the manifest.
      overwrite: remove another set that is there.

    Returns:
      The manifest.

    Raises:
      BadInputError: an input cannot be read, a split is empty, or the directory holds other things.
      RunFailedError: a worker process was killed.
    """
    if is_remote(directory):
        raise BadInputError(
            f"{directory}: worker processes write to a local --out; copy the set there afterwards, "
            "or prepare with --beam"
        )
    directory = Path(directory)
    finished = _open_directory(directory, preparation, overwrite)
    if finished:
        return finished
    try:
        if preparation.tokenizer:
            write_json(directory / FILE, preparation.tokenizer.json)
        number = len(preparation.units)
        done = dict(tqdm.tqdm(_work(preparation, directory, workers), total=number, unit="file"))
        parts = [done[unit] for unit in range(number)]
        manifest = {**preparation.finish(directory, parts), "provenance": dict(provenance)}
    except BaseException:
        if not any(directory.glob(f"{PART}*")):  # nothing to continue from
            _remove(_ours(directory))
            with contextlib.suppress(OSError):  # another process may have put files there
                directory.rmdir()
        raise
    write_json(directory / records.MANIFEST, manifest)
    _remove([path for path in _ours(directory) if path.name.startswith(".")])
    return manifest


# --- The directory --------------------------------------------------------------------------------


def _open_directory(
    directory: Path, preparation: Preparation, overwrite: bool
) -> dict[str, Any] | None:
    """Makes the directory ready; returns its manifest if it holds the finished set.

    Raises:
      BadInputError: the directory holds other things.
    """
    ours = _ours(directory)
    records.refuse_other_files(directory, ours)
    directory.mkdir(parents=True, exist_ok=True)
    manifest, plan = _read_json(directory / records.MANIFEST), _read_json(directory / PLAN)
    if manifest and manifest.get("settings") == preparation.settings:
        if manifest.get("inputs_sha256") == list(map(inputs_sha256, preparation.units)):
            _remove([path for path in ours if path.name.startswith(".")])
            return manifest
    elif not manifest and plan == preparation.settings:
        _remove(directory.glob(f"{UNFINISHED}*"))  # of workers that were killed
        return None
    if ours and not overwrite:
        raise BadInputError(
            f"{directory}: already holds a set of other inputs or settings; pass --overwrite"
        )
    _remove(ours)
    write_json(directory / PLAN, preparation.settings)
    return None


def _ours(directory: Path) -> list[Path]:
    """Returns the files of text sets in a directory, finished or not, the manifest first."""
    patterns = (
        records.MANIFEST, "*.array_record", "*.tokens", f"{FILE}*", f"{PLAN}*",
        f"{records.MANIFEST}?*", f"{PART}*", f"{UNFINISHED}*",
    )  # fmt: skip
    return [path for pattern in patterns for path in directory.glob(pattern)]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file; {} if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


# --- The work -------------------------------------------------------------------------------------


def _work(
    preparation: Preparation, directory: Path, workers: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (unit, its counts) as units are finished; first the units of an earlier run."""
    left = []
    for unit in range(len(preparation.units)):
        part = _finished(preparation, directory, unit)
        if part:
            yield unit, part
        else:
            left.append(unit)
    if workers == 1 or len(left) <= 1:
        for unit in left:
            yield unit, prepare_unit(preparation, directory, unit)
        return
    # The parent's threads, such as ArrayRecord's, would not survive a fork.
    pool = futures.ProcessPoolExecutor(
        min(workers, len(left)), get_context("spawn"), start_worker, (0, workers)
    )
    try:
        running = {pool.submit(prepare_unit, preparation, directory, u): u for u in left}
        for future in futures.as_completed(running):
            yield running[future], future.result()
    except BaseException as error:
        for worker in active_children():  # they ignore requests to stop
            worker.kill()
        if isinstance(error, futures.process.BrokenProcessPool):
            raise RunFailedError(
                "a worker process was killed, perhaps for want of memory; run the command again "
                "to continue, with fewer --workers"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(preparation: Preparation, directory: Path, unit: int) -> dict[str, Any] | None:
    """Returns the counts of a unit whose shards are all there and whose inputs are the same."""
    part = _read_json(directory / f"{PART}{unit:05d}.json")
    if not part or part["inputs_sha256"] != inputs_sha256(preparation.units[unit]):
        return None
    return part if preparation.is_whole(directory, unit, part) else None


def prepare_unit(preparation: Preparation, directory: Path, unit: int) -> dict[str, Any]:
    """Prepares one unit; returns its counts, and stores them."""
    part = preparation.prepare_unit(directory, unit)
    write_json(directory / f"{PART}{unit:05d}.json", part)
    return part


def have_size(path: Path, size: int) -> bool:
    """Whether a file is there and has so many bytes."""
    return path.exists() and path.stat().st_size == size


def units_sha256(units: Sequence[Sequence[Input]]) -> str:
    """Returns a hash of the names and formats of all inputs."""
    return _sha256([[[part.name, part.format] for part in unit] for unit in units])


def inputs_sha256(unit: Sequence[Input]) -> str:
    """Returns a hash of the names and the content of a unit's inputs.

    Of a TFDS set, dataset_info.json stands for the content; it has the shards' sizes.
    """
    return _sha256([_identity(part) for part in unit])


def _identity(part: Input) -> list:
    place = epath.Path(part.path)
    if part.format == "tfds":
        place /= TFDS_INFO
    try:
        return [part.name, part.first, part.last, part.split, file_sha256(place)]
    except OSError as error:
        raise BadInputError(f"{place}: cannot be read ({first_line(error)})") from None


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
