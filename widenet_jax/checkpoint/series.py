"""The checkpoints of one directory: written in the background, committed whole, read if whole.

A checkpoint is a directory named by its step. It holds items of arrays, `meta` (JSON) and a
manifest of checksums that is committed with them: Orbax writes beside and renames. Reading takes
the newest checkpoint that is whole. Older ones are deleted only after a newer one has been read
back.
"""

import hashlib
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from widenet_jax.checkpoint.manifest import damage, write_manifest
from widenet_jax.checkpoint.space import DAMAGED, space_text, tree_bytes
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.typing import PyTree

FORMAT_VERSION = 1
UNFINISHED = ".orbax-checkpoint-tmp"
NONE = -1  # no step


class Restored(NamedTuple):
    """What a checkpoint held: `items` by name, and its `meta`, which knows the step."""

    items: dict[str, PyTree]
    meta: dict[str, Any]


class Series:
    """The checkpoints of one directory, by step; one is written in the background at a time.

    Args:
      directory: created by the first save.
      keep: newest checkpoints to keep.
    """

    def __init__(self, directory: epath.Path, *, keep: int):
        self.directory, self.keep = directory, keep
        self.writing: threading.Thread | None = None
        self.error: RunFailedError | None = None
        self.step = NONE  # of the checkpoint last written or read
        # Hosts meet at numbered barriers. Saves of two series run in the background at the same
        # time, so each counts its own: with one count, hosts may wait for each other forever.
        name = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
        self.checkpointer = ocp.AsyncCheckpointer(
            item_handler(),
            async_options=ocp.AsyncOptions(post_finalization_callback=self._before_commit),
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=name
            ),
        )

    def save(self, step: int, arrays: Mapping[str, PyTree], meta: Mapping) -> None:
        """Writes in the background; returns once the arrays are copied off the devices.

        Raises:
          RunFailedError: this save could not begin, or the one before failed.
        """
        self.wait()
        self.step = step
        size = tree_bytes(arrays)
        args = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
        args = ocp.args.Composite(meta=ocp.args.JsonSave(dict(meta)), **args)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.checkpointer.save(self.directory / str(step), args=args)
        except Exception as error:
            raise self._cannot_write(error, size) from error
        self.writing = threading.Thread(target=self._finish, args=(size,), name="checkpoint")
        self.writing.start()

    def _before_commit(self) -> None:
        """Called by Orbax on the first host when all is written and not yet renamed."""
        place = self.directory / f"{self.step}{UNFINISHED}"
        # Object stores do not rename: there the marker file that comes next is what commits.
        write_manifest(place if place.exists() else self.directory / str(self.step))

    def _finish(self, size: int) -> None:
        """Waits for the commit, reads it back, then deletes what is older than `keep` ones."""
        try:
            self.checkpointer.wait_until_finished()
            if jax.process_index() == 0:
                if problem := damage(self.directory / str(self.step)):
                    raise OSError(f"read back, {problem}")
                others = [step for step in self.steps() if step != self.step]
                for step in others[: max(0, len(others) + 1 - self.keep)]:
                    (self.directory / str(step)).rmtree()
        except Exception as error:
            self.error = self._cannot_write(error, size)

    def _cannot_write(self, error: Exception, size: int) -> RunFailedError:
        self.remove_unfinished()
        return RunFailedError(
            f"checkpoint {self.step} could not be written to {self.directory}: {first_line(error)}"
            f"{space_text(self.directory, size)}; older checkpoints are as they were, and the same "
            "command goes on from them"
        )

    def check(self) -> None:
        """Raises the error of a background save as soon as it is known."""
        if self.error:
            error, self.error = self.error, None
            raise error

    def wait(self) -> None:
        """Returns when everything asked for is on disk; raises RunFailedError if it is not."""
        if self.writing:
            self.writing.join()
            self.writing = None
        self.check()

    def close(self) -> None:
        if self.writing:
            self.writing.join()
        self.checkpointer.close()

    def steps(self) -> list[int]:
        """Steps of committed checkpoints, whole or not, oldest first."""
        if not self.directory.exists():
            return []
        return sorted(ocp.utils.checkpoint_steps(self.directory))

    def damaged(self) -> list[str]:
        """Names of the directories that `quarantine` has renamed."""
        if not self.directory.exists():
            return []
        return sorted(path.name for path in self.directory.glob(f"*{DAMAGED}*"))

    def remove_others(self) -> None:
        """Deletes all but the checkpoint last read: one that a kill kept from being deleted."""
        for step in self.steps() if jax.process_index() == 0 else []:
            if step != self.step:
                (self.directory / str(step)).rmtree()

    def remove_unfinished(self) -> list[str]:
        """Deletes what a save left that never finished; returns the steps' names."""
        if jax.process_index() or not self.directory.exists():
            return []
        left = [path for path in self.directory.iterdir() if UNFINISHED in path.name]
        for path in left:
            path.rmtree()
        return sorted(path.name.split(".")[0] for path in left)

    def newest(
        self,
        targets: Mapping[str, PyTree],
        *,
        fingerprint: str | None = None,
        finite: bool = True,
    ) -> tuple[Restored | None, dict[int, str]]:
        """The newest whole checkpoint, placed as `targets`; and what is wrong with newer ones.

        Every host calls it; the first one reads the files for all.

        Args:
          targets: shapes with shardings for the items to read; an item mapped to a sharding is
            read as it was stored.
          fingerprint: of the parameters the caller has; None takes any.
          finite: numbers that are not finite count as damage.

        Raises:
          BadInputError: the checkpoint is of another model, or of a newer version.
          RunFailedError: there are checkpoints and none of them is whole, or the disk does not
            let them be read.
        """
        damaged: dict[int, str] = {}
        while (step := self._next_whole(damaged)) != NONE:
            meta = self._read(step, meta=ocp.args.JsonRestore()).meta
            check_format(meta, self.directory / str(step))
            if fingerprint not in (None, meta["fingerprint"]):
                raise BadInputError(
                    f"checkpoint {step} in {self.directory} holds another model than the config "
                    "asks for; use a new --workdir, or the config that made it"
                )
            args = {
                name: ocp.args.StandardRestore(self._target(step, name, target))
                for name, target in targets.items()
            }
            items = dict(self._read(step, **args)) if args else {}
            if not finite or all_finite(items):
                self.step = step
                return Restored(items, meta), damaged
            damaged[step] = "holds numbers that are not finite"
        if damaged:
            named = "; ".join(f"{step}: {problem}" for step, problem in damaged.items())
            raise RunFailedError(
                f"no checkpoint in {self.directory} is whole ({named}); nothing was changed. "
                "Restore them from a copy, or start again in a new --workdir"
            )
        return None, {}

    def _next_whole(self, damaged: dict[int, str]) -> int:
        """The newest step not in `damaged` whose files are as written; adds those that are not."""
        found = NONE
        if jax.process_index() == 0:
            for step in reversed([s for s in self.steps() if s not in damaged]):
                problem = self._damage(step)
                if problem is None:
                    found = step
                    break
                damaged[step] = problem
        # Every host must know whether any is damaged: it decides between an error and a new run.
        found, count = multihost_utils.broadcast_one_to_all(np.int32([found, len(damaged)]))
        if count and not damaged:
            damaged[NONE] = "the first process names them"
        return int(found)

    def _damage(self, step: int) -> str | None:
        try:
            return damage(self.directory / str(step))
        except OSError as error:
            raise RunFailedError(
                f"{self.directory / str(step)} cannot be read: {error}; nothing was changed, try "
                "again"
            ) from error

    def _read(self, step: int, **args: Any) -> Any:
        path = self.directory / str(step)
        try:
            return self.checkpointer.restore(path, args=ocp.args.Composite(**args))
        except Exception as error:
            raise RunFailedError(f"{path} cannot be read: {first_line(error)}") from error

    def _target(self, step: int, item: str, target: PyTree) -> PyTree:
        """`target`, or where it is a sharding the stored shapes with it."""
        if not isinstance(target, jax.sharding.Sharding):
            return jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
        with closing(ocp.StandardCheckpointer()) as reader:
            stored = reader.metadata(self.directory / str(step) / item).item_metadata.tree
        return jax.tree.map(
            lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=target), stored
        )

    def quarantine(self, damaged: Mapping[int, str]) -> None:
        """Renames damaged checkpoints, so that nobody takes them for whole, with a warning."""
        for step, problem in damaged.items():
            if jax.process_index():
                continue
            place = self.directory / str(step)
            aside = self.directory / f"{step}{DAMAGED}"
            for copy in range(2, 100):
                if not aside.exists():
                    break
                aside = self.directory / f"{step}{DAMAGED}-{copy}"
            place.rename(aside)
            print(f"warning: {place} {problem}; now {aside.name}", file=sys.stderr)


def item_handler() -> ocp.CompositeCheckpointHandler:
    return ocp.CompositeCheckpointHandler(
        params=ocp.StandardCheckpointHandler(),
        opt_state=ocp.StandardCheckpointHandler(),
        meta=ocp.JsonCheckpointHandler(),
    )


def check_format(meta: Mapping, path: epath.Path) -> None:
    version = meta.get("format_version")
    if version != FORMAT_VERSION:
        raise BadInputError(
            f"{path} has format_version {version!r}, and this version of widenet_jax reads "
            f"{FORMAT_VERSION}; use the version that wrote it"
        )


@jax.jit
def _finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def all_finite(tree: PyTree) -> bool:
    """Whether no floating point number of a tree is infinite or not a number."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return not leaves or bool(_finite(leaves))


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
