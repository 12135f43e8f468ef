"""Files of text: opened, decompressed and decoded."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from widenet_jax.data.input_files import BZIP2, GZIP, XZ, open_input
from widenet_jax.errors import BadInputError, refuse, refusing

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz")
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # what such a file begins with
NEWLINE = b"\n"
_BEGINNING = 4096  # bytes from which a format is recognised
# The beginning of a compressed file, and what opens it.
_COMPRESSED: dict[bytes, Callable[[BinaryIO], BinaryIO]] = {
    GZIP: lambda file: gzip.GzipFile(fileobj=file),
    BZIP2: lambda file: whole(file, bz2.BZ2File),
    XZ: lambda file: whole(file, lzma.LZMAFile),
}
# The beginning of a file that is not opened, and how to open it.
_UNREAD = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard; unpack it (zstd -d) first",
}


def whole(file: BinaryIO, opens: Callable[[BinaryIO], Any]) -> BinaryIO:
    """Opens a compressed file that raises an error at damage between two of its streams.

    Python takes what follows for no part of the file: one of several streams, as pbzip2 writes it,
    would lose its end in silence.
    """
    content = opens(file)
    content._buffer.raw._trailing_error = ()
    return content


def first_bytes(path: str) -> bytes:
    """Returns the beginning of a file; raises BadInputError for a tar archive, or as `opened`."""
    with opened(path) as file:
        beginning = file.read(_BEGINNING)
        refuse(path, (beginning[257:262] == b"ustar", "a tar archive; unpack it first"))
        return beginning


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Opens a file, decompressed if it is compressed.

    Raises:
      BadInputError: the file cannot be opened, or is packed in another way; or it is damaged, also
        where that shows as it is read.
    """
    damage = (OSError, EOFError, zlib.error, lzma.LZMAError)
    with open_input(path) as file, refusing(f"{path}: damaged or cut short", *damage):
        beginning = file.read(max(map(len, (*_COMPRESSED, *_UNREAD))))
        file.seek(0)
        refuse(path, *((beginning.startswith(mark), what) for mark, what in _UNREAD.items()))
        found = [opens for mark, opens in _COMPRESSED.items() if beginning.startswith(mark)]
        yield io.BufferedReader(found[0](file)) if found else file


def decoded(text: bytes, where: str, first_line: int | None = None) -> str:
    """Returns a text, which is UTF-8 without NUL.

    Args:
      text: its bytes.
      where: its place, for messages.
      first_line: number of its first line in the file; None where `where` tells enough.

    Raises:
      BadInputError: it is not such text; the message names the line.
    """
    try:
        if b"\0" not in text:
            return text.decode()
        place, problem = text.index(b"\0"), "holds a NUL character, so is not text; remove it"
    except UnicodeDecodeError as error:
        place, problem = error.start, "not UTF-8 text; save it as UTF-8 (iconv -f latin1 -t utf8)"
    if text.startswith(UTF16):
        problem = "UTF-16 text; save it as UTF-8 (iconv -f utf-16 -t utf8)"
    if first_line is not None:
        where += f" line {first_line + text.count(NEWLINE, 0, place)}"
    raise BadInputError(f"{where}: {problem}")
