"""The checkpoints of one directory: written in the background, verified before they are restored.

A checkpoint is a directory named by its step. It holds items of arrays, `meta` (JSON) and a
manifest of checksums. Orbax writes all of them to a temporary directory and commits them with one
rename; on object stores it writes in place and commits with a marker. Restoring takes the newest
intact checkpoint. Older checkpoints are deleted only after a newer one has been read back and
verified.
"""

import errno
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from widenet_jax.checkpoint.failed_save import bound_tries
from widenet_jax.checkpoint.manifest import MANIFEST, damage, write_manifest
from widenet_jax.errors import (
    NoAnswerError,
    RunFailedError,
    check_format,
    first_line,
    refuse,
    refuse_value,
)
from widenet_jax.files import is_remote, matching, require_store
from widenet_jax.typing import PyTree

FORMAT_VERSION = 1
UNFINISHED = ".orbax-checkpoint-tmp"
COMMIT_SECONDS = 3600  # for hosts to wait for one that asks a store again
COMMITTED = "commit_success.txt"  # Orbax's marker on object stores
NONE = -1  # no step
FEW_INODES = 100  # a checkpoint has dozens of files
OTHER_MODEL = (
    "holds a different model from the one in the config; use a new --workdir, or the config that "
    "trained the checkpoint"
)


class CannotWriteError(RunFailedError):
    """A checkpoint could not be written."""


class CannotReadError(RunFailedError):
    """A checkpoint could not be read, for a reason that may pass."""


class Restored(NamedTuple):
    """The content of a checkpoint: `items` by name, and its `meta`, which holds the step."""

    items: dict[str, PyTree]
    meta: dict[str, Any]


