"""Local and remote paths, and files that are written whole or not at all."""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import IO, Any
from uuid import uuid4

from etils import epath

from widenet_jax.errors import first_line, known_names, refuse, refuse_value, refusing, require

SHIPPED = epath.Path(__file__).parent / "inference" / "weights"  # exports, by name
EXPORT = "export.json"  # of a directory that export.py wrote
FIGURE = b"Matplotlib version"  # in the first bytes of the PNGs of our figures
UNFINISHED = ".tmp"  # suffix of a file that is being written
LOCK = ".lock"  # in a workdir, held while a process trains there

# All that a start leaves in its workdir, beside JSON files, until it saves anything.
BEGUN = (LOCK, "tensorboard", "wandb")
STARTS = "environment.json"  # in a workdir, a record of every start
TOKENIZER = "tokenizer.json"  # in a workdir or a prepared set
# What flock answers on a file system without locks: Lustre without -o flock, NFS without lockd.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
# Orbax and fsspec expand these in the names of directories, even of those that they write to.
WILDCARDS = "*?[\\"


def is_remote(path: epath.PathLike) -> bool:
    """Returns whether a path is on an object store, such as gs://bucket/run."""
    return "://" in str(path)


def absolute(path: str) -> epath.Path:
    """Returns a local path with ~ and relative parts resolved, a remote one as it is.

    Raises:
      BadInputError: the path is on gs://, and gcsfs is not installed; or it is on another store.
    """
    check_store(path)
    if is_remote(path):
        require_store(path)
    return epath.Path(path if is_remote(path) else os.path.abspath(os.path.expanduser(path)))


def check_output(path: str, flag: str, what: str, *marks: bytes) -> None:
    """Makes the directory of a command's output, which may replace an earlier one alone.

    Args:
      path: of the file.
      flag: the flag with the path, for messages.
      what: what the command writes, for messages.
      *marks: one of them is in the first MiB of what it writes.

    Raises:
      BadInputError: a directory is there, or a file that holds something else.
    """
    file, content = absolute(path), b""
    refuse_value(f"{flag}={path}", (file.is_dir(), "is a directory; name a file"))
    if file.exists():
        with file.open("rb") as there:
            content = there.read(1 << 20)  # a row may begin with a long text
    other = content and not any(mark in content for mark in marks)
    refuse_value(f"{flag}={path}", (other, f"holds something else than {what}; name another file"))
    file.parent.mkdir(parents=True, exist_ok=True)


def readable(path: str) -> epath.Path:
    """Returns the path of data to read as it is.

    Raises:
      BadInputError: the path is on gs://, and neither gcsfs nor TensorFlow is installed, through
        which etils reads there; or it is on another store.
    """
    check_store(path)
    if is_remote(path) and not find_spec("tensorflow"):
        require_store(path)
    return epath.Path(path)


def check_store(path: str) -> None:
    """Raises BadInputError for a remote path that is not on gs://, or has one of WILDCARDS."""
    if is_remote(path):
        other = not str(path).startswith("gs://")
        refuse(path, (other, "neither a local path nor gs://; copy it to this machine"))
        check_name(path)


def check_name(path: epath.PathLike) -> None:
    """Raises BadInputError where a path has one of WILDCARDS."""
    found = " ".join(mark for mark in WILDCARDS if mark in str(path))
    effect = "would be taken as a wildcard, and other files be read and written"
    refuse(path, (found, f"{found} in a name {effect}; choose a name without it"))


def require_store(what: epath.PathLike) -> ModuleType:
    """Returns `object_store`, which `what` needs; raises BadInputError where gcsfs is missing."""
    require("gcsfs", extra="gcs", what=str(what))
    from widenet_jax import object_store

    object_store.register()
    return object_store


