"""Image files: their kinds, the checks before decoding, and their pixels, uint8 [H, W, 3] (RGB).

OpenCV decodes JPEG and PNG. Pillow decodes WebP, BMP, GIF, TIFF, CMYK JPEGs and animated PNGs,
which OpenCV reads otherwise, in part (a file that is cut short) or not at all, and reads EXIF
orientations. Pillow is imported at the first such file, because most sets have none, so that worker
processes stay light.

libjpeg fills the parts that it cannot read with grey and only warns, on stderr, so OpenCV returns
garbage for a damaged file. `examine` walks the file's structure once, in about 3 % of the time of
decoding.
"""

import io
import re
import threading
import warnings
from typing import Any, NamedTuple

import cv2
import numpy as np

from widenet_jax.errors import BadExampleError, first_line

# Each worker decodes one image at a time; OpenCV's threads would compete for the same cores.
cv2.setNumThreads(0)

# 8-bit RGB of the stored pixels; `EncodedImage` turns them where the user asks for it.
# IMREAD_UNCHANGED (-1) would override the other flag and keep alpha and 16 bits.
_DECODE_FLAGS = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
# The first bytes of each kind of file.
_KINDS = re.compile(
    rb"(?P<JPEG>\xff\xd8)|(?P<PNG>\x89PNG\r\n\x1a\n)|(?P<WEBP>RIFF.{4}WEBP)|(?P<BMP>BM)|"
    rb"(?P<GIF>GIF8[79]a)|(?P<TIFF>II[*+]\0|MM\0[*+])|"
    rb"(?P<HEIC>.{4}ftyp(?:heic|heix|mif1|msf1|hevc))",
    re.DOTALL,
)
# Pillow's limit for a decompression bomb, too (twice 2^30 / 4 / 3 pixels): half a GiB of RGB.
MAX_PIXELS = 2 * (1 << 30) // 4 // 3

# A JPEG marker is 0xFF and a code. In the image data 0xFF 0x00 is a data byte; a run of 0xFF is
# padding.
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_RESTARTS, _END, _SCAN, _RESTART_INTERVAL = range(0xD0, 0xD8), 0xD9, 0xDA, 0xDD
# Start-of-frame markers, which declare the size.
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that may follow a scan's data: tables, another scan, the end, comments, APP segments.
_AFTER_SCAN = {0xC4, 0xCC, _END, _SCAN, 0xDB, 0xDC, _RESTART_INTERVAL, 0xFE, *range(0xE0, 0xF0)}
_CMYK = 4  # components of a frame
# Extra rows to decode below the window: libjpeg interpolates colour between neighbouring rows.
_ROWS_BELOW = 2
# libjpeg reads up to eight bytes ahead and fails at the end of the data. Zeros hold no marker.
_READ_AHEAD = bytes(16)

# Where one of these occurs, a JPEG, PNG or WebP file may say how it is to be turned.
_ORIENTATION_MARKS = (b"Exif\0", b"eXIf", b"EXIF", b"Raw profile type", b"tiff:Orientation")
_ORIENTATION = 0x0112  # EXIF's tag
UPRIGHT = 1
# Pillow decodes an image when it is first used, and wrongly where two threads use it at once.
_LOADING = [threading.Lock() for _ in range(61)]
# The axes to flip for orientations 1 to 4, and for 5 to 8 after rows and columns are swapped.
_FLIPS = ((), (1,), (0, 1), (0,))


class EncodedImage:
    """An image file, decoded to uint8 RGB when it is sliced, a JPEG down to the last row needed.

    The pixels do not depend on the slice, and equal Pillow's: grey becomes RGB, CMYK is
    converted, transparency is dropped, of 16 bits the upper 8 remain, and of several frames the
    first.

    Attributes:
      shape: (height, width, 3), after turning.
    """

    def __init__(self, data: bytes, where: str, *, exif_orientation: bool = False):
        """Examines the file without decoding it.

        Args:
          data: the file's bytes.
          where: the image's name in messages, e.g. its path.
          exif_orientation: whether to turn the image as its EXIF says. (A TIFF is always turned.)

        Raises:
          BadExampleError: the file is cut short, too large, or of no kind that is read. `examine`
            says which damage inside a JPEG is found.
        """
        self._data, self._where, self._info = data, where, examine(data)
        if self._info.problem:
            raise self._bad(self._info.problem)
        self._orientation = orientation_of(data) if exif_orientation else UPRIGHT
        height, width = self._info.height, self._info.width
        self.shape = (width, height, 3) if self._orientation > 4 else (height, width, 3)

    def __getitem__(self, window: tuple[slice, slice]) -> np.ndarray:
        """Decodes image[top:bottom, left:right]; the bounds must lie inside the image.

        Raises:
          BadExampleError: the file cannot be decoded.
        """
        bottom, data = window[0].stop, self._data
        if bottom is not None and self._orientation == UPRIGHT:
            data = _first_rows(data, self._info, bottom)
        image = _decode(data, self._info.pillow)
        if image is None and data is not self._data:
            # Image data are missing. libjpeg fills the gap with grey only if the file has its end.
            image = _decode(self._data)
        if image is None:
            raise self._bad("damaged or truncated, cannot be decoded")
        return turn(image, self._orientation)[window]

    def _bad(self, problem: str) -> BadExampleError:
        size = f"{len(self._data):,} bytes"
        return BadExampleError(f"{self._where}: {problem} ({size}); replace or remove it")


