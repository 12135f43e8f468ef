"""Disk space: the bytes that a run's checkpoints need, and the bytes that are free."""

import os
import shutil
from collections.abc import Sequence

import jax
import numpy as np
from etils import epath

from widenet_jax.errors import BadInputError
from widenet_jax.files import is_remote
from widenet_jax.typing import PyTree

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
    if free + there < needed:
        raise BadInputError(
            f"--workdir={workdir}: its checkpoints take up to {megabytes(needed)}, and only "
            f"{megabytes(free)} are free there; make room, choose another --workdir, or lower "
            f"--config.checkpoint.keep={keep}"
        )


def directory_bytes(directory: epath.Path) -> int:
    """Sums the bytes of all files below a local directory, except damaged checkpoints."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(directory) for name in names)
    return sum(os.path.getsize(path) for path in paths if DAMAGED not in path)


def free_bytes(path: epath.Path) -> int:
    """Returns the bytes free on the disk where `path` is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def space_text(path: epath.Path, needed: int) -> str:
    """Formats " (needs 12.3 MB, 0.4 MB free)"; "" on object stores, which never fill up."""
    if is_remote(path):
        return ""
    return f" (needs {megabytes(needed)}, {megabytes(free_bytes(path))} free)"


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def tree_bytes(tree: PyTree) -> int:
    """Sums the bytes of all arrays of a tree, or of the arrays that its shapes describe."""
    return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