class Series:
    """The checkpoints of one directory, by step; at most one is being written at a time.

    Args:
      directory: created by the first save.
      keep: number of newest checkpoints to keep.
    """

    def __init__(self, directory: epath.Path, *, keep: int):
        self.directory, self.keep = directory, keep
        self.writing: threading.Thread | None = None
        self.error: CannotWriteError | None = None
        self.step = NONE  # step of the checkpoint last written or read
        # Orbax synchronises hosts at numbered barriers. Two series may save at the same time, so
        # each has its own prefix: with a shared count, hosts could reach the barriers in different
        # orders and deadlock.
        name = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
        hosts = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=name)
        # Directories are made before a save begins. Threads that wait for a directory which cannot
        # be made would keep a process from ending for minutes.
        commit = ocp.AsyncOptions(
            timeout_secs=COMMIT_SECONDS,
            post_finalization_callback=self._before_commit,
            create_directories_asynchronously=False,
        )
        items = {name: ocp.StandardCheckpointHandler() for name in ("params", "opt_state", "carry")}
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(hosts, async_options=commit),
            **items,
            meta=ocp.JsonCheckpointHandler(),
        )
        self.checkpointer = ocp.AsyncCheckpointer(
            handler, async_options=commit, multiprocessing_options=hosts
        )

    def save(self, step: int, arrays: Mapping[str, PyTree], meta: Mapping) -> None:
        """Starts a save in the background; returns once the arrays are copied off the devices.

        Raises:
          CannotWriteError: this save could not begin, or the previous one failed.
        """
        self.wait()
        self.step = step
        size = tree_bytes(arrays)
        args = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
        args = ocp.args.Composite(meta=ocp.args.JsonSave(dict(meta)), **args)
        self._bound_tries()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_uncommitted(step)
            self.checkpointer.save(self.directory / str(step), args=args)
        except Exception as error:
            failed = self._cannot_write(error, size)
            raise failed from failed.__cause__
        self.writing = threading.Thread(target=self._finish, args=(size,), name="checkpoint")
        self.writing.start()

    def _remove_uncommitted(self, step: int) -> None:
        """Deletes what a save of this step left on an object store when it was cut off.

        Orbax refuses to write to a place that exists. Its option `force` would delete a committed
        checkpoint as well. The other hosts wait for the first one when they begin to save.
        """
        place = self.directory / str(step)
        mine = jax.process_index() == 0 and is_remote(place)
        if mine and place.exists() and not is_committed(place):
            place.rmtree()

    def _before_commit(self) -> None:
        """Writes the manifest; Orbax calls this on the first host just before the commit."""
        place = self.directory / f"{self.step}{UNFINISHED}"
        # Object stores cannot rename. There Orbax writes in place and then commits with a marker.
        write_manifest(place if place.exists() else self.directory / str(self.step))

    def _finish(self, size: int) -> None:
        """Waits for the commit, reads it back, then deletes all but the newest `keep` steps."""
        try:
            self.checkpointer.wait_until_finished()
            if jax.process_index() == 0:
                # `write_manifest` has hashed what the store gave back.
                if problem := damage(self.directory / str(self.step), contents=False):
                    raise OSError(f"read back, {problem}")
                self.remove_others(keep=self.keep - 1)
        except Exception as error:
            self.error = self._cannot_write(error, size)

    def _cannot_write(self, error: Exception, size: int) -> CannotWriteError:
        """Returns the error of a save that has failed, whose cause may be a store's."""
        error, full = cause_of(error, self.directory), is_full(error)
        lack, mend = space_text(self.directory, size) if full else ("", "mend this")
        try:
            if not isinstance(error, NoAnswerError):  # else the next start removes them
                self.remove_unfinished()
        except NoAnswerError as outage:  # so that is why
            error = outage
        except OSError:
            pass
        problem = f"{full}{lack}" if full else first_line(error)
        if isinstance(error, NoAnswerError):
            mend = "wait for it"
        failed = CannotWriteError(
            f"checkpoint {self.step} could not be written to {self.directory}: {problem}; older "
            f"checkpoints are unchanged: {mend}, then run the same command again to resume"
        )
        failed.__cause__ = error
        return failed

    def check(self) -> None:
        """Raises the error of a background save that has failed since the last check."""
        if self.error:
            error, self.error = self.error, None
            raise error

    def wait(self) -> None:
        """Waits until the last save is on disk; raises RunFailedError if it failed."""
        if self.writing:
            self.writing.join()
            self.writing = None
        self.check()

    def close(self) -> None:
        """Waits for the last save and frees its threads; `wait` raises its error."""
        if self.writing:
            self.writing.join()
        with suppress(Exception):  # Orbax raises a save's error once more
            self.checkpointer.close()

    def steps(self) -> list[int]:
        """Lists the steps of committed checkpoints, intact or damaged, oldest first."""
        return steps_in(self.directory)

    def damaged(self) -> list[str]:
        """Lists the names of the directories that `quarantine` has renamed."""
        return [path.name for path in matching(self.directory, f"*{DAMAGED}*")]

    def remove_others(self, *, keep: int) -> None:
        """Deletes all but the checkpoint last written or read and the newest `keep` of the rest."""
        if jax.process_index() == 0:
            others = [step for step in self.steps() if step != self.step]
            for step in others[: max(0, len(others) - keep)]:
                (self.directory / str(step)).rmtree()

    def remove_unfinished(self) -> list[str]:
        """Deletes what unfinished saves have left; returns their steps' names.

        Temporary directories; on an object store, directories of steps without Orbax's marker and
        without a manifest, which a copy of a local checkpoint has.
        """
        found = [] if jax.process_index() else matching(self.directory, "*")
        remote = is_remote(self.directory)
        cut = [path for path in found if remote and path.name.isdecimal() and not is_whole(path)]
        left = [path for path in found if UNFINISHED in path.name or path in cut]
        for path in left:
            path.rmtree()
        return sorted(path.name.split(".")[0] for path in left)

    def newest(
        self,
        targets: Mapping[str, PyTree],
        *,
        only: int | None = None,
        fingerprint: str | None = None,
        finite: bool = True,
    ) -> tuple[Restored | None, dict[int, str]]:
        """Restores the newest intact checkpoint; also returns the damage found in newer ones.

        Every host must call it. The first host verifies the files for all hosts.

        Args:
          targets: shapes with shardings for the items to read; an item mapped to a sharding keeps
            its stored shapes.
          only: the step to restore; None: of all steps, the newest intact one.
          fingerprint: the fingerprint of the caller's parameters; None accepts any.
          finite: whether non-finite numbers count as damage.

        Raises:
          BadInputError: the checkpoint holds a different model or has another format version.
          CannotReadError: the disk cannot be read.
          RunFailedError: no checkpoint is intact.
        """
        damaged: dict[int, str] = {}
        while (step := self._next_whole(damaged, only, contents=bool(targets))) != NONE:
            path = self.directory / str(step)
            meta = self._read(path, meta=ocp.args.JsonRestore()).meta
            check_format(meta, FORMAT_VERSION, place=path)
            if meta["step"] != step:  # a copied or renamed directory
                damaged[step] = f"holds step {meta['step']}, whose name it must have"
                continue
            other = fingerprint not in (None, meta["fingerprint"])
            refuse_value(f"checkpoint {step} in {self.directory}", (other, OTHER_MODEL))
            args = {
                name: ocp.args.StandardRestore(self._target(path / name, target))
                for name, target in targets.items()
            }
            items = dict(self._read(path, **args)) if args else {}
            if not finite or all_finite(items):
                self.step = step
                return Restored(items, meta), damaged
            damaged[step] = "holds non-finite numbers"
        if damaged:
            named = "; ".join(f"{step}: {problem}" for step, problem in damaged.items())
            raise RunFailedError(
                f"{self.directory} is not intact ({named}); nothing was changed. "
                "Restore one from a backup, choose another, or start again in a new --workdir"
            )
        return None, {}

    def _next_whole(self, damaged: dict[int, str], only: int | None, *, contents: bool) -> int:
        """Finds the newest intact step that is not in `damaged`; adds newer, damaged steps to it.

        Looks at the step `only` alone, if it is given; and as `damage` at `contents`. Returns NONE
        if there is no such step.
        """
        found, failure = NONE, None
        if jax.process_index() == 0:
            try:
                found = self._newest_whole(damaged, only, contents=contents)
            except CannotReadError as error:  # raised when the other hosts know
                failure = error
        # Every host must know whether any checkpoint is damaged, because this decides between an
        # error and a new run. Only the first host knows which.
        found, count, failed = multihost_utils.broadcast_one_to_all(
            np.int32([found, len(damaged), failure is not None])
        )
        if failed:
            raise failure or CannotReadError(f"{self.directory}: see what the first process says")
        if count and not damaged:
            damaged[NONE] = "see the message of the first process"
        return int(found)

    def _newest_whole(self, damaged: dict[int, str], only: int | None, *, contents: bool) -> int:
        """As `_next_whole`, on the first host."""
        with errors_of_reading(self.directory):
            steps = self.steps()
        for step in reversed(steps):
            if only in (None, step) and step not in damaged:
                path = self.directory / str(step)
                with errors_of_reading(path):
                    if not (problem := damage(path, contents=contents)):
                        return step
                damaged[step] = problem
        return NONE

    def _bound_tries(self) -> None:
        """TensorStore tries as long as all other requests to an object store are sent again."""
        if is_remote(self.directory):
            bound_tries(require_store(self.directory).Patience.seconds)

    def _read(self, path: epath.Path, **args: Any) -> Any:
        self._bound_tries()
        with errors_of_reading(path):
            return self.checkpointer.restore(path, args=ocp.args.Composite(**args))

    def _target(self, item: epath.Path, target: PyTree) -> PyTree:
        """Returns shapes with shardings to restore to: `target`, or the stored shapes with it."""
        if not isinstance(target, jax.sharding.Sharding):
            return jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
        with errors_of_reading(item.parent), closing(ocp.StandardCheckpointer()) as reader:
            stored = reader.metadata(item).item_metadata.tree
        shape = partial(jax.ShapeDtypeStruct, sharding=target)
        return jax.tree.map(lambda array: shape(array.shape, array.dtype), stored)

    def quarantine(self, damaged: Mapping[int, str]) -> None:
        """Renames damaged checkpoints, so that later reads skip them, and prints a warning."""
        for step, problem in damaged.items() if jax.process_index() == 0 else ():
            place = self.directory / str(step)
            names = (f"{step}{DAMAGED}{n}" for n in ("", *(f"-{copy}" for copy in range(2, 100))))
            aside = next(p for name in names if not (p := self.directory / name).exists())
            place.rename(aside)
            print(f"warning: {place} {problem}; renamed to {aside.name}", file=sys.stderr)


