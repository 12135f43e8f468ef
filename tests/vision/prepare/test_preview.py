"""Previews of augmentations: names are whole, and images are as in training."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from messy_photos import saved, write
from PIL import Image
from small_runs import ROOT

from widenet_jax.config.fields import override
from widenet_jax.config.files import load_config
from widenet_jax.vision.data.files import decode
from widenet_jax.vision.prepare import preview

LONG = "a class whose name is much longer than all the pictures of one row together are wide"


def test_rows_and_the_names_above_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    for name in (LONG, "猫"):
        for split in ("train", "val"):
            image = Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8))
            write(tmp_path / split / name / "a.png", saved(image, "PNG"))
    fields = [f"--config.data.path={tmp_path}", "--config.data.image_size=32"]
    fields += ["--config.augment.eval_crop_fraction=1.0"]
    config = override(load_config(f"{ROOT}/configs/finetune.py"), fields)
    drawn, save = [], preview.save
    monkeypatch.setattr(preview, "save", lambda *args: drawn.append(args[0]) or save(*args))
    out = tmp_path / "a.png"
    preview.draw_augmentations(config, Namespace(out=str(out), num=2, draws=1, seed=0))
    assert out.stat().st_size > 1000
    (figure,) = drawn
    first, second = figure.axes
    photo = (tmp_path / "train" / LONG / "a.png").read_bytes()
    pictures = first.images[0].get_array()
    assert pictures.shape == (32, 64, 3)
    np.testing.assert_array_equal(pictures[:, :32], decode(photo, "a.png"))
    assert [label.get_text() for label in first.get_xticklabels()] == ["evaluation", "epoch 0"]
    assert first.get_title(loc="left").replace("\n", " ") == LONG
    assert second.get_title(loc="left") == "猫"
    name = next(text for text in figure.findobj(Text) if text.get_text().startswith("a class"))
    box = name.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


@pytest.mark.parametrize("fields", [("mixup",), ("cutmix",), ("mixup", "cutmix"), ()])
def test_images_are_mixed_as_in_training(fields, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """White in the first row, black in the next: a mean is the share of white, as is written."""
    for name, grey in (("white", 255), ("zinc", 0)):
        for split in ("train", "val"):
            image = Image.fromarray(np.full((16, 16, 3), grey, np.uint8))
            write(tmp_path / split / name / "a.png", saved(image, "PNG"))
    changes = [f"--config.data.path={tmp_path}", "--config.data.image_size=16"]
    changes += [f"--config.augment.{field}_alpha=1.0" for field in fields]
    config = override(load_config(f"{ROOT}/configs/finetune.py"), changes)
    drawn = []
    monkeypatch.setattr(preview, "save", lambda figure, out: drawn.append(figure))
    for num in (2, 1):
        options = Namespace(out=str(tmp_path / "a.png"), num=num, draws=3, seed=0)
        preview.draw_augmentations(config, options)
    rows = [axis for figure in drawn for axis in figure.axes]
    assert len(rows) == 3
    for axis, own in zip(rows, (255, 0, 255), strict=True):
        evaluation, *draws = np.split(axis.images[0].get_array(), 4, axis=1)
        assert (evaluation == own).all()
        means = [abs(draw.mean() / 255 - (own == 0)) for draw in draws]  # shares of the row's own
        if fields:
            texts = [float(text.get_text().rstrip("%")) / 100 for text in axis.texts]
            assert texts == pytest.approx(means, abs=0.01) and min(means) < 0.999
        else:
            assert not axis.texts and means == [1.0] * 3
    said = [figure.get_supxlabel() for figure in drawn]
    assert said == [preview.MIXED if fields else ""] * 2
