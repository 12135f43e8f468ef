"""Opens local input files: regular files only, of a size that has been checked.

A fifo or a device in place of a file would make `open` or `read` wait for ever, and a sparse file
can claim terabytes.
"""

import contextlib
import errno
import itertools
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from etils import epath

from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.files import is_remote

MAX_IMAGE_BYTES = 256 << 20
# What files begin with: compressed ones, and parquet.
GZIP, BZIP2, XZ, PARQUET = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"PAR1"

_SHARD = re.compile(r"(.+?)[-.]\d{5}-of-(\d{5})\D.*")


def open_regular(
    path: str | os.PathLike, *, max_bytes: int | None = None, buffering: int = -1
) -> BinaryIO:
    """Opens a regular file, or a link to one, for reading.

    Args:
      path: a local path.
      max_bytes: the largest size that is accepted; None accepts any.
      buffering: as in the built-in `open`.

    Raises:
      OSError: the file cannot be opened, is not a regular file, or is larger than `max_bytes`.
        `strerror` says which.
    """

    def open_and_check(name: str, flags: int) -> int:
        # Without O_NONBLOCK the open of a fifo waits for a writer. Regular files ignore the flag.
        descriptor = os.open(name, flags | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        problem = None
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            problem = errno.EINVAL, "not a regular file"  # a directory `open` refuses itself
        elif max_bytes is not None and status.st_size > max_bytes:
            problem = errno.EFBIG, f"{status.st_size:,} bytes, more than {max_bytes:,}"
        if problem:
            os.close(descriptor)
            raise OSError(*problem, name)
        return descriptor

    return open(path, "rb", buffering=buffering, opener=open_and_check)


def read_regular(path: str | os.PathLike, *, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
    """Returns the content of a regular file. Raises as `open_regular` does."""
    with open_regular(path, max_bytes=max_bytes, buffering=0) as file:
        return file.read()


def bytes_in(path: str) -> int:
    """Returns the size of a regular file, or of one on an object store; raises OSError."""
    if is_remote(path):
        return epath.Path(path).stat().length
    with open_regular(path) as file:
        return file.seek(0, os.SEEK_END)


def open_input(path: str) -> BinaryIO:
    """Opens an input file; raises BadInputError unless it can be read, and a local one is regular.

    It may lie on an object store.
    """
    with refusing(f"{path}: cannot be opened", OSError):
        return epath.Path(path).open("rb") if is_remote(path) else open_regular(path)


def read_input(path: str | os.PathLike) -> bytes:
    """Returns the content of a local or remote file; raises BadInputError if it is unreadable."""
    with refusing(f"{path}: cannot be read", OSError):
        return epath.Path(path).read_bytes() if is_remote(path) else read_regular(path)


def shards_text(paths: Iterable[str]) -> str:
    """Returns what is odd about files NAME-00000-of-00002: "1 of 2 files train"; or ""."""
    found = Counter(match.groups() for path in paths if (match := _SHARD.fullmatch(path)))
    whole = len({name for name, _ in found}) == len(found)
    texts = [f"{count:,} of {int(size):,} files {name}" for (name, size), count in found.items()]
    odd = not whole or any(count < int(size) for (_, size), count in found.items())
    return " and ".join(texts) if odd else ""


def once(paths: Sequence[str]) -> list[str]:
    """Returns the paths, of several that lead to one file the first; a note names the others."""
    kept: dict[str, str] = {}
    for path in paths:
        kept.setdefault(_real(path), path)
    if left := [*(Counter(paths) - Counter(kept.values()))]:
        more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
        print(f"note: given twice, read once: {left[0]}{more}", file=sys.stderr)
    return [*kept.values()]


def check_apart(splits: Mapping[str, Iterable[str]], what: str) -> None:
    """Raises BadInputError where splits share a file that is not empty, perhaps by a link."""
    found = [
        (split, {_real(path) for path in paths if not _is_empty(path)})
        for split, paths in splits.items()
    ]
    for (one, files), (other, others) in itertools.combinations(found, 2):
        for path in sorted(files & others)[:1]:
            same = f"{one} and {other}, which would have the same {what}"
            raise BadInputError(f"{path} is in two splits, {same}; leave it out of one of them")


def _is_empty(path: str) -> bool:
    return not is_remote(path) and os.path.isfile(path) and not os.path.getsize(path)


def _real(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


@contextlib.contextmanager
def open_parquet(source: Any, path: object) -> Iterator[Any]:
    """Opens a parquet file as a `pyarrow.parquet.ParquetFile`.

    Args:
      source: a file object or a local path.
      path: the file, for messages.

    Raises:
      BadInputError: the file is damaged, also where that shows as it is read; or two columns have
        the same name.
    """
    import pyarrow as pa  # slow to import
    import pyarrow.parquet as pq

    with (
        refusing(f"{path}: damaged, or not a parquet file", OSError, pa.ArrowException),
        pq.ParquetFile(source, page_checksum_verification=True) as file,
    ):
        names = file.schema_arrow.names
        twice = f"two columns have the same name; there are {', '.join(names)}"
        refuse(path, (len({*names}) < len(names), twice))
        yield file


def class_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Returns the names that the `datasets` library stores for a column of labels; () of others."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()
