"""Image files have the pixels that Pillow gives them; a bad file is refused in one line."""

import struct
import zlib

import cv2
import numpy as np
import pytest
from messy_photos import as_pillow_reads, readable, saved, turned
from PIL import Image

from widenet_jax.errors import BadExampleError
from widenet_jax.vision.data import files

NOISE = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)


def encoded(kind: str, image: np.ndarray = NOISE, **options) -> bytes:
    return saved(Image.fromarray(image), kind, **options)


# --- Pixels ---------------------------------------------------------------------------------------


def test_every_kind_is_read_as_pillow_reads_it():
    for name, data in readable().items():
        for upright in (True, False):
            ours = files.EncodedImage(data, name, exif_orientation=upright)
            theirs = as_pillow_reads(data, upright=upright)
            assert ours.shape == theirs.shape
            np.testing.assert_array_equal(ours[:, :], theirs, name)
            np.testing.assert_array_equal(ours[5:20, 3:30], theirs[5:20, 3:30], name)


def test_orientations_are_found_and_turn():
    """Guards the test above: Pillow and we turn, rather than both leaving the photo as it is."""
    for kind in ("JPEG", "PNG", "WEBP"):
        found = [files.orientation_of(turned(kind, number)) for number in range(1, 9)]
        assert found == list(range(1, 9))
    corners = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    assert files.turn(corners, 6)[..., 0].tolist() == [[3, 0], [4, 1], [5, 2]]  # clockwise


def test_damaged_exif_leaves_a_photo_as_it_is():
    data = turned("JPEG", 6)
    at = data.index(b"Exif\0\0") + 6
    broken = data[:at] + b"\xff" * 20 + data[at + 20 :]
    assert files.orientation_of(broken) == files.UPRIGHT
    assert files.decode(broken, "x", exif_orientation=True).shape == (36, 48, 3)


NOISY = NOISE[:70, :51]  # all rows differ, and the last JPEG blocks are partial
JPEGS = {
    name: cv2.imencode(
        ".jpg",
        NOISY,
        [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}")],
    )[1].tobytes()
    for name in ("420", "411", "422", "440", "444")
} | {
    "grey": saved(Image.fromarray(NOISY).convert("L"), "JPEG"),
    "CMYK": saved(Image.fromarray(NOISY).convert("CMYK"), "JPEG"),
    "progressive": encoded("JPEG", NOISY, progressive=True),
    "restarts": encoded("JPEG", NOISY, restart_marker_blocks=2),
}


def test_a_slice_of_a_file_has_the_pixels_of_the_whole(capfd):
    halved = JPEGS["420"][: len(JPEGS["420"]) // 2] + JPEGS["420"][-2:]  # the rest becomes grey
    for name, data in (JPEGS | {"data are missing": halved}).items():
        whole, image = files.decode(data, "x"), files.EncodedImage(data, "x")
        assert image.shape == whole.shape == (70, 51, 3)
        capfd.readouterr()
        for bottom in range(1, 71, 1 if name == "420" else 6):
            window = slice(bottom // 2, bottom), slice(3, 40)
            np.testing.assert_array_equal(image[window], whole[window], name)
        # libjpeg warns on stderr
        assert data is halved or capfd.readouterr() == ("", ""), name


# --- Bad files ------------------------------------------------------------------------------------


def png_chunk(name: bytes, content: bytes) -> bytes:
    body = name + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def bomb_png(width: int, height: int) -> bytes:
    """Returns a PNG of a few bytes that declares this size."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b"")


def bomb_jpeg(width: int, height: int) -> bytes:
    return JPEG.replace(struct.pack(">HH", *NOISE.shape[:2]), struct.pack(">HH", height, width))


def overwritten(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


JPEG, PNG = encoded("JPEG"), encoded("PNG")
MOVING = encoded("PNG", save_all=True, append_images=[Image.fromarray(NOISE[::-1])])
RESTARTS = encoded("JPEG", restart_marker_blocks=3)
GIF_BOMB = encoded("GIF")[:6] + struct.pack("<HH", 65_000, 65_000) + encoded("GIF")[10:]
FLOATS = saved(Image.fromarray(np.full((4, 5), 0.5, "float32")), "TIFF")
WHOLES = saved(Image.fromarray(np.full((4, 5), 70_000, "int32")), "TIFF")
RANDOM = np.random.default_rng(1).bytes(2048)

BAD_FILES = {
    "empty": (b"", "empty file"),
    "text": (b"404 Not Found\n", "no JPEG, PNG"),
    "HEIC": (b"\0\0\0\x18ftypheic", "a HEIC file, which is not read: convert it to JPEG"),
    # Pillow would clip them: 0.5 to black, 70,000 to white.
    "floats": (FLOATS, "pixels of 32 bits, .* no known range: save it with 8 or 16 bits"),
    "large integers": (WHOLES, "pixels of 32 bits, .* no known range: save it with 8 or 16 bits"),
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
    "PNG with a flipped byte": (overwritten(PNG, len(PNG) // 2, b"UU"), "cannot be decoded"),
    "moving PNG with a flipped byte": (overwritten(MOVING, 5000, b"UU"), "cannot be decoded"),
    "moving PNG without its end": (MOVING[:-12], "truncated PNG"),
    "no rows": (bomb_jpeg(80, 0), "cannot be decoded"),
    "bomb": (bomb_jpeg(60_000, 60_000), "declares 60000 x 60000 pixels, more than 178,956,970"),
    "PNG bomb": (bomb_png(1 << 20, 1 << 20), "declares 1048576 x 1048576 pixels"),
}
for kind in ("WEBP", "BMP", "GIF", "TIFF"):
    BAD_FILES[f"{kind}, cut"] = encoded(kind)[:-30], "damaged"
    BAD_FILES[f"{kind}, cut in the header"] = encoded(kind)[:16], "damaged"


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
    # A second picture after the end is ignored, too: some cameras append a preview.
    for whole in (JPEG, RESTARTS, PNG):
        np.testing.assert_array_equal(
            files.decode(whole + JPEG[:3000], "x"), files.decode(whole, "x")
        )


def test_the_largest_size_passes():
    assert files.examine(bomb_png(files.MAX_PIXELS, 1)).problem is None
    assert "declares" in files.examine(bomb_png(files.MAX_PIXELS + 1, 1)).problem
