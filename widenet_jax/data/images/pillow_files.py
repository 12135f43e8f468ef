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


def size_of(data: bytes, kind: str) -> tuple[int, int]:
    """Returns (height, width) of a file's first frame without decoding it; (0, 0) if unreadable.

    A TIFF's are those of the picture turned upright.
    """
    try:
        with _open(data, kind) as image:
            return image.height, image.width
    except Exception:  # Pillow raises many kinds at damaged headers
        return 0, 0


def decode(data: bytes, kind: str) -> np.ndarray | None:
    """Decodes a file's first frame to uint8 [H, W, 3]; None if it is damaged or cut short.

    The pixels are Pillow's `convert("RGB")`; of 16 bits the upper 8 remain, which Pillow clips
    instead. A TIFF comes turned upright.
    """
    try:
        with _open(data, kind) as image:
            if image.mode.startswith("I;16"):
                grey = (np.asarray(image) >> 8).astype(np.uint8)
                return cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)
            return np.array(image.convert("RGB"))
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
    """Turns [H, W, C] upright; `orientation` is that of `orientation_of`."""
    return np.ascontiguousarray(TURNS[orientation](image)) if orientation in TURNS else image


def _open(data: bytes, kind: str | None = None) -> Any:
    from PIL import Image

    # Pillow warns of odd metadata, which does not concern the pixels.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    formats = (kind,) if kind else ("JPEG", "PNG", "WEBP")
    return Image.open(io.BytesIO(data), formats=formats)