def user_cache(name: str) -> Path:
    """Returns this user's directory for files that can be computed again, such as "programs"."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "widenet_jax" / name


def may_replace(workdir: epath.Path) -> bool:
    """Returns whether a directory holds a start that saved nothing, and nothing else.

    It holds no checkpoint then, not even a damaged one, no metrics and no file of other programs.
    False on an object store, which has no locks: another start may be training there, and its
    metrics come late.
    """
    if is_remote(workdir) or not (workdir / STARTS).exists():
        return False
    names = {path.name for path in workdir.iterdir()} - {*BEGUN}
    return "result.json" not in names and all(n.endswith((".json", UNFINISHED)) for n in names)


def matching(directory: epath.Path, pattern: str) -> list[epath.Path]:
    """Lists what a directory holds under names like "*.json", sorted; [] where it is missing.

    Unlike `directory.glob`, which expands `*`, `?` and `[` in the directory's own name, too.
    """
    inside: Iterable[epath.Path] = ()
    with suppress(FileNotFoundError, NotADirectoryError):
        inside = [*directory.iterdir()]
    return sorted(p for p in inside if fnmatchcase(p.name, pattern) and p.name[0] != ".")


def is_gone(path: epath.Path) -> bool:
    """Returns whether a file that was there is missing.

    Unlike `exists`, which answers False also where a bucket or a disk cannot be asked.
    """
    try:
        path.stat()
    except OSError as error:  # where it is another one, writing there will tell
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def lock(file: IO, how: int) -> bool:
    """Locks a file until it is closed; returns False where another process holds the lock.

    On a file system without locks it returns True, after a warning.

    Args:
      file: open for writing; for a shared lock, for reading.
      how: as for `fcntl.flock`; with LOCK_NB it does not wait for the other process.
    """
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warn_without_locks(error.strerror)
    return True


@cache  # one line for a sweep of many trials
def warn_without_locks(reason: str) -> None:
    """Prints that locks have no effect."""
    why = f"the file system of --workdir has no locks ({reason})"
    effect = "nothing keeps a second process from writing there; start one at a time"
    print(f"warning: {why}: {effect}", file=sys.stderr)


def find_model(place: str) -> tuple[str, str]:
    """Finds the model that a user names: its place, and its checkpoint.

    Splits `WORKDIR@CHECKPOINT`; the second part is "last", "best", a step, or "" without one. The
    name of a model that comes with the package becomes its directory. A path that exists is taken
    as it is, whether it ends like a checkpoint or is the name of such a model.

    Raises: as `absolute`.
    """
    match = re.fullmatch(r"(.+)@(last|best|\d+)", place)
    name, checkpoint = place, ""
    if match and not absolute(place).exists():
        name, checkpoint = match[1], match[2]
    if name not in shipped_models():
        return name, checkpoint
    if (path := absolute(name)).exists():
        tell_of_local(path)
        return name, checkpoint
    return str(SHIPPED / name), checkpoint


def shipped_models() -> list[str]:
    """Lists the names of the models that come with the package."""
    return [path.name for path in matching(SHIPPED, "*")]


@cache  # a command asks more than once
def tell_of_local(path: epath.Path) -> None:
    """Prints that a path is taken for a model that comes with the package."""
    what = f"{path.name} is the local {path}, not the model that comes with widenet_jax"
    print(f"note: {what}; for the latter rename that path", file=sys.stderr)


def or_shipped(place: str) -> str:
    """Returns what to add to a message about a place without a model; "" if none are shipped."""
    names = shipped_models()
    if not names or place in names:  # a local path has taken the name
        return ""
    return f", or a model of widenet_jax by name: {known_names(place, names)}"


def write_bytes(path: epath.PathLike, data: bytes) -> None:
    """Writes a file whole or not at all.

    A local one is written beside, flushed to disk and renamed, so that neither a reader nor a
    killed process ever sees half a file. An object appears only once all of it is uploaded.
    """
    # Another process may write the same local file at the same time, as calls of a sweep do.
    beside = f"{path}.{uuid4().hex[:8]}{UNFINISHED}"
    try:
        if is_remote(path):
            return require_store(path).write(str(path), data)
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(beside)  # on a full disk, others would follow
        error.strerror = error.strerror or first_line(error)  # etils's errors have only a message
        error.filename = str(path)  # the file that the caller named
        raise


def write_text(path: epath.PathLike, text: str) -> None:
    """`write_bytes` of UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: epath.PathLike, value: Any) -> None:
    """`write_text` of indented JSON."""
    write_text(path, json.dumps(value, indent=1) + "\n")


@contextmanager
def replacing(out: epath.Path, record: str, *others: str) -> Iterator[epath.Path]:
    """Yields an empty directory, whose files then replace those of an earlier call in `out`.

    Its files are `record`, without which nothing is removed, and those that match `others`. Old
    files go once all new ones are written.
    """
    earlier = (out / record).exists()
    with TemporaryDirectory() as name:
        yield (new := epath.Path(name))
        written = {path.name for path in new.iterdir()}
        for file in (*sorted(written - {record}), record):
            write_bytes(out / file, (new / file).read_bytes())
        for pattern in others if earlier else ():
            for path in matching(out, pattern):
                if path.name not in written:
                    path.unlink()


def without_nan(value: Any) -> Any:
    """Replaces non-finite numbers, which JSON cannot represent, by None."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_json(text: str | bytes) -> Any:
    """Parses JSON that someone else wrote; raises JSONDecodeError, also where it nests too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deep", "", 0) from None


def read_json(path: epath.Path) -> Any:
    """Reads a JSON file; raises BadInputError if it is missing or damaged."""
    advice = "; copy or export it again"
    with refusing(f"{path}: cannot be read", OSError, ValueError, advice=advice):
        return parse_json(path.read_text())


def read_object(path: epath.Path) -> dict[str, Any]:
    """Reads a JSON file; raises as `read_json`, also where it holds no object."""
    value = read_json(path)
    odd = not isinstance(value, dict)
    refuse(path, (odd, "holds no JSON object; copy or export it again"))
    return value


def file_sha256(path: epath.PathLike) -> str:
    """Returns the SHA-256 of a file's content; takes about a second a gigabyte."""
    with epath.Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_text(value: object) -> bool:
    """Returns whether a value is a str of whole characters; JSON can escape half of one."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
