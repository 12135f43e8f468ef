"""Readers of tar archives of images.

Archives are read forwards, in memory; nothing is extracted to disk. JPEG and PNG files are kept
byte for byte.

Python's `tarfile` takes a header that it cannot read for the end of the archive, so a damaged or
cut archive would look like a shorter one. Here such a header is an error, and after the last member
come two blocks of zeros and nothing but zeros. A compressed archive is thereby read to its end,
where gzip, bzip2 and xz verify their checksums.
"""

import contextlib
import dataclasses
import itertools
import lzma
import re
import reprlib
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from widenet_jax.config.parser import Options
from widenet_jax.corpus.files import decoded, opened
from widenet_jax.data.input_files import MAX_IMAGE_BYTES, read_input
from widenet_jax.data.labelled import names_text
from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.files import parse_json
from widenet_jax.vision.data.folders import IMAGE_SUFFIXES, kind_left_out
from widenet_jax.vision.prepare.arrays import MAX_CLASSES
from widenet_jax.vision.prepare.packing import Converted, Images, composed, joined

ARCHIVE = ".tar"  # suffix of an archive in another one
_NAME = re.compile(r"((?:.*/)?[^/.]*)([^/]*)", re.DOTALL)  # of a file, to its first dot
LABELS = (".cls", ".json", ".txt")  # of a WebDataset's image, the first that is there
# A line of --labels; a name with spaces ends with the first suffix of an image.
_LISTED = re.compile(rf"(.*?(?:{'|'.join(map(re.escape, IMAGE_SUFFIXES))})|\S+)\s+(.+)", re.I)
PICKLES = ("cifar-10-batches-py", "cifar-100-python")  # folders of CIFAR for Python

MAX_INNER_ARCHIVE_BYTES = 4 << 30
MAX_EXTENDED_HEADER_BYTES = 1 << 20
MAX_PADDING_BYTES = 16 << 20  # zeros after the end-of-archive blocks
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
        return self.name.endswith(ARCHIVE)

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
    with opened(path) as file:
        yield from members(file, path)


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
        most = MAX_INNER_ARCHIVE_BYTES if header.name.endswith(ARCHIVE) else MAX_IMAGE_BYTES
        refuse(
            place,
            (header.issparse(), "a sparse file; remove it from the archive"),
            (not header.isreg(), "a link or device; remove it from the archive"),
            (header.size > most, f"{header.size:,} bytes: too big; remove it"),
        )
        yield Member(header.name, header.size, place, archive.extractfile(header))
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


# --- Sets of images -------------------------------------------------------------------------------


def read_tar(options: Options) -> Converted:
    """Reads tar archives of images.

    The class of an image is the name of its folder (`[.../]CLASS/image.jpg`), or the name of the
    inner archive that holds it (`CLASS.tar` in the outer one: ImageNet's training archive), or for
    a flat archive (ImageNet's validation images) the class that the file --labels gives, in lines
    "image-file-name class". Labels number the class names in sorted order. Archives are read twice:
    for the classes, then for the images.

    Raises:
      BadInputError: an archive is damaged, or an image has no class; or --labels has neither an
        image nor a class with the name of the only folder.
    """
    labels_by_name = _read_labels(options.labels) if options.labels else {}
    listed, unused = {*labels_by_name.values()}, {*labels_by_name}
    left_out: Counter[str] = Counter()
    folders: Counter[tuple[str, str | None]] = Counter()  # of a class, and of its images
    notes: list[str] = []

    def read(path: str) -> Images:
        places, within, lost = Counter(), set(), None
        for member in _wanted(read_archive(path), Counter()):
            name, folder = _class_of(member, labels_by_name), _folder_of(member)
            unused.discard(Path(member.name).name)
            if options.labels and folder is not None and name not in listed:
                lost = lost or member
            places[name, folder] += 1
            within |= {str(Path(member.name).parent.parent)} - {member.is_archive}
        if lost and len({folder for _, folder in places}) == 1:  # else folders are classes
            here = f"neither {Path(lost.name).name} nor a class {_folder_of(lost)!r}; add a line"
            raise BadInputError(f"{lost.where}: --labels has {here}")
        folders.update(places)
        if len(within) > 1 and not labels_by_name:
            where = f"{path}: classes lie in {names_text(sorted(within))}"
            notes.append(f"{where}; each split has the images of all: divide the archive")
        count = None if any(folder is None for _, folder in places) else places.total()

        def rows() -> Iterator[tuple[str, bytes, str]]:
            for member in _wanted(read_archive(path), left_out):
                for image in _images_of(member, left_out):
                    yield _class_of(member, labels_by_name), image.read(), image.where

        return Images((), {name for name, _ in places}, count, rows)

    found = joined(options.input, read)
    classes = {*found.class_names}
    odd = sum(n for (name, folder), n in folders.items() if folder in classes - {name})
    notes += [f"{odd:,} images lie in the folder of another class than --labels names"] * bool(odd)
    if 0 < len(unused) < len(labels_by_name):  # none is used by a split of class folders
        notes.append(f"{len(unused):,} lines of --labels name no image, such as {min(unused)!r}")
    return dataclasses.replace(found, left_out=left_out, notes=notes)


