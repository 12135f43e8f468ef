"""Reads tar archives forwards, in memory, and verifies that they are whole.

Python's `tarfile` takes a header that it cannot read for the end of the archive, so a damaged or
cut archive would look like a shorter one. Here such a header is an error, and after the last member
come two blocks of zeros and nothing but zeros. A compressed archive is thereby read to its end,
where gzip, bzip2 and xz verify their checksums.
"""

import bz2
import contextlib
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from widenet_jax.data.input_files import BZIP2, GZIP, MAX_IMAGE_BYTES, XZ, open_input
from widenet_jax.errors import BadInputError

MAX_INNER_ARCHIVE_BYTES = 4 << 30
MAX_EXTENDED_HEADER_BYTES = 1 << 20
MAX_PADDING_BYTES = 16 << 20  # zeros after the end-of-archive blocks
_COMPRESSIONS = {GZIP: gzip.open, BZIP2: bz2.open, XZ: lzma.open}
# Raised for damaged or cut data, and by xz for a header that asks for too much memory.
_READ_ERRORS = (
    tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError, ValueError
)  # fmt: skip
_EXTENDED_HEADERS = (
    tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip


class Member(NamedTuple):
    """A regular file in an archive, to be read before the next one is asked for.

    Attributes:
      name: its path in the archive.
      size: bytes of its content.
      where: archive and name, for messages.
      content: its content.
    """

    name: str
    size: int
    where: str
    content: BinaryIO

    @property
    def is_archive(self) -> bool:
        """Whether it is a tar archive itself, by its name."""
        return self.name.endswith(".tar")

    def read(self) -> bytes:
        """Returns the content; raises BadInputError if it is cut short."""
        with _named(self.where):
            data = self.content.read()
            if len(data) < self.size:
                raise EOFError("the archive is cut short")
            return data


class _Header(tarfile.TarInfo):
    """A header that raises an error which `tarfile` does not take for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> "_Header":
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            cut = len(buf) < tarfile.BLOCKSIZE
            raise EOFError("no end-of-archive blocks: it is cut short" if cut else error) from None
        if header.type in _EXTENDED_HEADERS and header.size > MAX_EXTENDED_HEADER_BYTES:
            raise ValueError(f"extended header of {header.size:,} bytes")
        return header


@contextlib.contextmanager
def _named(where: str, content: Any = None) -> Iterator[None]:
    """Turns an error in reading into one that names the archive and the place in `content`."""
    try:
        yield
    except _READ_ERRORS as error:
        if isinstance(error, BadInputError):  # of an archive around this one
            raise
        at = content.offset if isinstance(content, tarfile.TarFile) else 0
        raise BadInputError(
            f"{where}: damaged at byte {at:,} of the (uncompressed) archive, or no tar archive: "
            f"{str(error) or type(error).__name__}; download or copy it again"
        ) from None


def read_archive(path: str) -> Iterator[Member]:
    """Yields the regular files of a tar archive, plain or compressed (gzip, bzip2, xz).

    Raises:
      BadInputError: as `members` does.
    """
    with open_input(path) as file:
        start = file.read(max(map(len, _COMPRESSIONS)))
        file.seek(0)
        found = [opens for mark, opens in _COMPRESSIONS.items() if start.startswith(mark)]
        yield from members(found[0](file) if found else file, path)


def members(content: BinaryIO, where: str) -> Iterator[Member]:
    """Yields the regular files of a tar archive; directories and hidden files are left out.

    Raises:
      BadInputError: the archive is damaged or cut anywhere but in the files' content, for which tar
        has no checksum; or a member is a link, a device, a sparse file, or too big.
    """
    with _named(where):
        archive = tarfile.TarFile(fileobj=content, tarinfo=_Header)
    while True:
        with _named(where, archive):
            header = archive.next()
            archive.members.clear()  # it would keep every header
        if header is None:
            break
        place = f"{where}:{header.name}"
        if header.isdir() or Path(header.name).name.startswith("."):
            continue
        if header.issparse() or not header.isreg():
            kind = "sparse file" if header.issparse() else "link or device"
            raise BadInputError(f"{place}: a {kind}; remove it from the archive")
        member = Member(header.name, header.size, place, archive.extractfile(header))
        if header.size > (MAX_INNER_ARCHIVE_BYTES if member.is_archive else MAX_IMAGE_BYTES):
            raise BadInputError(f"{place}: {header.size:,} bytes: too big; remove it")
        yield member
    with _named(where, archive):
        _verify_end(archive, content)


def _verify_end(archive: tarfile.TarFile, content: BinaryIO) -> None:
    """Reads both end-of-archive blocks and the padding, to the end of the stream."""
    content.seek(archive.offset)
    if content.read(2 * tarfile.BLOCKSIZE) != bytes(2 * tarfile.BLOCKSIZE):
        raise EOFError("only one of the two end-of-archive blocks")
    size = 0
    while padding := content.read(1 << 16):
        size += len(padding)
        if padding.count(0) != len(padding):
            raise ValueError("data follow the end-of-archive blocks")
        if size > MAX_PADDING_BYTES:
            raise ValueError(f"more than {MAX_PADDING_BYTES:,} bytes of padding")
