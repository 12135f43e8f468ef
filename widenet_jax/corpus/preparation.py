"""Preparation of a set of text: units of work in worker processes.

A unit's files get their names once they are whole, and its counts are stored in a part file. So a
preparation may be killed at any time: run it again, and it continues with the units that have no
part file. The bytes of the set depend neither on that nor on the number of workers.
`dataset.json` is written last.
"""

import abc
import contextlib
import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, ClassVar

import tqdm
from etils import epath

from widenet_jax.config.parser import Options
from widenet_jax.corpus.inputs import TFDS_INFO
from widenet_jax.corpus.readers import Input
from widenet_jax.corpus.tokenizer import FILE, Tokenizer
from widenet_jax.data import records
from widenet_jax.data.pipeline import start_worker
from widenet_jax.errors import BadInputError, RunFailedError, refusing
from widenet_jax.files import file_sha256, write_json


class Preparation(abc.ABC):
    """What is made of the inputs: everything that decides the bytes of a set.

    Attributes:
      kind: of the set, a key of `records.SOURCE_OF`.
      units: the work.
      column: of parquet files, JSON lines and TFDS sets.
      tokenizer: stored in the set; None for a set of bytes.
      rule: by which the set is made, as JSON holds it.
    """

    kind: ClassVar[str]
    units: Sequence[Sequence[Input]]
    column: str
    tokenizer: Tokenizer | None
    rule: Mapping[str, Any]

    @property
    def hashes(self) -> dict[str, str]:
        """The tokenizer's hash; {} without a tokenizer."""
        return {"tokenizer_sha256": self.tokenizer.sha256} if self.tokenizer else {}

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the bytes but the content of the inputs, as JSON holds it."""
        names = [[[part.name, part.format] for part in unit] for unit in self.units]
        inputs = {"units_sha256": _sha256(names), "column": self.column}
        return {"rule": self.rule, **inputs, **self.hashes}

    @abc.abstractmethod
    def prepare_unit(self, directory: Path, unit: int) -> dict[str, Any]:
        """Writes the files of one unit; returns its counts."""

    @abc.abstractmethod
    def sizes(self, directory: Path, unit: int, part: Mapping[str, Any]) -> dict[Path, int]:
        """Returns the files of a unit with these counts, and the bytes of each."""

    @abc.abstractmethod
    def finish(self, directory: Path, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Writes what is left to be written; returns this kind's own entries of the manifest.

        Raises:
          BadInputError: a split is empty.
        """

    @abc.abstractmethod
    def open_split(self, directory: str, split: str) -> object:
        """Opens a split of a finished set; raises BadInputError if a file is missing or damaged."""

    def counts_of(self, directory: Path, unit: int) -> dict[str, Any]:
        """Prepares a unit; returns its counts and the hash of its inputs."""
        counts = self.prepare_unit(directory, unit)
        return {**counts, "inputs_sha256": inputs_sha256(self.units[unit])}

    def manifest(
        self, directory: Path, parts: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Finishes the set; returns its manifest. Raises as `finish`."""
        return {
            "format_version": records.FORMAT_VERSION,
            "kind": self.kind,
            **self.hashes,
            "rule": self.rule,
            **self.finish(directory, parts),
            "settings": self.settings,
            "inputs_sha256": [part["inputs_sha256"] for part in parts],
            "provenance": provenance,
        }


def prepare(
    preparation: Preparation, options: Options, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Prepares a set under a progress bar, or resumes a preparation that was interrupted.

    Args:
      preparation: what to make.
      options: `out`, a directory, created if absent, in which a finished set of the same settings
        is left as it is unless a file of it is missing or damaged; `workers`, processes, at most
        one for each unit; `overwrite`, whether any set that is there is replaced.
      provenance: kept in the manifest.

    Returns:
      The manifest.

    Raises:
      BadInputError: an input cannot be read, a split is empty, or the directory holds other things.
      RunFailedError: a worker process was killed.
    """
    directory, settings = Path(options.out), preparation.settings
    finished = records.stored_object(directory / records.MANIFEST)
    same = finished.get("settings") == settings and (
        finished.get("inputs_sha256") == [*map(inputs_sha256, preparation.units)]
    )
    if same and not options.overwrite:
        try:
            for split in finished["splits"]:
                preparation.open_split(options.out, split)
            return finished
        except BadInputError as error:  # a file is missing or damaged
            print(f"note: {error}; preparing the set again", file=sys.stderr, flush=True)
    overwrite = same or options.overwrite
    with records.new_set(options.out, overwrite=overwrite, settings=settings) as folder:
        if preparation.tokenizer:
            write_json(folder / FILE, preparation.tokenizer.json)
        parts = [_finished(preparation, folder, unit) for unit in range(len(preparation.units))]
        left = [unit for unit, part in enumerate(parts) if part is None]
        work = _work(preparation, folder, left, options.workers)
        bar = {"total": len(parts), "initial": len(parts) - len(left), "unit": "file"}
        for unit, part in tqdm.tqdm(work, **bar):
            parts[unit] = part
        try:
            manifest = preparation.manifest(folder, parts, provenance)
        except BadInputError:  # the same command would end so again
            shutil.rmtree(folder)
            raise
        write_json(folder / records.MANIFEST, manifest)
    return manifest


# --- The work -------------------------------------------------------------------------------------


def _work(
    preparation: Preparation, directory: Path, left: Sequence[int], workers: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (unit, its counts) as the units that are left are finished."""
    work = functools.partial(prepare_unit, preparation, directory)
    if workers == 1 or len(left) <= 1:
        yield from ((unit, work(unit)) for unit in left)
        return
    # The parent's threads, such as ArrayRecord's, would not survive a fork.
    pool = futures.ProcessPoolExecutor(
        min(workers, len(left)), get_context("spawn"), start_worker, (0, workers)
    )
    try:
        running = {pool.submit(work, unit): unit for unit in left}
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
    """Returns the counts of a unit whose files are all there and whose inputs are the same."""
    part = records.stored_object(directory / f"{records.PART}{unit:05d}.json")
    if not part or part["inputs_sha256"] != inputs_sha256(preparation.units[unit]):
        return None
    sizes = preparation.sizes(directory, unit, part).items()
    whole = all(path.exists() and path.stat().st_size == size for path, size in sizes)
    return part if whole else None


def prepare_unit(preparation: Preparation, directory: Path, unit: int) -> dict[str, Any]:
    """Prepares one unit; returns its counts, and stores them."""
    part = preparation.counts_of(directory, unit)
    write_json(directory / f"{records.PART}{unit:05d}.json", part)
    return part


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a name beside a path, and renames the file of that name when the block ends.

    The process's id keeps apart a worker of a killed preparation that has not ended yet.
    """
    beside = path.with_name(f"{records.UNFINISHED}-{path.name}-{os.getpid()}")
    try:
        yield beside
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def inputs_sha256(unit: Sequence[Input]) -> str:
    """Returns a hash of the names and the content of a unit's inputs.

    Of a TFDS set, dataset_info.json stands for the content; it has the shards' sizes.
    """
    found = []
    for part in unit:
        place = epath.Path(part.path)
        if part.format == "tfds":
            place /= TFDS_INFO
        with refusing(f"{place}: cannot be read", OSError):
            found.append([part.name, part.first, part.last, part.split, file_sha256(place)])
    return _sha256(found)


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