def _read_labels(path: str) -> dict[str, str]:
    """Returns the class of each file; file names and classes may have spaces."""
    found: dict[str, str] = {}
    lines = decoded(read_input(path), path, first_line=1).splitlines()
    for number, line in enumerate(map(str.strip, lines), 1):
        if line:
            where, pair = f"{path} line {number}", _LISTED.fullmatch(line)
            refuse(where, (not pair, "expected 'image-file-name class'"))
            first = found.setdefault(pair[1], label := composed(pair[2]))
            other = f"{pair[1]} is of class {first!r} above; give it one class"
            refuse(where, (first != label, other))
    return found


def _wanted(found: Iterable[Member], left_out: Counter[str]) -> Iterator[Member]:
    """Yields images and inner archives; counts all others by kind."""
    for member in found:
        other = member.name.endswith(".cls") or Path(member.name).parent.name in PICKLES
        refuse(member.where, (other, "the commands webdataset, cifar_python read such archives"))
        kind = None if member.is_archive else kind_left_out(Path(member.name).name)
        if kind is None:
            yield member
        else:
            left_out[kind] += 1


def _folder_of(member: Member) -> str | None:
    """Returns the name of an image's folder; None of an inner archive."""
    return None if member.is_archive else composed(Path(member.name).parent.name)


def _class_of(member: Member, labels_by_name: Mapping[str, str]) -> str:
    path = Path(member.name)
    label = path.stem if member.is_archive else labels_by_name.get(path.name) or _folder_of(member)
    refuse(member.where, (not label, "lies in no class folder and --labels does not list it"))
    return composed(label)


def _images_of(member: Member, left_out: Counter[str]) -> Iterator[Member]:
    """Yields an image itself, or the images of an inner archive."""
    if not member.is_archive:
        yield member
        return
    for image in _wanted(members(member.content, member.where), left_out):
        refuse(image.where, (image.is_archive, "an archive in an inner archive; unpack it"))
        yield image


# --- WebDataset -----------------------------------------------------------------------------------


def read_webdataset(options: Options) -> Converted:
    """Reads tar archives of WebDataset.

    Consecutive files of one name, up to its first dot, are a sample: an image, and a label in a
    `.cls` (an integer), or else in the field `label` of a `.json`, or else in a `.txt` (an integer
    or a name). Where --label-column names a field, labels are that field's.
    Archives are read twice: for the labels, then for the images.

    Raises:
      BadInputError: an archive is damaged, or a sample has two images, no image or no label.
    """
    left_out: Counter[str] = Counter()

    def read(path: str) -> Images:
        samples = partial(_samples, path, options.label_column)
        labels = [label for label, *_ in samples(Counter(), lambda image: b"")]
        return Images((), {*labels}, len(labels), partial(samples, left_out, Member.read))

    return dataclasses.replace(joined(options.input, read), left_out=left_out)


def is_webdataset(path: str) -> bool:
    """Returns whether the first image of a tar archive has its label beside it, of one name."""
    kinds = ({*map(_kind, some)} for _, some in itertools.groupby(read_archive(path), _key))
    first = next((sample for sample in kinds if "image" in sample), set())
    return not first.isdisjoint(LABELS)


def _samples(path: str, field: str, left_out: Counter[str], read: Any) -> Iterator[tuple]:
    """Yields the label, the image, which `read` reads, and the place of each sample."""
    readers = {"image": read, **dict.fromkeys(LABELS, Member.read)}
    for key, sample in itertools.groupby(read_archive(path), _key):
        found: dict[str, tuple[str, bytes]] = {}
        for member in sample:
            kind = _kind(member)
            refuse(member.where, (kind in found, f"a second {kind} of {key}; remove one"))
            found[kind] = member.where, readers[kind](member) if kind in readers else b""
        if "image" in found:
            where, image = found.pop("image")
            kinds = (".json",) if field else LABELS
            kind = next((kind for kind in kinds if kind in found), "")
            refuse(where, (not kind, f"has no label: no {', '.join(kinds)} of its name follows"))
            yield _label_in(kind, *found.pop(kind), field or "label"), image, where
        elif ".cls" in found:
            problem = f"no image of this name ({', '.join(IMAGE_SUFFIXES)})"
            raise BadInputError(f"{path}:{key}.cls: {problem}")
        left_out.update(kind or "no suffix" for kind in found)


def _key(member: Member) -> str:
    """Returns the path of a file up to the first dot of its name."""
    return _NAME.fullmatch(member.name)[1]


def _kind(member: Member) -> str:
    """Returns "image", or the end of a file's name from the first dot on."""
    suffix = _NAME.fullmatch(member.name)[2].lower()
    return "image" if suffix in IMAGE_SUFFIXES else suffix


def _label_in(kind: str, where: str, content: bytes, field: str) -> int | str:
    """Returns the label in a file of a kind of LABELS; raises BadInputError where it holds none."""
    text = decoded(content, where).strip()
    with refusing(f"{where}: no label", KeyError, TypeError, ValueError):
        label = parse_json(text)[field] if kind == ".json" else text
        label = int(label) if kind == ".cls" or (kind == ".txt" and text.isdecimal()) else label
    number = type(label) is int and 0 <= label < MAX_CLASSES
    fits = number or (isinstance(label, str) and label.strip() and label.isprintable())
    needed = f"a number from 0 to {MAX_CLASSES - 1:,} or the name of a class"
    refuse(where, (not fits, f"label {reprlib.repr(label)}; needs {needed}"))
    return composed(label)
