"""Checksums of a checkpoint's files: written before it is committed, checked before it is read.

Storage flips bits, copies stop half-way and people delete files; Orbax restores most of that
without a word. `manifest.json` lists every file's size and SHA-256, and its own checksum.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

from etils import epath

MANIFEST = "manifest.json"
# Orbax writes these after the manifest, and a checkpoint reads the same without them.
LEFT_OUT = (MANIFEST, "_CHECKPOINT_METADATA", "commit_success.txt")
BLOCK_BYTES = 1 << 24
MAX_THREADS = 8


def write_manifest(directory: epath.Path) -> None:
    """Lists the files of `directory`, whose content survives a power cut once this returns."""
    names = sorted(files_below(directory))
    digests = in_threads(lambda name: size_and_sha256(directory / name, flush=True), names)
    files = dict(zip(names, digests, strict=True))
    path = directory / MANIFEST
    path.write_text(json.dumps({"files": files, "sha256": own_sha256(files)}, indent=1) + "\n")
    if is_local(path):
        size_and_sha256(path, flush=True)


def damage(directory: epath.Path) -> str | None:
    """What is wrong with a checkpoint, in a few words that name the file; None if it is whole.

    Raises:
      OSError: a file is there and the disk does not give it, which may be different next time.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        files = {name: (int(size), str(sha)) for name, (size, sha) in manifest["files"].items()}
        if own_sha256(manifest["files"]) != manifest["sha256"]:
            raise ValueError
    except FileNotFoundError:
        return f"{MANIFEST} is missing: not finished, or from a version without checksums"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    problems = in_threads(lambda name: file_damage(directory / name, *files[name]), sorted(files))
    named = (f"{name} {what}" for name, what in zip(sorted(files), problems, strict=True) if what)
    return next(named, None)


def file_damage(path: epath.Path, size: int, sha256: str) -> str | None:
    """How a file differs from what was written; None if it does not."""
    try:
        found = path.stat().length
        if found != size:
            return f"has {found} bytes instead of {size}"
        return None if size_and_sha256(path)[1] == sha256 else "has changed bytes"
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"


def files_below(directory: epath.Path, prefix: str = "") -> list[str]:
    """Relative paths of all files but those left out."""
    found = []
    for path in directory.iterdir():
        name = f"{prefix}{path.name}"
        if path.is_dir():
            found += files_below(path, f"{name}/")
        elif path.name not in LEFT_OUT:
            found.append(name)
    return found


def size_and_sha256(path: epath.Path, *, flush: bool = False) -> tuple[int, str]:
    """(bytes, SHA-256 in hex) of a file; with `flush` its content is written through."""
    sha, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            sha.update(block)
            size += len(block)
        if flush and is_local(path):
            os.fsync(file.fileno())
    return size, sha.hexdigest()


def is_local(path: epath.Path) -> bool:
    return "://" not in str(path)


def own_sha256(files: dict) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def in_threads(function, names: list[str]) -> list:
    """[function(name) for name in names]; hashing leaves the interpreter free."""
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        return list(pool.map(function, names))
