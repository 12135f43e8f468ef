"""Decoding, and crops with results computed by hand."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from widenet_jax.vision.data import files


def picture(height: int = 40, width: int = 60) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 4, y * 6, (x + y) * 2], axis=-1).astype(np.uint8)


def encoded_image(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def encoded(image: np.ndarray, kind: str, **options) -> bytes:
    return encoded_image(Image.fromarray(image.squeeze()), kind, **options)


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"quality": 50}, {"restart_marker_blocks": 2}]
)
def test_jpeg_equals_pillows_within_a_level(options):
    data = encoded(picture(), "JPEG", **options)
    theirs = np.asarray(Image.open(io.BytesIO(data))).astype(int)
    assert np.abs(files.decode(data, "x") - theirs).max() <= 2


GREY, CMYK = {"mode": "L"}, {"mode": "CMYK"}
SAMPLINGS = {
    name: {"sampling": getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}")}
    for name in ("411", "420", "422", "440", "444")
}
WHOLE = {"progressive": {"progressive": True}, "restarts": {"restart_marker_blocks": 2}}


def jpeg(mode: str = "RGB", sampling: int | None = None, **options) -> bytes:
    """Encodes 70 x 51 pixels of noise: all rows differ, and the last JPEG blocks are partial."""
    noise = np.random.default_rng(0).integers(0, 256, (70, 51, 3), dtype=np.uint8)
    if sampling is None:
        return encoded_image(Image.fromarray(noise).convert(mode), "JPEG", **options)
    choice = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling]
    return cv2.imencode(".jpg", noise, choice)[1].tobytes()


@pytest.mark.parametrize(
    "options",
    [*SAMPLINGS.values(), GREY, CMYK, *WHOLE.values()],
    ids=[*SAMPLINGS, "grey", "CMYK", *WHOLE],
)
def test_a_slice_of_a_file_is_that_of_its_pixels(options, capfd):
    data = jpeg(**options)
    whole, image = files.decode(data, "x"), files.EncodedImage(data, "x")
    assert image.shape == whole.shape == (70, 51, 3)
    for bottom in range(1, 71):
        window = slice(bottom // 2, bottom), slice(3, 40)
        np.testing.assert_array_equal(image[window], whole[window])
    assert capfd.readouterr() == ("", "")  # libjpeg warns on stderr


def test_where_data_are_missing_a_slice_is_still_that_of_the_whole():
    data = jpeg()
    data = data[: len(data) // 2] + data[-2:]  # libjpeg fills the rest with grey
    whole, image = files.decode(data, "x"), files.EncodedImage(data, "x")
    for bottom in range(1, 71, 7):
        np.testing.assert_array_equal(image[:bottom, :], whole[:bottom])


def test_windows_keep_to_area_and_aspect():
    rng = np.random.default_rng(0)
    height, width, shares, aspects = 300, 400, [], []
    for _ in range(2000):
        top, left, h, w = files.random_window(height, width, 0.05, rng)
        assert 0 <= top <= height - h and 0 <= left <= width - w
        shares.append(h * w / (height * width))
        aspects.append(w / h)
    assert min(shares) >= 0.05 and max(shares) <= 1
    assert 0.74 < min(aspects) < 0.76 and 1.32 < max(aspects) < 1.35
    # The height is uniform over its range, which ends at the photo's 300 rows (aspect up to 4/3).
    # Its mean is about half way from sqrt(0.05) to 1; the aspect ratio shifts it a little.
    assert 0.55 < np.mean(np.sqrt(shares)) < 0.65


def test_a_window_that_cannot_be_is_the_whole_image():
    assert files.random_window(400, 2, 0.9, np.random.default_rng(0)) == (0, 0, 400, 2)


def test_inception_crop_of_everything_is_a_resize():
    square = picture(32, 32)
    crop = files.inception_crop(square, 16, 1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(crop, cv2.resize(square, (16, 16)))


@pytest.mark.parametrize("channels", [1, 3])
def test_one_channel_stays_an_axis(channels):
    image = picture()[..., :channels]
    rng = np.random.default_rng(0)
    for result in (
        files.inception_crop(image, 24, 0.05, rng),
        files.squash(image, 24, smooth=True),
        files.central_crop(image, 24, 28),
        files.pad_and_crop(image[:24, :24], 4, rng),
    ):
        assert result.shape == (24, 24, channels) and result.dtype == np.uint8
    flips = [files.random_flip(image, rng) for _ in range(20)]
    mirrored = [np.array_equal(f, image[:, ::-1]) for f in flips]
    assert 3 < sum(mirrored) < 17
    assert all(m or np.array_equal(f, image) for f, m in zip(flips, mirrored, strict=True))


def test_central_crop_by_hand():
    # 40x60, shorter side 20 -> 20x30; centre 10x10 starts at row 5, column 10: each output pixel
    # averages a 2x2 block of the original.
    image = picture()
    blocks = image.reshape(20, 2, 30, 2, 3).mean(axis=(1, 3))
    expected = blocks[5:15, 10:20]
    assert np.abs(files.central_crop(image, 10, 20) - expected).max() <= 0.5


def test_shrinking_smoothly_averages_and_enlarging_interpolates():
    stripes = np.tile(np.array([0, 0, 0, 200], np.uint8), (8, 4))[..., None]
    assert (files.squash(stripes[:, :8], 2, smooth=True) == 50).all()
    assert set(np.unique(files.squash(stripes[:, :8], 2, smooth=False))) == {0}
    two = np.array([[0, 100], [0, 100]], np.uint8)[..., None]
    assert files.squash(two, 4, smooth=True)[0, :, 0].tolist() == [0, 25, 75, 100]


def test_pad_and_crop_reaches_every_offset():
    image = np.full((4, 4, 1), 9, np.uint8)
    rng = np.random.default_rng(0)
    seen = {files.pad_and_crop(image, 1, rng).tobytes() for _ in range(200)}
    assert len(seen) == 9
    assert files.pad_and_crop(image, 0, rng).tobytes() == image.tobytes()