def decode(data: bytes, where: str, *, exif_orientation: bool = False) -> np.ndarray:
    """Decodes a whole file to uint8 [H, W, 3]. Arguments and errors: see `EncodedImage`."""
    return EncodedImage(data, where, exif_orientation=exif_orientation)[:, :]


def _decode(data: bytes, pillow: str | None = None) -> np.ndarray | None:
    """Decodes a file with OpenCV, or its first frame with Pillow; None if it is damaged."""
    try:
        if not pillow:
            return cv2.imdecode(np.frombuffer(data, np.uint8), _DECODE_FLAGS)
        with _open(data, pillow) as image:
            return pixels_of(image)
    except Exception as error:  # Pillow raises many kinds at damaged files
        out_of_memory = getattr(error, "code", None) == cv2.Error.StsNoMem
        if out_of_memory or isinstance(error, MemoryError):  # says nothing about the file
            raise
        return None


# --- Checks before decoding -----------------------------------------------------------------------


class FileInfo(NamedTuple):
    """The result of `examine`.

    Attributes:
      problem: why the file should not be decoded, or None.
      height: the rows that the file declares; 0 if it declares none. (A TIFF's, turned upright.)
      width: the columns, likewise.
      height_at: offset of the height in a JPEG that `_first_rows` can cut; 0 for any other file.
      data_end: offset of the end of such a JPEG's scan.
      pillow: the kind of a file that Pillow decodes; None for those that OpenCV does.
    """

    problem: str | None
    height: int = 0
    width: int = 0
    height_at: int = 0
    data_end: int = 0
    pillow: str | None = None


def examine(data: bytes) -> FileInfo:
    """Finds the size and the visible damage of an encoded image without decoding it.

    It always finds an empty file, a file of no kind that is read, a JPEG or PNG that is cut short
    anywhere, a file that declares more than MAX_PIXELS, and pixels without a known range. It finds
    damage inside a JPEG's data where the damage makes an invalid marker, at which libjpeg stops
    decoding. In ImageNet's photos it finds 70 % of the random runs of 256 bytes, 95 % of 1 KiB and
    98 % of 4 KiB, but 1 % of single bytes, and no run of zeros: JPEG has no checksum, so other
    damage decodes to a wrong picture.
    (PNG has checksums, which libpng verifies, and Pillow up to the last rows. Damage of the other
    kinds shows when it is decoded.)
    """
    found = _KINDS.match(data)
    kind = found.lastgroup if found else None
    if kind == "JPEG":
        info = _walk_jpeg(data)
    elif kind == "PNG":
        problem = None if b"IEND" in data else "truncated PNG (no end chunk)"
        info = FileInfo(problem, height=_number(data, 20, 4), width=_number(data, 16, 4))
        # An animation may leave out the image before it, which other readers show; OpenCV skips it.
        if b"acTL" in data[: data.find(b"IDAT")]:
            info = info._replace(pillow="PNG")
    elif kind == "HEIC":
        return FileInfo("a HEIC file, which is not read: convert it to JPEG")
    elif kind is None:
        return FileInfo("no JPEG, PNG, WebP, BMP, GIF or TIFF file" if data else "empty file")
    else:
        info = _pillow_header(data, kind)
    if info.height * info.width > MAX_PIXELS:
        size = f"{info.width} x {info.height} pixels"
        return info._replace(problem=f"declares {size}, more than {MAX_PIXELS:,}")
    return info


def _number(data: bytes, first: int, size: int) -> int:
    return int.from_bytes(data[first : first + size], "big")


