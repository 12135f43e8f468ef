"""Image files of every kind have the pixels that Pillow gives them, turned where that is asked."""

import numpy as np
import pytest
from messy_photos import as_pillow_reads, readable, saved, turned
from PIL import Image

from widenet_jax.errors import BadExampleError
from widenet_jax.vision.data import files, pillow_files

READABLE = readable()


@pytest.mark.parametrize("name", READABLE)
def test_every_kind_is_read_as_pillow_reads_it(name):
    data = READABLE[name]
    for upright in (True, False):
        ours = files.EncodedImage(data, name, exif_orientation=upright)
        theirs = as_pillow_reads(data, upright=upright)
        assert ours.shape == theirs.shape
        np.testing.assert_array_equal(ours[:, :], theirs)
        np.testing.assert_array_equal(ours[5:20, 3:30], theirs[5:20, 3:30])


def test_orientations_are_found_and_turn():
    """Guards the test above: Pillow and we turn, rather than both leaving the photo as it is."""
    for kind in ("JPEG", "PNG", "WEBP"):
        found = [pillow_files.orientation_of(turned(kind, number)) for number in range(1, 9)]
        assert found == list(range(1, 9))
    corners = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    quarter = pillow_files.turn(corners, 6)[..., 0]  # clockwise
    assert quarter.tolist() == [[3, 0], [4, 1], [5, 2]]


def test_damaged_exif_leaves_a_photo_as_it_is():
    data = turned("JPEG", 6)
    at = data.index(b"Exif\0\0") + 6
    broken = data[:at] + b"\xff" * 20 + data[at + 20 :]
    assert pillow_files.orientation_of(broken) == pillow_files.UPRIGHT
    assert files.decode(broken, "x", exif_orientation=True).shape == (36, 48, 3)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_pixels_without_a_known_range_are_refused(dtype):
    """Pillow would clip them: 0.5 to black, 70,000 to white."""
    data = saved(
        Image.fromarray(np.full((4, 5), 0.5 if dtype == "float32" else 70_000, dtype)), "TIFF"
    )
    told = r"^x\.tif: pixels of 32 bits, .* have no known range: save it with 8 or 16 bits \("
    with pytest.raises(BadExampleError, match=told):
        files.decode(data, "x.tif")
