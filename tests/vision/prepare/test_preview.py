"""Previews of augmentations: names are whole, and images are as in training."""

from pathlib import Path

import numpy as np
from small_runs import ROOT

from widenet_jax.config.fields import override
from widenet_jax.config.files import load_config
from widenet_jax.run.figures import line_of_text
from widenet_jax.vision.data.files import decode
from widenet_jax.vision.prepare.preview import augmentation_grid

LONG = "a class whose name is much longer than all the pictures of one row together are wide"


def test_the_name_of_a_class_stands_whole_above_its_row(tmp_path: Path):
    import cv2

    rng = np.random.default_rng(0)
    for name in (LONG, "猫"):
        for split in ("train", "val"):
            (tmp_path / split / name).mkdir(parents=True)
            image = rng.integers(0, 256, (32, 32, 3), np.uint8)
            cv2.imwrite(str(tmp_path / split / name / "a.png"), image)
    fields = [f"--config.data.path={tmp_path}", "--config.data.image_size=32"]
    fields += ["--config.augment.eval_crop_fraction=1.0"]
    config = override(load_config(f"{ROOT}/configs/finetune.py"), fields)
    grid = augmentation_grid(config, num_images=2, num_draws=1, seed=0)
    name = line_of_text(LONG, height=22)
    assert grid.shape[1] == name.shape[1] > 2 * (128 + 2)
    np.testing.assert_array_equal(grid[:22], name)
    # Below its caption, 18 pixels high, each pixel of the evaluation input is 4 x 4.
    tile = grid[22 + 18 :][:128, :128]
    photo = (tmp_path / "train" / LONG / "a.png").read_bytes()
    np.testing.assert_array_equal(tile[::4, ::4], decode(photo, "a.png"))
    np.testing.assert_array_equal(tile, tile[::4, ::4].repeat(4, axis=0).repeat(4, axis=1))