@contextmanager
def errors_of_reading(path: epath.Path) -> Iterator[None]:
    """Turns every error of reading a checkpoint into a CannotReadError in one line."""
    try:
        yield
    except Exception as error:
        cause = cause_of(error, path)
        raise CannotReadError(
            f"{path} cannot be read: {first_line(cause)}; nothing was changed, retry"
        ) from cause


def cause_of(error: Exception, path: epath.Path) -> Exception:
    """Returns an error; of a request of TensorStore's to an object store what it stands for."""
    return require_store(path).of_tensorstore(error, path) if is_remote(path) else error


def steps_in(directory: epath.Path) -> list[int]:
    """Lists the steps of the committed checkpoints of a directory, oldest first.

    Raises:
      BadInputError: it is a file.
    """
    if is_remote(directory):
        named = [path for path in matching(directory, "*") if path.name.isdecimal()]
        return sorted(int(path.name) for path in named if is_committed(path))
    there = directory.exists()
    is_file = there and not directory.is_dir()
    refuse_value(directory, (is_file, "is a file, and must hold checkpoints; move it away"))
    return sorted(ocp.utils.checkpoint_steps(directory)) if there else []


def is_committed(place: epath.Path) -> bool:
    """Returns whether a checkpoint on an object store is finished."""
    return (place / COMMITTED).exists()


