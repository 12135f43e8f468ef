"""The tf.data baseline computes the same as our pipeline; skipped without TensorFlow."""

from pathlib import Path

import numpy as np
import pytest

from widenet_jax.config.files import import_file, load_config
from widenet_jax.vision.data import randaugment

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed (optional)")

tf_pipeline = import_file(str(Path(__file__).parents[3] / "scripts" / "compare" / "tf_data.py"))


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """Smooth shapes and some noise, 224 x 224."""
    y, x = np.mgrid[:224, :224]
    waves = [np.sin(x / 17) * np.cos(y / 29), np.sin((x + y) / 23), np.cos(x / 11)]
    noise = np.random.default_rng(0).normal(0, 6, (224, 224, 3))
    return np.clip(128 + 90 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


def test_the_same_operations():
    assert tf_pipeline.OPERATIONS.keys() == randaugment.OPERATIONS.keys()


@pytest.mark.parametrize("name", [n for n in randaugment.OPERATIONS if n != "Cutout"])
def test_an_operation_computes_the_same(name: str, photo: np.ndarray):
    """Equal to one grey level, except for a few pixels that round differently.

    An operation with a random direction is drawn again until both directions agree.
    """
    theirs = tf_pipeline.OPERATIONS[name](tf.constant(photo), 9.0).numpy().astype(int)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ours = randaugment.OPERATIONS[name](photo, 9.0, rng).astype(int)
        if (np.abs(ours - theirs) <= 1).mean() > 0.97:
            return
    raise AssertionError(f"{name}: {(np.abs(ours - theirs) <= 1).mean():.3f} of the pixels agree")


def test_cutout_covers_the_same_area(photo: np.ndarray):
    """Squares of 2 * 36 pixels, cut off at the edges of the image."""
    whole = (tf_pipeline.cutout(tf.constant(photo), 9.0).numpy() == 128).all(-1)
    assert 36 * 36 <= whole.sum() <= 73 * 73


def test_batches_of_jpegs(photo: np.ndarray, tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    for i in range(3):
        file = str(tmp_path / "train" / "a" / f"{i}.jpg")
        tf.io.write_file(file, tf.io.encode_jpeg(photo[:200]))
    config = load_config("configs/imagenet.py:vit_b")
    config.data.path, config.data.image_size = str(tmp_path), 64
    batches = tf_pipeline.batches(config, None, batch_size=2, num_workers=0)
    first, second = next(batches).numpy(), next(batches).numpy()
    assert first.shape == (2, 64, 64, 3) and first.dtype == np.uint8
    assert (first != second).any()
