"""Reads tar archives forwards, in memory, and verifies that they are whole.

Python's `tarfile` takes a header that it cannot read for the end of the archive, so a damaged or
cut archive would look like a shorter one. The reader here checks every header's checksum, requires
the two end-of-archive blocks and nothing but zeros after them, and thereby reads a compressed
archive to its end, where gzip, bzip2 and xz verify their checksums.
"""

import bz2
import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from widenet_jax.data.input_files import MAX_IMAGE_BYTES, open_input
from widenet_jax.errors import BadInputError

BLOCK = tarfile.BLOCKSIZE
MAX_INNER_ARCHIVE_BYTES = 4 << 30
MAX_EXTENDED_HEADER_BYTES = 1 << 20
MAX_PADDING_BYTES = 16 << 20  # zeros after the end-of-archive blocks
_CHUNK = 1 << 20
_COMPRESSIONS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
# Raised for damaged or cut compressed data, and by xz for a header that asks for too much memory.
_READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError)
_PAX_HEADERS = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDED_HEADERS = (
    *_PAX_HEADERS, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
)  # fmt: skip


class ForwardBytes:
    """An archive, or one member's content, that is read forwards once.

    Attributes:
      where: its name in messages.
      offset: bytes read so far (uncompressed).
    """

    def __init__(
        self,
        where: str,
        read: Callable[[int], bytes],
        skip: Callable[[int], object] | None = None,
        size: int | None = None,
    ):
        """Wraps a source of bytes.

        Args:
          where: its name in messages.
          read: returns the given number of bytes, fewer only at the end.
          skip: moves past the given number of bytes; None where only reading does.
          size: length of the stream; None where only reading tells.
        """
        self.where, self.offset = where, 0
        self._read, self._skip, self._size = read, skip, size

    def read(self, count: int) -> bytes:
        """Returns the next `count` bytes, fewer only at the end.

        Raises:
          BadInputError: the data are damaged.
        """
        if self._size is not None:
            count = min(count, self._size - self.offset)
        try:
            data = self._read(count)
        except _READ_ERRORS as error:
            raise self.damaged(str(error) or type(error).__name__) from None
        self.offset += len(data)
        return data

    def read_exactly(self, count: int) -> bytes:
        """Returns the next `count` bytes; raises BadInputError if the stream ends before."""
        data = self.read(count)
        if len(data) < count:
            raise self.damaged("the archive is cut short")
        return data

    def skip(self, count: int) -> None:
        """Moves past `count` bytes; raises BadInputError if the stream ends before."""
        if self._skip is None:
            while count:
                count -= len(self.read_exactly(min(count, _CHUNK)))
            return
        if count > self._size - self.offset:
            self.offset = self._size
            raise self.damaged("the archive is cut short")
        self._skip(count)
        self.offset += count

    def damaged(self, problem: str, offset: int | None = None) -> BadInputError:
        """Returns the error that names the stream and the offset (by default the present one)."""
        at = self.offset if offset is None else offset
        return BadInputError(
            f"{self.where}: damaged at byte {at:,} of the (uncompressed) archive: {problem}; "
            "download or copy it again"
        )


class Member(NamedTuple):
    """A regular file in an archive.

    Attributes:
      name: its path in the archive.
      size: bytes of its content.
      content: its content, to be read before the next member is asked for.
    """

    name: str
    size: int
    content: ForwardBytes

    @property
    def is_archive(self) -> bool:
        """Whether it is a tar archive itself, by its name."""
        return self.name.endswith(".tar")


def read_archive(path: str) -> Iterator[Member]:
    """Yields the regular files of a tar archive, plain or compressed (gzip, bzip2, xz).

    Raises:
      BadInputError: as `members` does.
    """
    with open_input(path) as file:
        start = file.read(max(map(len, _COMPRESSIONS)))
        file.seek(0)
        for magic, decompress in _COMPRESSIONS.items():
            if start.startswith(magic):
                with decompress(file) as content:
                    yield from members(ForwardBytes(path, content.read))
                return
        size = os.fstat(file.fileno()).st_size
        yield from members(ForwardBytes(path, file.read, lambda n: file.seek(n, os.SEEK_CUR), size))