def is_whole(place: epath.Path) -> bool:
    """Returns whether all files of a checkpoint on an object store were written."""
    return is_committed(place) or (place / MANIFEST).exists()


@jax.jit
def _finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def all_finite(tree: PyTree) -> bool:
    """Returns whether every floating-point number of a tree is finite."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return not leaves or bool(_finite(leaves))


DAMAGED = ".damaged"  # suffix that `Series.quarantine` gives to damaged checkpoints


def check_space(
    workdir: epath.Path, folders: Sequence[str], *, checkpoint_bytes: int, keep: int
) -> None:
    """Raises BadInputError if a run's checkpoints would not fit on a local disk.

    The run needs space for `keep` checkpoints and one being written, and for two best checkpoints,
    less the checkpoints that `folders` already hold.
    """
    if is_remote(workdir):
        return
    needed = (keep + 3) * checkpoint_bytes
    there = sum(directory_bytes(workdir / folder) for folder in folders)
    free = free_bytes(workdir)
    problem = (
        f"its checkpoints take up to {megabytes(needed)}, and only {megabytes(free)} are free "
        f"there; make room, choose another --workdir, or lower --config.checkpoint.keep={keep}"
    )
    refuse(f"--workdir={workdir}", (free + there < needed, problem))


def directory_bytes(directory: epath.Path) -> int:
    """Sums the bytes of all files below a local directory, except damaged checkpoints."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(directory) for name in names)
    return sum(os.path.getsize(path) for path in paths if DAMAGED not in path)


def free_bytes(path: epath.Path) -> int:
    """Returns the bytes free on the disk where `path` is or will be."""
    return shutil.disk_usage(existing(path)).free


def existing(path: epath.Path) -> epath.Path:
    """Returns the path, or the nearest directory above it that exists."""
    return path if path.exists() else existing(path.parent)


def is_full(error: Exception) -> str:
    """Returns the system's words for a full disk or quota that an error holds; "" without them."""
    known = map(os.strerror, (errno.ENOSPC, errno.EDQUOT))  # TensorStore's errors have no errno
    return next((words for words in known if words in str(error)), "")


def space_text(path: epath.Path, needed: int = 0) -> tuple[str, str]:
    """Returns what a full disk lacks, bytes or inodes, and what to do about it.

    (" (needs 12.3 MB, 0.4 MB free)", "make room there"). An object store never fills up.
    """
    if is_remote(path):
        return "", "make room there"
    disk, free = os.statvfs(existing(path)), f"{megabytes(free_bytes(path))} free"
    if disk.f_files and disk.f_favail < FEW_INODES:  # f_files is 0 where inodes have no limit
        inodes = f"{disk.f_favail:,} of {disk.f_files:,} inodes free, one for each file"
        return f" ({inodes}; {free})", "delete some files there"
    return f" ({f'needs {megabytes(needed)}, ' if needed else ''}{free})", "make room there"


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def tree_bytes(tree: PyTree) -> int:
    """Sums the bytes of all arrays of a tree, or of the arrays that its shapes describe."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
