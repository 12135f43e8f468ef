"""Checkpoints: state, step, config and class names, through Orbax. Workdirs may be gs://.

A checkpoint holds three items: `params` and `opt_state` (arrays; the tree has one name a layer,
whatever the mesh or the number of hosts) and `meta` (JSON). Only committed checkpoints count:
Orbax writes beside and renames.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import closing

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.param_paths import path_names
from widenet_jax.step import TrainState
from widenet_jax.typing import PyTree

FORMAT_VERSION = 1
LAST, BEST = "checkpoints", "best"


class Checkpoints:
    """The newest checkpoints of a run, and the best by evaluation accuracy beside them.

    Args:
      workdir: of the run.
      meta: what is stored with every checkpoint: config, class names.
      keep: newest checkpoints to keep.
    """

    def __init__(self, workdir: epath.Path, *, meta: Mapping, keep: int):
        self.meta = dict(meta)
        self.last = open_manager(workdir / LAST, keep=keep)
        self.best = open_manager(workdir / BEST, keep=1)
        self.best_accuracy = read_best_accuracy(self.best)

    def save(self, state: TrainState, *, step: int) -> None:
        """Writes in the background; returns once the arrays are copied off the devices."""
        if step != self.last.latest_step():
            self.last.save(step, args=self.items(state, step=step))

    def save_best(self, state: TrainState, *, step: int, accuracy: float) -> None:
        """Keeps `state` beside the newest ones if its accuracy is the highest so far."""
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            # Steps after the one resumed from come again, with other rounding on another mesh.
            if step in self.best.all_steps():
                self.best.wait_until_finished()
                self.best.delete(step)
            self.best.save(step, args=self.items(state, step=step, accuracy=accuracy), force=True)

    def items(self, state: TrainState, **facts: float) -> ocp.args.Composite:
        meta = {
            "format_version": FORMAT_VERSION,
            "fingerprint": fingerprint(state.params),
            **self.meta,
            **facts,
        }
        return ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            opt_state=ocp.args.StandardSave(state.opt_state),
            meta=ocp.args.JsonSave(meta),
        )

    def restore_latest(self, state: TrainState) -> tuple[TrainState, int]:
        """The newest checkpoint, placed as `state` is, and its step; `state` and 0 if none.

        Raises:
          BadInputError: the checkpoint is of another model.
          RunFailedError: there is a checkpoint and it cannot be read.
        """
        step = self.last.latest_step()
        if step is None:
            return state, 0
        check_fingerprint(self.last, step, state.params)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(abstract.params),
            opt_state=ocp.args.StandardRestore(abstract.opt_state),
        )
        restored = restore(self.last, step, items)
        scalar = jax.device_put(np.int32(step), state.step.sharding)
        return TrainState(step=scalar, params=restored.params, opt_state=restored.opt_state), step

    def wait(self) -> None:
        """Returns when everything asked for is on disk."""
        self.last.wait_until_finished()
        self.best.wait_until_finished()

    def close(self) -> None:
        self.last.close()
        self.best.close()


def absolute(path: str) -> epath.Path:
    """A workdir as Orbax wants it: absolute, where it is not a URL such as gs://..."""
    return epath.Path(path if "://" in path else os.path.abspath(os.path.expanduser(path)))


def has_checkpoint(workdir: epath.Path) -> bool:
    """Whether a run has a committed checkpoint to go on from."""
    directory = workdir / LAST
    return directory.exists() and bool(ocp.utils.checkpoint_steps(directory))


def open_manager(directory: epath.Path, *, keep: int | None) -> ocp.CheckpointManager:
    # Hosts meet at numbered barriers. Saves of two managers run in the background at the same
    # time, so each manager counts its own: with one count, hosts may wait for each other forever.
    name = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        create=True,
        multiprocessing_options=ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=name),
    )
    handlers = {
        "params": ocp.StandardCheckpointHandler(),
        "opt_state": ocp.StandardCheckpointHandler(),
        "meta": ocp.JsonCheckpointHandler(),
    }
    return ocp.CheckpointManager(directory, options=options, item_handlers=handlers)


def restore(
    manager: ocp.CheckpointManager, step: int, items: ocp.args.Composite
) -> ocp.args.Composite:
    """The items asked for.

    Raises:
      RunFailedError: they cannot be read.
    """
    try:
        return manager.restore(step, args=items)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RunFailedError(
            f"checkpoint {step} in {manager.directory} cannot be read: {reason}"
        ) from error


def read_best_accuracy(best: ocp.CheckpointManager) -> float:
    step = best.latest_step()
    return -1.0 if step is None else float(read_meta(best, step)["accuracy"])


def read_meta(manager: ocp.CheckpointManager, step: int) -> dict:
    """The JSON stored with a checkpoint."""
    return restore(manager, step, ocp.args.Composite(meta=ocp.args.JsonRestore())).meta


def check_fingerprint(manager: ocp.CheckpointManager, step: int, params: PyTree) -> None:
    if read_meta(manager, step)["fingerprint"] != fingerprint(params):
        raise BadInputError(
            f"checkpoint {step} in {manager.directory} holds another model than the config asks "
            "for; use a new --workdir, or the config that made it"
        )


def load_params(workdir: str, sharding: jax.sharding.Sharding) -> dict:
    """Parameters of the newest checkpoint of another run, each placed by `sharding`.

    On several hosts all of them call it, with a sharding over all of their devices.

    Raises:
      BadInputError: there is none.
      RunFailedError: it cannot be read.
    """
    directory = absolute(workdir) / LAST
    if not directory.exists():
        raise BadInputError(
            f"config.init_from={workdir}: no {LAST}/ there; give the --workdir of a training run"
        )
    with closing(open_manager(directory, keep=None)) as manager:
        step = manager.latest_step()
        if step is None:
            raise BadInputError(f"config.init_from={workdir}: no finished checkpoint in it")
        abstract = jax.tree.map(
            lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=sharding),
            dict(manager.item_metadata(step)["params"]),
        )
        items = ocp.args.Composite(params=ocp.args.StandardRestore(abstract))
        return restore(manager, step, items).params


def fingerprint(params: PyTree) -> str:
    """Of a tree's names, shapes and types: two trees with the same one are interchangeable."""
    leaves = jax.tree.leaves(params)
    rows = [
        (name, list(leaf.shape), str(leaf.dtype))
        for name, leaf in zip(path_names(params), leaves, strict=True)
    ]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()[:16]


def params_sha256(params: PyTree) -> str:
    """Of every parameter's bytes, in the order of their names, over all hosts."""
    digest = hashlib.sha256()
    named = zip(path_names(params), jax.tree.leaves(params), strict=True)
    for name, leaf in sorted(named, key=lambda pair: pair[0]):
        whole = leaf
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            whole = multihost_utils.process_allgather(leaf, tiled=True)
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(whole).tobytes())
    return digest.hexdigest()
