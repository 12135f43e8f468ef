"""A folder of photos as people keep them: every kind of file, and some that cannot be read."""

import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

SIZE = (48, 36)  # (width, height), so that a turned photo shows
EXIF_ORIENTATION = 0x0112


def picture(seed: int = 0) -> Image.Image:
    """Returns a smooth colour picture; each seed another."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return small.resize(SIZE, Image.Resampling.BICUBIC)


def wide(seed: int = 0) -> Image.Image:
    """Returns a grey picture of 16 bits."""
    values = np.random.default_rng(seed).integers(0, 1 << 16, SIZE[::-1])
    return Image.fromarray(values.astype(np.uint16))


def saved(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(kind: str, orientation: int, **options) -> bytes:
    """Encodes a picture whose EXIF says that it is to be turned."""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    return saved(picture(orientation), kind, exif=exif.tobytes(), **options)


def translucent() -> Image.Image:
    image = picture(1).convert("RGBA")
    image.putalpha(picture(2).convert("L"))
    return image


def readable() -> dict[str, bytes]:
    """Returns files that Pillow reads, by name."""
    photo = picture()
    frames = {"save_all": True, "append_images": [picture(3), picture(4)]}
    files = {
        "plain.jpg": saved(photo, "JPEG"),
        "progressive.jpeg": saved(photo, "JPEG", progressive=True),
        "UPPER.JPG": saved(picture(5), "JPEG"),
        "Upper.Png": saved(picture(6), "PNG"),
        "with  two spaces.jpg": saved(picture(7), "JPEG"),
        "猫が庭で寝ている.jpg": saved(picture(8), "JPEG"),
        "がぎぐ.webp": saved(picture(9), "WEBP"),
        "grey.jpg": saved(photo.convert("L"), "JPEG"),
        "cmyk.jpg": saved(photo.convert("CMYK"), "JPEG"),
        "16-bit.png": saved(wide(), "PNG"),
        "16-bit.tif": saved(wide(1), "TIFF"),
        "lossless.webp": saved(translucent(), "WEBP", lossless=True, exact=True),
        "moving.webp": saved(photo, "WEBP", lossless=True, **frames),
        "moving.gif": saved(photo, "GIF", **frames),
        "moving.png": saved(photo, "PNG", **frames),
        "hidden first frame.png": saved(photo, "PNG", default_image=True, **frames),
        "moving and see-through.png": saved(translucent(), "PNG", **frames),
        "see-through.gif": saved(photo.quantize(16), "GIF", transparency=3),
        "see-through.png": saved(photo.quantize(16), "PNG", transparency=3),
        "pages.tiff": saved(photo, "TIFF", **frames),
        "named.png, but a gif.png": saved(photo, "GIF"),
    }
    for mode in ("L", "LA", "P", "1", "RGBA"):
        files[f"{mode}.png"] = saved(translucent().convert(mode), "PNG")
    for mode in ("L", "P", "1"):
        files[f"{mode}.bmp"] = saved(photo.convert(mode), "BMP")
    for mode in ("L", "LA", "P", "1", "RGBA", "CMYK"):
        files[f"{mode}.tiff"] = saved(translucent().convert(mode), "TIFF")
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        files[f"{compression}.tif"] = saved(photo, "TIFF", compression=compression)
    for kind, suffix in (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("TIFF", "tif")):
        for orientation in range(1, 9):
            files[f"turned {orientation}.{suffix}"] = turned(kind, orientation)
    return files


def unreadable() -> dict[str, bytes]:
    """Returns damaged files with names of images."""
    whole = {kind: saved(picture(), kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")}
    files = {f"truncated.{kind.lower()}": data[: len(data) // 2] for kind, data in whole.items()}
    return files | {"empty.jpg": b"", "page.jpg": b"<html>404</html>"}


def left_out() -> dict[str, bytes]:
    """Returns files that are no images by their names."""
    return {".DS_Store": b"\0\0\0\1Bud1", "IMG_1.HEIC": b"\0\0\0\x18ftypheic", "notes.txt": b"cats"}


def as_pillow_reads(data: bytes, *, upright: bool) -> np.ndarray:
    """Returns Pillow's pixels, uint8 [H, W, 3]; of 16 bits the upper 8, which Pillow would clip."""
    image = Image.open(io.BytesIO(data))
    image = ImageOps.exif_transpose(image) if upright else image
    if image.mode.startswith("I;16"):
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
    with warnings.catch_warnings(action="ignore"):  # of transparency that is dropped
        return np.asarray(image.convert("RGB"))


def write_folder(root: Path) -> Path:
    """Writes all of these files into the class folder "messy", beside two plain classes."""
    for name, data in (readable() | unreadable() | left_out()).items():
        write(root / "messy" / name, data)
    for i in range(12):
        write(root / "plain" / f"{i}.jpg", saved(picture(20 + i), "JPEG"))
        write(root / "日本 の猫" / f"{i}.png", saved(picture(40 + i), "PNG"))
    (root / "no photo yet").mkdir()
    write(root / ".DS_Store", b"")
    return root


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