def _walk_jpeg(data: bytes) -> FileInfo:
    """Walks from marker to marker until the end-of-image marker.

    Segments are skipped by their length, so that the end of an embedded thumbnail does not count as
    the end of the image. Bytes after the end are ignored.
    """
    at, info = 2, FileInfo("truncated JPEG (no end-of-image marker)")
    in_scan, scans, has_restarts, next_restart = False, 0, False, 0
    while found := _MARKER.search(data, at):
        at = found.end()
        code = data[at - 1]
        if code in _RESTARTS:
            if in_scan and not (has_restarts and code == _RESTARTS[next_restart]):
                problem = f"damaged JPEG (restart marker out of order at byte {at})"
                return info._replace(problem=problem)
            next_restart = (next_restart + 1) % len(_RESTARTS)
            continue
        if in_scan:
            info = info._replace(data_end=at - 2)
            if code not in _AFTER_SCAN:
                problem = f"damaged JPEG (marker {code:#x} in the data at byte {at})"
                return info._replace(problem=problem)
        if code == _END:
            whole = scans == 1 and not has_restarts and not info.pillow
            info = info if whole else info._replace(height_at=0)
            return info._replace(problem=None if scans else "truncated JPEG (no image data)")
        if code in _FRAMES:
            height, width = _number(data, at + 3, 2), _number(data, at + 5, 2)
            pillow = "JPEG" if _number(data, at + 7, 1) == _CMYK else None
            info = info._replace(height=height, width=width, height_at=at + 3, pillow=pillow)
        elif code == _RESTART_INTERVAL:
            has_restarts = _number(data, at + 2, 2) > 0
        in_scan = code == _SCAN
        scans += in_scan
        next_restart = 0
        at += _number(data, at, 2)
    return info


def _first_rows(data: bytes, info: FileInfo, rows: int) -> bytes:
    """Returns a file with the same first `rows` rows, which decodes faster.

    In a JPEG of one scan the rows follow one another, so a decoder stops early if the header
    declares a smaller height. libjpeg warns on stderr of a marker among the bytes that it leaves
    unread, so the file ends with the scan's data, without the end-of-image marker, which OpenCV
    does not need. Other files (progressive, with restart markers, PNG) are returned unchanged.
    """
    height = rows + _ROWS_BELOW
    if not info.height_at or height >= info.height:
        return data
    before, after = data[: info.height_at], data[info.height_at + 2 : info.data_end]
    return b"".join((before, height.to_bytes(2, "big"), after, _READ_AHEAD))


# --- Pillow ---------------------------------------------------------------------------------------


def _open(data: bytes, *formats: str) -> Any:
    from PIL import Image

    # Pillow warns of odd metadata, which does not concern the pixels.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image.open(io.BytesIO(data), formats=formats)


def _pillow_header(data: bytes, kind: str) -> FileInfo:
    try:
        with _open(data, kind) as image:
            return FileInfo(problem_of(image), image.height, image.width, pillow=kind)
    except Exception:  # Pillow raises many kinds at damaged headers
        return FileInfo(f"truncated, damaged or too large {kind}")


def problem_of(image: Any) -> str | None:
    """Says why the pixels of a Pillow image cannot be read; None where they can."""
    if image.mode not in ("I", "F"):  # `convert("RGB")` would clip these to 0..255
        return None
    return (
        f"pixels of 32 bits, or of signed 16 (Pillow's mode {image.mode}), have no known "
        "range: save it with 8 or 16 bits"
    )


def pixels_of(image: Any) -> np.ndarray:
    """Returns a Pillow image without a problem as uint8 [H, W, 3].

    The pixels are Pillow's `convert("RGB")`; of 16 bits the upper 8 remain, which Pillow clips
    instead.
    """
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)
    return np.array(image.convert("RGB"))


def read_pillow(image: Any, upright: bool) -> np.ndarray:
    """Returns an image of Pillow as uint8 [H, W, 3], turned by its EXIF if `upright`.

    Raises:
      BadExampleError: it cannot be read or decoded.
    """
    from PIL import ImageOps

    where = getattr(image, "filename", "") or "an image of Pillow"
    if problem := problem_of(image):
        raise BadExampleError(f"{where}: {problem}")
    try:
        with _LOADING[id(image) % len(_LOADING)]:
            image.load()
        return pixels_of(ImageOps.exif_transpose(image) if upright else image)
    except MemoryError:  # says nothing about the image
        raise
    except Exception as error:  # Pillow raises many kinds at damaged files
        raise BadExampleError(f"{where}: cannot be decoded ({first_line(error)})") from None


def orientation_of(data: bytes) -> int:
    """Returns how a JPEG, PNG or WebP file is to be turned: 1 (upright) to 8, as EXIF counts."""
    orientation = UPRIGHT
    if any(mark in data for mark in _ORIENTATION_MARKS):
        try:
            with _open(data, "JPEG", "PNG", "WEBP") as image:
                orientation = image.getexif().get(_ORIENTATION, UPRIGHT)
        except Exception:  # damaged metadata; the pixels may be intact
            return UPRIGHT
    return orientation if orientation in range(1, 9) else UPRIGHT


def turn(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turns [H, W, C] upright, as Pillow's `exif_transpose` does; see `orientation_of`."""
    image = image.swapaxes(0, 1) if orientation > 4 else image
    return np.ascontiguousarray(np.flip(image, _FLIPS[(orientation - 1) % 4]))