def members(archive: ForwardBytes) -> Iterator[Member]:
    """Yields the regular files of a tar archive; directories and hidden files are left out.

    Raises:
      BadInputError: the archive is damaged or cut anywhere but in the files' content, for which tar
        has no checksum; or a member is a link, a device, a sparse file, or too big.
    """
    extended: dict[str, str] = {}
    while True:
        start = archive.offset
        header = _read_header(archive)
        if header is None:
            _verify_end(archive)
            return
        if header.type in _EXTENDED_HEADERS:
            extended |= _read_extended(archive, header, start)
            continue
        name = extended.get("path", header.name)
        size = _member_size(archive, header, extended, start)
        sparse = header.type == tarfile.GNUTYPE_SPARSE or "GNU.sparse.major" in extended
        extended = {}
        content = ForwardBytes(f"{archive.where}:{name}", archive.read_exactly, archive.skip, size)
        member = Member(name, size, content)
        if not (header.isdir() or Path(name).name.startswith(".")):
            if sparse or not header.isreg():
                kind = "sparse file" if sparse else "link or device"
                raise BadInputError(f"{content.where}: a {kind}; remove it from the archive")
            if size > (MAX_INNER_ARCHIVE_BYTES if member.is_archive else MAX_IMAGE_BYTES):
                raise BadInputError(f"{content.where}: {size:,} bytes: too big; remove it")
            yield member
        archive.skip(_padded(size) - content.offset)


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _read_header(archive: ForwardBytes) -> tarfile.TarInfo | None:
    """Reads one header block; returns None for the first end-of-archive block."""
    start = archive.offset
    block = archive.read(BLOCK)
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        if block == bytes(BLOCK):
            return None
        if len(block) == BLOCK and not start:
            raise BadInputError(f"{archive.where}: not a readable tar archive ({error})") from None
        problem = str(error) if len(block) == BLOCK else "no end-of-archive blocks: it is cut short"
        raise archive.damaged(problem, start) from None


def _read_extended(archive: ForwardBytes, header: tarfile.TarInfo, start: int) -> dict[str, str]:
    """Reads the content of a header that describes the next member: its fields, by pax's names."""
    if not 0 <= header.size <= MAX_EXTENDED_HEADER_BYTES:
        raise archive.damaged(f"extended header of {header.size:,} bytes", start)
    content = archive.read_exactly(_padded(header.size))[: header.size]
    if header.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if header.type not in _PAX_HEADERS:
        return {}
    try:
        return _pax_fields(content)
    except ValueError:
        raise archive.damaged("invalid extended header", start) from None


def _pax_fields(content: bytes) -> dict[str, str]:
    """Parses records "LENGTH KEY=VALUE\\n"; LENGTH counts the whole record."""
    fields, at = {}, 0
    while at < len(content):
        space = content.index(b" ", at)
        end = at + int(content[at:space])
        if not space < end <= len(content):
            raise ValueError("record length")
        record = content[space + 1 : end - 1].decode("utf-8", "surrogateescape")
        key, _, value = record.partition("=")
        fields[key] = value
        at = end
    return fields


def _member_size(
    archive: ForwardBytes, header: tarfile.TarInfo, extended: dict[str, str], start: int
) -> int:
    """Returns the bytes of content that follow a member's header."""
    if not header.isreg():
        return 0
    size = extended.get("size", header.size)
    if not str(size).isascii() or not str(size).isdecimal():
        raise archive.damaged(f"size {size} of a member", start)
    return int(size)


def _verify_end(archive: ForwardBytes) -> None:
    """Reads the second end-of-archive block and the padding, to the end of the stream."""
    if archive.read(BLOCK) != bytes(BLOCK):
        raise archive.damaged("only one of the two end-of-archive blocks")
    end = archive.offset
    while padding := archive.read(1 << 16):
        if padding.count(0) != len(padding):
            raise archive.damaged("data follow the end-of-archive blocks", end)
        if archive.offset - end > MAX_PADDING_BYTES:
            raise archive.damaged(f"more than {MAX_PADDING_BYTES:,} bytes of padding", end)
