"""Checksums of a checkpoint's files, and hashes of its parameters.

The checksums are written before a checkpoint is committed, and checked before it is read.
Storage flips bits, copies stop half-way and users delete files. Orbax restores most such damage
without an error. `manifest.json` lists the size and SHA-256 of every file, and a checksum of this
list.
"""

import hashlib
import json
import os

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from widenet_jax.data.blocks import in_threads
from widenet_jax.files import is_remote, parse_json, require_store, write_json
from widenet_jax.param_names import named_leaves
from widenet_jax.typing import PyTree

MANIFEST = "manifest.json"
# Orbax writes these after the manifest; restoring does not need them.
LEFT_OUT = (MANIFEST, "_CHECKPOINT_METADATA", "commit_success.txt")


def write_manifest(directory: epath.Path) -> None:
    """Writes the manifest of `directory` and flushes all of its files to disk."""
    names = sorted(files_below(directory))
    digests = in_threads(lambda name: size_and_sha256(directory / name, flush=True), names)
    files = dict(zip(names, digests, strict=True))
    write_json(directory / MANIFEST, {"files": files, "sha256": own_sha256(files)})


def damage(directory: epath.Path, *, contents: bool = True) -> str | None:
    """Describes the first damaged file of a checkpoint; returns None if all files are intact.

    Args:
      directory: of the checkpoint.
      contents: whether files are read; without, an object store is only asked for their sizes.

    Raises:
      OSError: a file exists and cannot be read; the cause may be temporary.
    """
    try:
        manifest = parse_json((directory / MANIFEST).read_text())
        files = {name: (int(size), str(sha)) for name, (size, sha) in manifest["files"].items()}
        if own_sha256(manifest["files"]) != manifest["sha256"]:
            raise ValueError
    except FileNotFoundError:
        return f"{MANIFEST} is missing: not finished"
    except (ValueError, KeyError, TypeError, AttributeError, IsADirectoryError):
        return f"{MANIFEST} is damaged"
    if not contents and is_remote(directory):
        sizes = sizes_below(directory)
        odd = (name for name, (size, _) in sorted(files.items()) if sizes.get(name) != size)
        return next((f"{name} is missing, or has another size" for name in odd), None)
    problems = in_threads(lambda name: file_damage(directory / name, *files[name]), sorted(files))
    named = (f"{name} {what}" for name, what in zip(sorted(files), problems, strict=True) if what)
    return next(named, None)


def file_damage(path: epath.Path, size: int, sha256: str) -> str | None:
    """Describes how a file differs from its manifest entry; returns None if it does not."""
    try:
        length, found = size_and_sha256(path)
    except IsADirectoryError:
        return "is a directory"
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    if length != size:
        return f"has {length} bytes instead of {size}"
    return None if found == sha256 else "has changed bytes"


def files_below(directory: epath.Path, prefix: str = "") -> list[str]:
    """Lists the relative paths of all files except those in LEFT_OUT."""
    if is_remote(directory):
        return [name for name in sizes_below(directory) if name.split("/")[-1] not in LEFT_OUT]
    found = []
    for path in directory.iterdir():
        name = f"{prefix}{path.name}"
        if path.is_dir():
            found += files_below(path, f"{name}/")
        elif path.name not in LEFT_OUT:
            found.append(name)
    return found


def sizes_below(directory: epath.Path) -> dict[str, int]:
    """Returns the bytes of each object below a directory on an object store, by relative path."""
    found = require_store(directory).below(f"{directory}/")
    return {path.removeprefix(f"{directory}/"): size for path, size in found.items()}


def size_and_sha256(path: epath.Path, *, flush: bool = False) -> tuple[int, str]:
    """Returns a file's size in bytes and its SHA-256 in hex; `flush` also syncs it to disk."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if flush and not is_remote(path):
            os.fsync(file.fileno())
        # `file_digest` leaves a file that is in memory, as of an object store, at its start.
        return file.seek(0, os.SEEK_END), digest


def own_sha256(files: dict) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def fingerprint(params: PyTree) -> str:
    """Hashes a tree's names, shapes and types, but not its values."""
    rows = [(name, list(x.shape), str(x.dtype)) for name, x in named_leaves(params)]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()[:16]


def params_sha256(params: PyTree) -> str:
    """Hashes the bytes of every parameter, in the order of their names, gathered from all hosts."""
    digest = hashlib.sha256()
    for name, leaf in sorted(named_leaves(params), key=lambda pair: pair[0]):
        whole = leaf
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            whole = multihost_utils.process_allgather(leaf, tiled=True)
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(whole).tobytes())
    return digest.hexdigest()
