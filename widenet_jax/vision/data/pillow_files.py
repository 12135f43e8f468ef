"""WebP, BMP, GIF and TIFF files, CMYK JPEGs and EXIF orientation, read with Pillow.

OpenCV is faster and reads other JPEG and PNG files to the same pixels as Pillow. These kinds it
reads otherwise (TIFF with alpha, CMYK), in part (a file that is cut short) or not at all. Pillow is
imported at the first such file, because most sets have none.
"""

import io
import warnings
from typing import Any

import cv2
import numpy as np

# The first bytes of each kind; a WebP has four bytes of size in between.
STARTS = {
    "WEBP": (b"RIFF",),
    "BMP": (b"BM",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
# Where one of these occurs, a JPEG, PNG or WebP file may say how it is to be turned.
ORIENTATION_MARKS = (b"Exif\0", b"eXIf", b"EXIF", b"Raw profile type", b"tiff:Orientation")
ORIENTATION = 0x0112  # EXIF's tag
UPRIGHT = 1
# Pillow's modes whose values have no known range; `convert("RGB")` clips them to 0..255.
NO_RANGE = ("I", "F")
# Orientation -> what turns the stored pixels upright, as Pillow's `exif_transpose` does.
TURNS = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image.swapaxes(0, 1)[:, ::-1],
    7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
    8: lambda image: image.swapaxes(0, 1)[::-1],
}


def kind_of(data: bytes) -> str | None:
    """Returns the key of `STARTS` to which a file belongs; None for any other."""
    for kind, starts in STARTS.items():
        if data.startswith(starts) and (kind != "WEBP" or data[8:12] == b"WEBP"):
            return kind
    return None


def header_of(data: bytes, kind: str) -> tuple[str | None, int, int]:
    """Returns a problem, or None, with height and width of a file's first frame; decodes nothing.

    A TIFF's size is the size of the picture turned upright.
    """
    try:
        with _open(data, kind) as image:
            return problem_of(image), image.height, image.width
    except Exception:  # Pillow raises many kinds at damaged headers
        return f"truncated, damaged or too large {kind}", 0, 0


def problem_of(image: Any) -> str | None:
    """Says why the pixels of a Pillow image cannot be read; None where they can."""
    if image.mode in NO_RANGE:
        return (
            f"pixels of 32 bits, or of signed 16 (Pillow's mode {image.mode}), have no known "
            "range: save it with 8 or 16 bits"
        )
    return None


def pixels_of(image: Any) -> np.ndarray:
    """Returns a Pillow image without a problem as uint8 [H, W, 3].

    The pixels are Pillow's `convert("RGB")`; of 16 bits the upper 8 remain, which Pillow clips
    instead.
    """
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)
    return np.array(image.convert("RGB"))


def decode(data: bytes, kind: str) -> np.ndarray | None:
    """Decodes a file's first frame with `pixels_of`; None if it is damaged or cut short.

    A TIFF comes turned upright. `header_of` finds a file whose pixels cannot be read.
    """
    try:
        with _open(data, kind) as image:
            return pixels_of(image)
    except MemoryError:  # says nothing about the file
        raise
    except Exception:  # Pillow raises many kinds at damaged files
        return None


def orientation_of(data: bytes) -> int:
    """Returns how a JPEG, PNG or WebP file is to be turned: 1 (upright) to 8, as EXIF counts."""
    if not any(mark in data for mark in ORIENTATION_MARKS):
        return UPRIGHT
    try:
        with _open(data) as image:
            orientation = image.getexif().get(ORIENTATION, UPRIGHT)
    except Exception:  # damaged metadata; the pixels may be intact
        return UPRIGHT
    return orientation if orientation in TURNS else UPRIGHT


def turn(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turns [H, W, C] upright; see `orientation_of`."""
    return np.ascontiguousarray(TURNS[orientation](image)) if orientation in TURNS else image


def _open(data: bytes, kind: str | None = None) -> Any:
    from PIL import Image

    # Pillow warns of odd metadata, which does not concern the pixels.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    formats = (kind,) if kind else ("JPEG", "PNG", "WEBP")
    return Image.open(io.BytesIO(data), formats=formats)
