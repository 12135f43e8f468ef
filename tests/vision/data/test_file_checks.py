"""Files that must not be decoded: each is refused in one line that names file and damage."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from widenet_jax.errors import BadExampleError
from widenet_jax.vision.data import file_checks, files

NOISE = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)


def encoded(kind: str, image: np.ndarray = NOISE, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(name: bytes, content: bytes) -> bytes:
    body = name + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def bomb_png(width: int, height: int) -> bytes:
    """Returns a PNG of a few bytes that declares this size."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b"")


def bomb_jpeg(width: int, height: int) -> bytes:
    size = struct.pack(">HH", *NOISE.shape[:2])
    data = encoded("JPEG")
    assert data.count(size) == 1
    return data.replace(size, struct.pack(">HH", height, width))


def overwritten(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def flipped(data: bytes, at: int) -> bytes:
    return overwritten(data, at, bytes([data[at] ^ 0x55]))


JPEG, PNG = encoded("JPEG"), encoded("PNG")
RESTARTS = encoded("JPEG", restart_marker_blocks=3)
SCAN = JPEG.index(b"\xff\xda")
OTHERS = ("WEBP", "BMP", "GIF", "TIFF")
GIF_BOMB = encoded("GIF")[:6] + struct.pack("<HH", 65_000, 65_000) + encoded("GIF")[10:]
RANDOM = np.random.default_rng(1).bytes(2048)

BAD_FILES = {
    "empty": (b"", "empty file"),
    "text": (b"404 Not Found\n", "no JPEG, PNG"),
    "HEIC": (b"\0\0\0\x18ftypheic", "a HEIC file, which is not read: convert it to JPEG"),
    **{f"{kind}, cut": (encoded(kind)[:-30], "damaged") for kind in OTHERS},
    **{f"{kind}, cut in the header": (encoded(kind)[:16], "damaged") for kind in OTHERS},
    "GIF bomb": (GIF_BOMB, "too large GIF"),
    "two bytes": (JPEG[:2], "truncated JPEG"),
    "cut in the first segment": (JPEG[:9], "truncated JPEG"),
    "without its last byte": (JPEG[:-1], "truncated JPEG"),
    "progressive, cut": (encoded("JPEG", progressive=True)[:4000], "truncated JPEG"),
    "random in the middle": (overwritten(JPEG, 1500, RANDOM), "damaged JPEG|truncated JPEG"),
    "restarts unannounced": (overwritten(JPEG, 2000, b"\xff\xd0"), "damaged JPEG"),
    "restarts out of order": (RESTARTS.replace(b"\xff\xd2", b"\xff\xd5", 1), "damaged JPEG"),
    "tables lost": (overwritten(JPEG, 20, bytes(300)), "cannot be decoded|damaged|truncated"),
    "PNG without its end": (PNG[:-12], "truncated PNG"),
    "PNG with a flipped byte": (flipped(PNG, len(PNG) // 2), "cannot be decoded"),
    "no rows": (bomb_jpeg(80, 0), "cannot be decoded"),
    "bomb": (bomb_jpeg(60_000, 60_000), "declares 60000 x 60000 pixels, more than 178,956,970"),
    "PNG bomb": (bomb_png(1 << 20, 1 << 20), "declares 1048576 x 1048576 pixels"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_on_one_line(name):
    data, problem = BAD_FILES[name]
    place = rf"^train/cat/7: .*({problem}).* \([\d,]+ bytes\); replace or remove it$"
    with pytest.raises(BadExampleError, match=place) as error:
        files.decode(data, "train/cat/7")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_file_cut_anywhere_is_never_decoded(kind):
    data = encoded(kind, NOISE[:24, :24])
    for length in range(len(data) - (12 if kind == "PNG" else 0)):
        with pytest.raises(BadExampleError):
            files.decode(data[:length], "x")


def test_a_thumbnails_end_is_not_the_images_end():
    # A thumbnail lies in an APP segment near the start and has its own end-of-image marker.
    thumbnail = encoded("JPEG", NOISE[:8, :8])
    segment = b"\xff\xe2" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    data = JPEG[:2] + segment + JPEG[2:]
    assert files.decode(data, "x").shape == (80, 80, 3)
    with pytest.raises(BadExampleError, match="truncated"):
        files.decode(data[:-20], "x")


@pytest.mark.parametrize("data", [JPEG, RESTARTS, PNG], ids=["JPEG", "restarts", "PNG"])
def test_bytes_after_the_end_are_harmless(data):
    # A second picture is ignored, too: some cameras append a preview.
    for more in (b"\0" * 100, JPEG[:3000]):
        np.testing.assert_array_equal(files.decode(data + more, "x"), files.decode(data, "x"))


def test_the_largest_size_passes():
    assert file_checks.examine(bomb_png(file_checks.MAX_PIXELS, 1)).problem is None
    assert "declares" in file_checks.examine(bomb_png(file_checks.MAX_PIXELS + 1, 1)).problem


def test_most_damage_of_a_disk_block_is_found():
    photo = encoded("JPEG", np.tile(NOISE, (5, 5, 1)), quality=90)
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(50):
        at = int(rng.integers(1000, len(photo) - 5000))
        found += file_checks.examine(overwritten(photo, at, rng.bytes(4096))).problem is not None
    assert found >= 45
