"""Disk space: what a run's checkpoints take, and what is free."""

import os
import shutil
from collections.abc import Sequence

import jax
import numpy as np
from etils import epath

from widenet_jax.checkpoint.manifest import is_local
from widenet_jax.errors import BadInputError
from widenet_jax.typing import PyTree

DAMAGED = ".damaged"  # in the name of a checkpoint that was put aside


def check_space(
    workdir: epath.Path, folders: Sequence[str], *, checkpoint_bytes: int, keep: int
) -> None:
    """Raises BadInputError where a run's checkpoints would not fit on a local disk.

    That is `keep` and one being written, and two of the best: less what is in `folders` already.
    """
    if not is_local(workdir):
        return
    needed = (keep + 3) * checkpoint_bytes
    there = sum(
        os.path.getsize(os.path.join(directory, name))
        for folder in folders
        for directory, _, names in os.walk(workdir / folder)
        if DAMAGED not in directory
        for name in names
    )
    free = free_bytes(workdir)
    if free + there < needed:
        raise BadInputError(
            f"--workdir={workdir}: its checkpoints take up to {megabytes(needed)}, and "
            f"{megabytes(free)} are free there; make room, name another --workdir, or lower "
            f"--config.checkpoint.keep={keep}"
        )


def free_bytes(path: epath.Path) -> int:
    """Free on the disk where `path` is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def space_text(path: epath.Path, needed: int) -> str:
    """ " (needs 12.3 MB, 0.4 MB free)"; nothing on object stores, which do not run full."""
    if not is_local(path):
        return ""
    return f" (needs {megabytes(needed)}, {megabytes(free_bytes(path))} free)"


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def tree_bytes(tree: PyTree) -> int:
    """Of all arrays, or of their shapes and types."""
    return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
